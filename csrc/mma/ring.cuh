// Stages of shared memory that hold the next steps' K or V while one is being used.
//
// Parts says what a stage is made of: kStages, kStage and kTileBytes (bytes of a stage, of one tile's parts), and
// copy(stage, step, tiles, engine), which calls engine.template run<bytes>(target, source, tile, tiles) for every part
// of a stage: `bytes` a tile, tiles next to each other, from `tile` on. The order of calls is fill, acquire, release,
// for one step after the other. All warps must have released a step before its stage is filled anew, or be between that
// and the next acquire() of any ring.
#pragma once

#include "ptx/async.cuh"
#include "ptx/copy.cuh"

// Bulk copies: thread 0 queues them, an mbarrier says that a stage has landed, another that all warps are done with it.
template <class Parts>
struct BulkRing {
    const Parts parts;
    const u32 stages, barriers;  // of kStages landed, then of kStages free
    const int tiles;

    struct Engine {
        u32 landed;
        template <int kBytes>
        __device__ __forceinline__ void run(u32 target, const void* source, u32 tile, int tiles) const {
            bulk_copy(target, (const u8*)source + tile * kBytes, kBytes * tiles, landed);
        }
    };

    __device__ __forceinline__ u32 landed(int stage) const { return barriers + 8 * stage; }
    __device__ __forceinline__ u32 free(int stage) const { return barriers + 8 * (Parts::kStages + stage); }

    __device__ __forceinline__ void initialise() const {
        if (threadIdx.x != 0) return;
        for (int i = 0; i < Parts::kStages; ++i) {
            mbarrier_init(landed(i), 1);
            mbarrier_init(free(i), Parts::kWarps);
        }
        fence_mbarrier_init();
    }
    __device__ __forceinline__ void fill(int step) const {
        const int left = tiles - step * Parts::kStepTiles;
        if (threadIdx.x == 0 && left > 0) {
            const int stage = step % Parts::kStages, round = step / Parts::kStages;
            if (round > 0) mbarrier_wait(free(stage), (round & 1) ^ 1);
            const int copied = min(left, Parts::kStepTiles);
            mbarrier_expect(landed(stage), Parts::kTileBytes * copied);
            parts.copy(stages + stage * Parts::kStage, step, copied, Engine{landed(stage)});
        }
        __syncwarp();  // the next instruction of the first warp wants all its lanes
    }
    __device__ __forceinline__ u32 acquire(int step) const {
        const int stage = step % Parts::kStages;
        mbarrier_wait(landed(stage), step / Parts::kStages & 1);
        return stages + stage * Parts::kStage;
    }
    __device__ __forceinline__ void release(int step) const {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) mbarrier_arrive(free(step % Parts::kStages));
    }
};

// cp.async: every thread copies its share, and a barrier of the whole block in acquire() says both that a stage has
// landed and that all warps are done with what they used before.
template <class Parts>
struct AsyncRing {
    const Parts parts;
    const u32 stages, barriers;  // not needed
    const int tiles;

    struct Engine {
        template <int kBytes>
        __device__ __forceinline__ void run(u32 target, const void* source, u32 tile, int tiles) const {
            constexpr int kTogether = 16 * 32 * Parts::kWarps;  // bytes that the block copies at once
            const u8* const own = (const u8*)source + (tile * kBytes + 16 * threadIdx.x);
#pragma unroll
            for (int j = 0; j < Parts::kStepTiles; ++j) {
                if (j > 0 && j >= tiles) return;
#pragma unroll
                for (int i = 0; i < kBytes; i += kTogether) {
                    const int at = j * kBytes + i;
                    if (i + kTogether <= kBytes || i + 16 * threadIdx.x < kBytes) {
                        async_copy_16(target + 16 * threadIdx.x + at, own + at);
                    }
                }
            }
        }
    };

    __device__ __forceinline__ void initialise() const {}
    __device__ __forceinline__ void fill(int step) const {
        const int left = tiles - step * Parts::kStepTiles;
        if (left > 0) parts.copy(stages + step % Parts::kStages * Parts::kStage, step, left, Engine{});
    }
    __device__ __forceinline__ u32 acquire(int step) const {
        async_copies_wait();
        __syncthreads();
        return stages + step % Parts::kStages * Parts::kStage;
    }
    __device__ __forceinline__ void release(int) const {}
};
