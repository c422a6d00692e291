// Row geometry: 128 threads, four lanes a row, 128 rows in four passes. Reads are 64 bytes a row and instruction, and a
// row's reductions cross two lanes only.
#pragma once

#include "smxx/input.cuh"

constexpr int kQuadThreads = 128;
constexpr int kPasses = 4;

struct Quad {
    int warp = threadIdx.x / 32;
    int row = threadIdx.x % 32 / 4;  // 0..7 within a pass
    int column = threadIdx.x % 4;    // holds channels 8 * (column + 4 * chunk) + i, of NVFP4 16
};

template <int kChunks, int kWidth>
__device__ inline float thread_amax(const float (&x)[kChunks][kWidth]) {
    float amax = 0.f;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) amax = fmaxf(amax, fabsf(x[chunk][i]));
    }
    return amax;
}

// Every row of the thread at once: kRows * D / 32 loads in flight. A negative token reads as zeros.
template <int kRows, int kChunks>
__device__ inline void load_quads(const View& v, const u16* base, const int (&token)[kRows], const Quad& at,
                                  u32 (&word)[kRows][kChunks][4]) {
    const u16* row[kRows];
#pragma unroll
    for (int pass = 0; pass < kRows; ++pass)
        row[pass] = token[pass] < 0 ? nullptr : base + (i64)token[pass] * v.stride_token;
    load_rows(v, row, 8 * at.column, 32, word);
}
