// One block-scaled product a warp, and the packing of probabilities: what the self-test compares with exact arithmetic
// before 4 bits are trusted (csrc/README.md). Operands come in natural order.
#pragma once

#include "mma/nvfp4.cuh"

struct MmaSelftestParams {
    const u8* a;        // [count, 16, 32] two E2M1 codes a byte, the even k low
    const u8* a_scale;  // [count, 16, 4] UE4M3
    const u8* b;        // [count, 8, 32]
    const u8* b_scale;  // [count, 8, 4]
    float* c;           // [count, 16, 8]
    const float* x;     // [count, 32, 8] a row for each lane
    u32* packed;        // [count, 32] E2M1 codes of the row
};

__device__ __forceinline__ u32 word(const u8* p) {
    return *(const u32*)p;
}

template <class Nvfp4>
__device__ __forceinline__ void mma_selftest(const MmaSelftestParams& p) {
    constexpr u32 kNans = 0x7f7f7f7f;
    const i64 product = blockIdx.x;
    const int lanes_a = product & 1, lane_b = product >> 1 & 3;
    const int row = threadIdx.x >> 2, quad_lane = threadIdx.x & 3;
    u32 a[4], b[2];
    for (int j = 0; j < 4; ++j)
        a[j] = word(p.a + (16 * product + row + 8 * (j & 1)) * 32 + 16 * (j >> 1) + 4 * quad_lane);
    for (int j = 0; j < 2; ++j) b[j] = word(p.b + (8 * product + row) * 32 + 16 * j + 4 * quad_lane);
    const bool gives_a = quad_lane >> 1 == lanes_a, gives_b = quad_lane == lane_b;
    const u32 scale_a = gives_a ? word(p.a_scale + (16 * product + row + 8 * (quad_lane & 1)) * 4) : kNans;
    const u32 scale_b = gives_b ? word(p.b_scale + (8 * product + row) * 4) : kNans;
    float c[4] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {  // selectors are constants
        if ((product & 7) == i) Nvfp4::mma(c, a, b, c, scale_a, i & 1, scale_b, i >> 1);
    }
    for (int j = 0; j < 4; ++j) p.c[(16 * product + row + 8 * (j >> 1)) * 8 + 2 * quad_lane + (j & 1)] = c[j];
    float x[8];
    for (int j = 0; j < 8; ++j) x[j] = p.x[(32 * product + threadIdx.x) * 8 + j];
    p.packed[32 * product + threadIdx.x] = Nvfp4::pack(x);
}
