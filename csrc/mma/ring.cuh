// Stages of shared memory that hold the next steps' K or V while one is being used.
//
// Parts says what a stage is made of: kStages, kStage and kTileBytes (bytes of a stage, of one tile's parts), and
// copy(stage, tile, tiles, engine), which calls engine.template run<bytes>(target, source, tile, tiles) for every part
// of a stage: `bytes` a tile, tiles next to each other, from `tile` on, which is counted over all heads. The order of
// calls is fill, acquire, release, for one step after the other. All warps must have released a step before its stage
// is filled anew, or be between that and the next acquire() of any ring.
#pragma once

#include "ptx/async.cuh"
#include "ptx/copy.cuh"

// Bulk copies: thread 0 queues them, an mbarrier says that a stage has landed, another that all threads are done with
// it. One arrival a warp would not be cheaper here, and racecheck cannot follow it.
template <class Parts>
struct BulkRing {
    const Parts parts;
    const u32 stages, barriers;  // of kStages landed, then of kStages free
    const u32 first;             // tile of this head
    const int tiles;

    struct Engine {
        u32 landed;
        template <int kBytes>
        __device__ __forceinline__ void run(u32 target, const void* source, u32 tile, int tiles) const {
            bulk_copy(target, (const u8*)source + (u64)tile * kBytes, kBytes * tiles, landed);
        }
    };

    __device__ __forceinline__ u32 landed(u32 stage) const { return barriers + 8 * stage; }
    __device__ __forceinline__ u32 free(u32 stage) const { return barriers + 8 * (Parts::kStages + stage); }

    __device__ __forceinline__ void initialise() const {
        if (threadIdx.x != 0) return;
        for (int i = 0; i < Parts::kStages; ++i) {
            mbarrier_init(landed(i), 1);
            mbarrier_init(free(i), 32 * Parts::kWarps);
        }
        fence_mbarrier_init();
    }
    __device__ __forceinline__ void fill(u32 step) const {
        const int left = tiles - (int)step * Parts::kStepTiles;
        if (threadIdx.x == 0 && left > 0) {
            const u32 stage = step % Parts::kStages, round = step / Parts::kStages;
            if (round > 0) mbarrier_wait(free(stage), (round & 1) ^ 1);
            const int copied = min(left, Parts::kStepTiles);
            mbarrier_expect(landed(stage), Parts::kTileBytes * copied);
            parts.copy(stages + stage * Parts::kStage, first + step * Parts::kStepTiles, copied, Engine{landed(stage)});
        }
        __syncwarp();  // the next instruction of the first warp wants all its lanes
    }
    __device__ __forceinline__ u32 acquire(u32 step) const {
        const u32 stage = step % Parts::kStages;
        mbarrier_wait(landed(stage), step / Parts::kStages & 1);
        return stages + stage * Parts::kStage;
    }
    __device__ __forceinline__ void release(u32 step) const { mbarrier_arrive(free(step % Parts::kStages)); }
};

// cp.async: every thread copies its share, and a barrier of the whole block in acquire() says both that a stage has
// landed and that all warps are done with what they used before.
template <class Parts>
struct AsyncRing {
    const Parts parts;
    const u32 stages, barriers;  // not needed
    const u32 first;             // tile of this head
    const int tiles;

    struct Engine {
        template <int kBytes>
        __device__ __forceinline__ void run(u32 target, const void* source, u32 tile, int tiles) const {
            constexpr int kAtOnce = 16 * 32;  // bytes that a warp copies at once
            constexpr int kShare = kBytes * Parts::kStepTiles / Parts::kWarps;
            constexpr int kOwn = kShare > kAtOnce ? kShare : kAtOnce;  // bytes of a warp, next to each other
            static_assert(kOwn % kAtOnce == 0 && (kBytes % kOwn == 0 || kOwn == kAtOnce), "no copy is of two tiles");
            const u32 own = threadIdx.x / 32 * kOwn + threadIdx.x % 32 * 16;
            if (own >= (u32)kBytes * tiles) return;
            // Few instructions for addresses: 32 bits count chunks of 64 GiB, 2048 bytes either way are part of a copy.
            constexpr int kMiddle = kOwn > 2048 ? kOwn / 2 : 0;
            const uint4* const middle = (const uint4*)source + (tile * (kBytes / 16) + own / 16 + kMiddle / 16);
#pragma unroll
            for (int i = 0; i < kOwn; i += kAtOnce) async_copy_16(target + own + i, middle + (i - kMiddle) / 16);
        }
    };

    __device__ __forceinline__ void initialise() const {}
    __device__ __forceinline__ void fill(u32 step) const {
        const int left = tiles - (int)step * Parts::kStepTiles;
        if (left <= 0) return;
        parts.copy(stages + step % Parts::kStages * Parts::kStage, first + step * Parts::kStepTiles,
                   min(left, Parts::kStepTiles), Engine{});
    }
    __device__ __forceinline__ u32 acquire(u32 step) const {
        async_copies_wait();
        __syncthreads();
        return stages + step % Parts::kStages * Parts::kStage;
    }
    __device__ __forceinline__ void release(u32) const {}
};
