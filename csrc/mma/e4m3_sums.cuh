// Accumulators of E4M3 products: halves, with which GeForce cards multiply twice as fast as with floats. Compilers
// before CUDA 12.8, which RTX 40 may meet, have only the latter; operands are the same.
#pragma once

#include "ptx/mma.cuh"
#include "ptx/softmax.cuh"

#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1208
using E4m3Sums = u32[2];

// Columns 2t and 2t + 1 of row g + 8r.
__device__ __forceinline__ float2 columns(const E4m3Sums& d, int r) {
    return unpack_f16x2(d[r]);
}
#else
using E4m3Sums = float[4];

__device__ __forceinline__ void mma_e4m3(E4m3Sums& d, const u32* a, const u32* b, const E4m3Sums& from) {
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(from[0]), "f"(from[1]), "f"(from[2]),
          "f"(from[3]));
}

__device__ __forceinline__ float2 columns(const E4m3Sums& d, int r) {
    return {d[2 * r], d[2 * r + 1]};
}
#endif
