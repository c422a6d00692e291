// NVFP4 products: the tensor cores' of sm_120a, and the same arithmetic on halves for GPUs that have none.
//
// D = A B + C, m16n8k64, E2M1 elements, one UE4M3 scale for each 16 of them along K (PTX ISA, "Block scaling for
// mma.sync" and "Matrix fragments for mma.m16n8k64"). Fragments are those of ptx/mma.cuh: a register holds eight
// nibbles, the lowest first along K. The scales of a row of A are one register, byte j for elements 16j..16j + 15; the
// lane with t = 2 lanes_a holds that of row g, the one with t = 2 lanes_a + 1 that of row g + 8. The scales of column g
// of B are in the lane with t = lane_b. Both selectors are constants.
#pragma once

#include "ptx/convert.cuh"
#include "ptx/mma.cuh"

struct NativeNvfp4 {
    static __device__ __forceinline__ void mma(float (&d)[4], const u32* a, const u32* b, const float (&from)[4],
                                               u32 scale_a, int lanes_a, u32 scale_b, int lane_b) {
        asm("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13}, {%14}, {0, %16}, {%15}, {0, %17};"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(from[0]), "f"(from[1]),
              "f"(from[2]), "f"(from[3]), "r"(scale_a), "r"(scale_b), "h"((u16)lanes_a), "h"((u16)lane_b));
    }

    // Eight floats -> E2M1 nibbles, x[0] lowest, rounded to nearest even, saturated to +-6. NaN is some number.
    static __device__ __forceinline__ u32 pack(const float (&x)[8]) {
        u32 r;
        asm("{\n"
            ".reg .b8 b0, b1, b2, b3;\n"
            "cvt.rn.satfinite.e2m1x2.f32 b0, %2, %1;\n"
            "cvt.rn.satfinite.e2m1x2.f32 b1, %4, %3;\n"
            "cvt.rn.satfinite.e2m1x2.f32 b2, %6, %5;\n"
            "cvt.rn.satfinite.e2m1x2.f32 b3, %8, %7;\n"
            "mov.b32 %0, {b0, b1, b2, b3};\n"
            "}"
            : "=r"(r)
            : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "f"(x[4]), "f"(x[5]), "f"(x[6]), "f"(x[7]));
        return r;
    }
};

// E2M1 times UE4M3 has at most six significant bits and lies in 2^-10..2688: a half holds it exactly.
struct EmulatedNvfp4 {
    static __device__ __forceinline__ void mma(float (&d)[4], const u32* a, const u32* b, const float (&from)[4],
                                               u32 scale_a, int lanes_a, u32 scale_b, int lane_b) {
        const int lane = threadIdx.x & 31, quad = lane & ~3;
        const u32 scales[3] = {__shfl_sync(kFullWarp, scale_a, quad + 2 * lanes_a),
                               __shfl_sync(kFullWarp, scale_a, quad + 2 * lanes_a + 1),
                               __shfl_sync(kFullWarp, scale_b, quad + lane_b)};
        float sum[4] = {from[0], from[1], from[2], from[3]};
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // elements 32 half..32 half + 31, of which a lane has eight
            const int byte = 2 * half + (lane >> 1 & 1);
            u32 top[4], bottom[4], column[4];  // pairs of halves
            decode(a[2 * half], scales[0] >> 8 * byte, top);
            decode(a[2 * half + 1], scales[1] >> 8 * byte, bottom);
            decode(b[half], scales[2] >> 8 * byte, column);
#pragma unroll
            for (int i = 0; i < 4; i += 2) {  // a product does not mind the order of its terms
                const u32 row[4] = {top[i], bottom[i], top[i + 1], bottom[i + 1]};
                mma_f16(sum, row, column + i, sum);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) d[i] = sum[i];
    }

    // Eight nibbles times the scale in the low byte -> four pairs of halves.
    static __device__ __forceinline__ void decode(u32 nibbles, u32 scale, u32 (&halves)[4]) {
        u32 factor;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(factor) : "h"((u16)((scale & 0x7f) * 0x101)));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 low = nibbles >> 8 * i & 15, high = nibbles >> (8 * i + 4) & 15;
            // Exponent and mantissa where a half has them, with an exponent bias that is 14 too small.
            const u32 pair = (low & 8) << 12 | (low & 7) << 9 | (high & 8) << 28 | (high & 7) << 25;
            asm("{\n"
                ".reg .b32 x;\n"
                "mul.rn.f16x2 x, %1, %2;\n"
                "mul.rn.f16x2 %0, x, %3;\n"
                "}"
                : "=r"(halves[i])
                : "r"(pair), "r"(0x74007400), "r"(factor));  // 2^14
        }
    }

    // As NativeNvfp4::pack, of values that are not negative.
    static __device__ __forceinline__ u32 pack(const float (&x)[8]) {
        u32 r = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const u32 code = (x[i] > 0.25f) + (x[i] >= 0.75f) + (x[i] > 1.25f) + (x[i] >= 1.75f) + (x[i] > 2.5f) +
                             (x[i] >= 3.5f) + (x[i] > 5.f);
            r |= code << 4 * i;
        }
        return r;
    }
};
