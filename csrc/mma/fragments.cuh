// From tile images in shared memory to the fragments of ptx/mma.cuh.
#pragma once

#include "common/swizzle.cuh"
#include "ptx/async.cuh"
#include "ptx/mma.cuh"
#include "ptx/registers.cuh"

// B fragments from rows of kRowBytes (keys of K, channels of V^T), eight of which are the columns of a product.
template <int kRowBytes>
struct Columns {
    u32 lane_offset;  // of what this lane addresses for ldmatrix

    __device__ __forceinline__ Columns() {
        const int lane = threadIdx.x & 31;
        lane_offset = swizzled<kRowBytes>(8 * (lane >> 4) + (lane & 7), 16 * (lane >> 3 & 1));
        keep_in_register(lane_offset);
    }

    // Bytes 32 step.. of rows 8n..8n + 15 of the image at `tile`: b[0], b[1] for the product of the first eight, b[2],
    // b[3] for the others. The swizzle is an exclusive or, and so is the way to the next step.
    __device__ __forceinline__ void load(u32 tile, int n, int step, u32 (&b)[4]) const {
        load_matrices(b, tile + (lane_offset ^ 32 * step) + 8 * n * kRowBytes);
    }
};

// Second-level scales of the columns 8n..8n + 7 for four neighbouring n at once: the lane with t = n % 4 has those of
// its column, a word a step. Rows at `micro` have 4 kSteps bytes.
template <int kSteps>
__device__ __forceinline__ void load_scales(u32 micro, int n, u32 (&scale)[kSteps]) {
    const int lane = threadIdx.x & 31;
    const u32 address = micro + 4 * kSteps * (8 * (n + (lane & 3)) + (lane >> 2));
    if constexpr (kSteps == 2) {
        const float2 words = load_shared_v2(address);
        scale[0] = __float_as_uint(words.x);
        scale[1] = __float_as_uint(words.y);
    } else {
        scale[0] = __float_as_uint(load_shared(address));
    }
}

// A fragments of this warp's 16 rows of kRowBytes (queries) of the image at `tile`.
template <int kRowBytes>
struct Rows {
    const u32 tile;
    u32 lane_offset;

    __device__ __forceinline__ explicit Rows(u32 tile_) : tile(tile_) {
        const int lane = threadIdx.x & 31;
        lane_offset = swizzled<kRowBytes>(16 * (threadIdx.x >> 5) + (lane & 15), lane & 16);
        keep_in_register(lane_offset);
    }

    // Bytes 32 step..32 step + 31 of the rows.
    __device__ __forceinline__ void load(int step, u32 (&a)[4]) const {
        load_matrices(a, tile + (lane_offset ^ 32 * step));
    }
    __device__ __forceinline__ void load_next_image(int step, u32 (&a)[4]) const {
        load_matrices(a, tile + kTile * kRowBytes + (lane_offset ^ 32 * step));
    }
};
