// Warp-wide tensor-core products (PTX ISA, "Matrix multiply-accumulate operation using mma instruction") and the loads
// that feed them. With g = lane / 4, t = lane % 4 every product has (C and D of 32 bits)
//
//   C, D  d[0], d[1] row g, columns 2t and 2t + 1; d[2], d[3] row g + 8
//   A     a[0] row g, a[1] row g + 8: bytes 4t..4t+3 of the first 16 bytes of a step; a[2], a[3] the same of the last
//   16 B     b[0] column g, bytes 4t..4t+3 of the first 16 bytes of a step; b[1] of the last 16
//
// where a step is 32 bytes along K, whatever the element: 32 int8 or E4M3 (m16n8k32), 64 E2M1 (m16n8k64), 16 halves
// (m16n8k16), 8 TF32 (m16n8k8).
#pragma once

#include "common/types.cuh"

// Four 8 x 16 byte matrices: lane l gives the address of row l % 8 of matrix l / 8 and gets word t of row g of each.
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

#define VC_MMA(name, type, c, shape)                                                                                \
    __device__ __forceinline__ void name(type(&d)[4], const u32* a, const u32* b, const type(&from)[4]) {           \
        asm("mma.sync.aligned." shape " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"        \
            : "=" c(d[0]), "=" c(d[1]), "=" c(d[2]), "=" c(d[3])                                                    \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), c(from[0]), c(from[1]), c(from[2]), \
              c(from[3]));                                                                                          \
    }

// d = a b + from.
VC_MMA(mma_s8, int, "r", "m16n8k32.row.col.s32.s8.s8.s32")
VC_MMA(mma_u8s8, int, "r", "m16n8k32.row.col.s32.u8.s8.s32")
VC_MMA(mma_f16, float, "f", "m16n8k16.row.col.f32.f16.f16.f32")
VC_MMA(mma_tf32, float, "f", "m16n8k8.row.col.f32.tf32.tf32.f32")

#undef VC_MMA

// d = a b + from in halves: d[0] row g, columns 2t (low half) and 2t + 1; d[1] row g + 8. GeForce cards multiply twice
// as fast as with sums in fp32. sm_89 and later, CUDA 12.8 and later.
__device__ __forceinline__ void mma_e4m3(u32 (&d)[2], const u32* a, const u32* b, const u32 (&from)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e4m3.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%8, %9};"
        : "=r"(d[0]), "=r"(d[1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(from[0]), "r"(from[1]));
}
