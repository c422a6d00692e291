// Number conversions, one instruction each where the hardware has it: they round to nearest even. And a reciprocal.
#pragma once

#include "common/types.cuh"

// Packed maximum of magnitudes, NaN wins.
__device__ inline u32 max_abs_bf16x2(u32 a, u32 b) {
    u32 r;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b & 0x7fff7fffu));
    return r;
}

__device__ inline u32 max_abs_f16x2(u32 a, u32 b) {
    u32 r;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b & 0x7fff7fffu));
    return r;
}

__device__ inline float f16_to_f32(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

// Within one unit in the last place of 1 / x, denormals as zeros.
__device__ inline float reciprocal_approx_ftz(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Four floats -> four int8 in a word, x0 in the low byte, saturating to -128..127.
__device__ inline u32 pack_s8x4(float x0, float x1, float x2, float x3) {
    int i0 = __float2int_rn(x0), i1 = __float2int_rn(x1), i2 = __float2int_rn(x2), i3 = __float2int_rn(x3);
    u32 high, word;
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(high) : "r"(i3), "r"(i2));
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(i1), "r"(i0), "r"(high));
    return word;
}

// Two floats -> two E4M3 bytes, x0 in the low byte, saturating to +-448.
__device__ inline u32 pack_e4m3x2(float x0, float x1) {
#if __CUDA_ARCH__ >= 890
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(x1), "f"(x0));
    return pair;
#else
    u32 pair = 0;
    const float x[2] = {x0, x1};
    for (int i = 0; i < 2; ++i) {
        float a = fminf(fabsf(x[i]), 448.f);
        u32 bits = __float_as_uint(a);
        // Below 2^-6 the step is 2^-9; above, keep three mantissa bits and move the exponent bias from 127 to 7.
        u32 code = a < 0.015625f ? __float2uint_rn(a * 512.f) : ((bits + 0x7ffffu + ((bits >> 20) & 1)) >> 20) - 960;
        pair |= (code | ((__float_as_uint(x[i]) >> 24) & 0x80u)) << (8 * i);
    }
    return pair;
#endif
}

// Two E4M3 bytes (not NaN) -> floats, exact.
__device__ inline void unpack_e4m3x2(u32 pair, float& x0, float& x1) {
#if __CUDA_ARCH__ >= 890
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((u16)pair));
    x0 = f16_to_f32((u16)halves);
    x1 = f16_to_f32((u16)(halves >> 16));
#else
    // The bits are those of a half whose exponent bias is off by 8.
    x0 = f16_to_f32((u16)(((pair & 0x80u) << 8) | ((pair & 0x7fu) << 7))) * 256.f;
    x1 = f16_to_f32((u16)((pair & 0x8000u) | ((pair & 0x7f00u) >> 1))) * 256.f;
#endif
}
