// Walsh-Hadamard transform of one row, unnormalised, butterflies (a + b, a - b) with stride 1, 2, 4, ..., D/2.
#pragma once

#include "common/types.cuh"

// Four lanes of a quad share the row: lane `column` holds channels W * (column + 4 * chunk) + i in x[chunk][i], W 8 or
// 16. Only strides W and 2 W cross lanes; the order of the strides, hence every bit, is the reference's.
template <int kChunks, int kWidth>
__device__ inline void hadamard_quad(float (&x)[kChunks][kWidth], int column) {
#pragma unroll
    for (int stride = 1; stride < kWidth; stride *= 2) {
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                if (i & stride) continue;
                float a = x[chunk][i], b = x[chunk][i + stride];
                x[chunk][i] = a + b;
                x[chunk][i + stride] = a - b;
            }
        }
    }
#pragma unroll
    for (int lane_bit = 1; lane_bit < 4; lane_bit *= 2) {
        float sign = column & lane_bit ? -1.f : 1.f;
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                float partner = __shfl_xor_sync(kFullWarp, x[chunk][i], lane_bit);
                x[chunk][i] = __fmaf_rn(x[chunk][i], sign, partner);  // exact product: one rounding, as a + b or a - b
            }
        }
    }
#pragma unroll
    for (int stride = 1; stride < kChunks; stride *= 2) {
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
            if (chunk & stride) continue;
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                float a = x[chunk][i], b = x[chunk + stride][i];
                x[chunk][i] = a + b;
                x[chunk + stride][i] = a - b;
            }
        }
    }
}
