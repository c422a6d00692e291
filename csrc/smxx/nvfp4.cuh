// NVFP4: E2M1 elements, one E4M3 scale for 16 of them. encode_nvfp4 of vc_attention/reference/formats.py with
// four_over_six, in instructions that every arch from sm_80 has.
#pragma once

#include "common/tree.cuh"
#include "ptx/convert.cuh"
#include "ptx/softmax.cuh"
#include "smxx/input.cuh"

constexpr int kGroup = 16;           // elements that share a scale
constexpr float kNvfp4Max = 1536.f;  // 256 * 6: what an fp32 scale brings its amax to, amax / 4 still fits E4M3

// Elements are kept times 2^-14, where the bits of a half are those of E2M1, subnormals included; scales times 2^14.
constexpr float kElement = 1.f / 16384.f;

__device__ inline float nvfp4_inverse(float amax) {
    return amax < kTiny ? 0.f : __fdiv_rn(kNvfp4Max, amax);
}

__device__ inline float nvfp4_scale(float amax) {
    return amax < kTiny ? 0.f : __fdiv_rn(amax, kNvfp4Max);
}

// The E2M1 number nearest to x, ties to even, for x from 0 to below 7, where numbers beyond 6 begin.
__device__ inline float round_e2m1(float x) {
    // A float 2^22 times as large has neighbours as far apart as E2M1 has at x; below 1.5 they are those of 1.5.
    constexpr float kLarge = 4194304.f;
    float at = fmaxf(x, 1.5f * kElement);
    return __fmaf_rn(at, kLarge, -__fmaf_rn(at, kLarge, -x));
}

// 1 / x of an E4M3 number, correctly rounded: four bits have no quotient near the middle of two floats. 0 for 0.
__device__ inline float reciprocal_e4m3(float x) {
    float near = reciprocal_approx_ftz(x);
    return x > 0.f ? __fmaf_rn(__fmaf_rn(-x, near, 1.f), near, near) : 0.f;
}

// x / 6, correctly rounded: a product with 1 / 6 would be off where E4M3 has a tie.
__device__ inline float sixth(float x) {
    float near = x * (1.f / 6.f);
    return __fmaf_rn(__fmaf_rn(-6.f, near, x), 1.f / 6.f, near);
}

// 16 elements under one of the scales that the group may get.
struct Trial {
    float element[kGroup];  // magnitudes
    float scale, error;

    __device__ Trial(const float (&y)[kGroup], float micro, bool saturates) {
        scale = micro * (1.f / kElement);
        const float inverse = reciprocal_e4m3(scale);
        float squares[2][8];
#pragma unroll
        for (int i = 0; i < kGroup; ++i) element[i] = y[i] * inverse;
        if (saturates) {
#pragma unroll
            for (int i = 0; i < kGroup; ++i) element[i] = fminf(element[i], 6.f * kElement);
        }
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
            element[i] = round_e2m1(element[i]);
            float lost = __fmaf_rn(-element[i], scale, y[i]);  // the product is exact
            squares[i / 8][i % 8] = lost * lost;
        }
        error = tree8(squares[0]) + tree8(squares[1]);
    }
};

// The sign of each of eight values in the highest bit of a nibble, the first lowest; the other bits are noise.
__device__ inline u32 signs_x8(const float* x) {
    u32 signs = 0;
#pragma unroll
    for (int i = 7; i >= 0; --i) signs = __funnelshift_l(__float_as_uint(x[i]), signs, 4);
    return signs;
}

// E2M1 codes of eight magnitudes and signs, the first lowest; zero is never negative.
__device__ inline u32 pack_e2m1x8(const float* element, u32 signs) {
    // The upper bytes of halves: the code in bits 1 to 3.
    u32 even = __byte_perm(pack_f16x2(element[0], element[2]), pack_f16x2(element[4], element[6]), 0x7531);
    u32 odd = __byte_perm(pack_f16x2(element[1], element[3]), pack_f16x2(element[5], element[7]), 0x7531);
    u32 codes = (odd * 16 + even) >> 1;
    return codes | (codes + 0x77777777 & signs & 0x88888888);
}

// `magnitude`, itself of any sign, with the sign of x or its opposite.
__device__ inline float with_sign_of(float x, float magnitude) {
    return __uint_as_float(__float_as_uint(magnitude) ^ __float_as_uint(x) & 0x80000000u);
}

// A group of 16 values x * inverse, inverse >= 0.
struct Nvfp4Group {
    float y[kGroup], element[kGroup], scale;  // magnitudes
    u32 signs[2], micro;                      // `micro` is the scale as E4M3
    uint2 codes;

    __device__ Nvfp4Group(const float (&x)[kGroup], float inverse) {
        signs[0] = signs_x8(x);
        signs[1] = signs_x8(x + 8);
        u32 largest = 0;  // bits of magnitudes order as they do
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
            y[i] = fabsf(x[i]) * inverse;
            largest = max(largest, __float_as_uint(y[i]));
        }
        const float amax = __uint_as_float(largest);
        u32 micros = pack_e4m3x2(sixth(amax), amax * 0.25f);
        float scale6, scale4;
        unpack_e4m3x2(micros, scale6, scale4);
        // Next to E4M3's smallest numbers a quotient may be rounded down so far that amax lies beyond 6.
        const Trial six(y, scale6, (micros & 0xff) <= 2), four(y, scale4, false);
        bool better = four.error < six.error;
        micro = better ? micros >> 8 : micros & 0xff;
        scale = better ? four.scale : six.scale;
#pragma unroll
        for (int i = 0; i < kGroup; ++i) element[i] = better ? four.element[i] : six.element[i];
        codes = make_uint2(pack_e2m1x8(element, signs[0]), pack_e2m1x8(element + 8, signs[1]));
    }

    // What rounding lost.
    __device__ void lost(float (&x)[kGroup]) const {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
            float magnitude = __fmaf_rn(-element[i], scale, y[i]);
            x[i] = __uint_as_float(__float_as_uint(magnitude) ^ signs[i / 8] << (28 - 4 * (i % 8)) & 0x80000000u);
        }
    }
};
