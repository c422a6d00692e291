// NVFP4: E2M1 elements, one E4M3 scale for 16 of them. encode_nvfp4 of vc_attention/reference/formats.py with
// four_over_six, in instructions that every arch from sm_80 has.
#pragma once

#include "common/tree.cuh"
#include "ptx/convert.cuh"
#include "smxx/input.cuh"

constexpr float kNvfp4Max = 1536.f;  // 256 * 6: what an fp32 scale brings its amax to, amax / 4 still fits E4M3

__device__ inline float nvfp4_inverse(float amax) {
    return amax < kTiny ? 0.f : __fdiv_rn(kNvfp4Max, amax);
}

__device__ inline float nvfp4_scale(float amax) {
    return amax < kTiny ? 0.f : __fdiv_rn(amax, kNvfp4Max);
}

// The E2M1 number nearest to x, ties to even, saturating at 6; zero is never negative.
__device__ inline float round_e2m1(float x) {
    x = fminf(fmaxf(x, -6.f), 6.f);
    u32 bits = __float_as_uint(x);
    // Steps are half the power of two at or below |x|, half of 1 below 1: those of a float 2^22 times as large.
    u32 large = (max(bits & 0x7f800000u, 0x3f800000u) + (22u << 23)) | (bits & 0x80000000u);
    return (x + __uint_as_float(large)) - __uint_as_float(large);
}

// Code of an E2M1 number: times 2^-126 it is a float with E2M1's exponent bias, subnormals included.
__device__ inline u32 e2m1_code(float x) {
    u32 bits = __float_as_uint(x * 1.17549435e-38f);
    return (bits >> 28 & 8) | (bits >> 22 & 7);
}

// Eight neighbours of a group of 16, the other eight are those of lane ^ 1: E2M1 codes, the first lowest, their E4M3
// scale, and what both mean.
__device__ inline void encode_nvfp4(const float (&y)[8], u32& codes, u32& micro, float (&decoded)[8]) {
    float amax = 0.f, least = 0.f, taken[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) amax = fmaxf(amax, fabsf(y[i]));
    amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, 1));
#pragma unroll 1  // half the code, and kernels have dozens of groups
    for (int top = 6; top >= 4; top -= 2) {
        u32 code = pack_e4m3x2(__fdiv_rn(amax, (float)top), 0.f);
        float scale, unused, element[8], squares[8];
        unpack_e4m3x2(code, scale, unused);
        float inverse = scale > 0.f ? __frcp_rn(scale) : 0.f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            element[i] = round_e2m1(y[i] * inverse);
            float lost = y[i] - element[i] * scale;
            squares[i] = lost * lost;
        }
        float half = tree8(squares), error = half + __shfl_xor_sync(kFullWarp, half, 1);
        if (top == 6 || error < least) {
            least = error;
            micro = code;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                taken[i] = element[i];
                decoded[i] = element[i] * scale;
            }
        }
    }
    codes = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) codes |= e2m1_code(taken[i]) << 4 * i;
}
