// What the softmax of an attention loop needs beyond plain arithmetic, one or two instructions each.
#pragma once

#include "common/types.cuh"

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Four floats -> bytes 0..255, a lowest: rounded to nearest even, saturated, NaN -> 0. Conversion and packing of a pair
// become one F2IP instruction; where there is none (sm_80), the lowest bits of a sum with 1.5 * 2^23 are the byte.
__device__ __forceinline__ u32 pack_u8x4(float a, float b, float c, float d) {
#if __CUDA_ARCH__ < 860
    const float x[4] = {a, b, c, d};
    u32 bits[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) bits[i] = __float_as_uint(fminf(fmaxf(x[i], 0.f), 255.f) + 12582912.f);
    return __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
#else
    u32 r;
    asm("{\n"
        ".reg .b32 high;\n"
        "cvt.pack.sat.u8.s32.b32 high, %4, %3, 0;\n"
        "cvt.pack.sat.u8.s32.b32 %0, %2, %1, high;\n"
        "}"
        : "=r"(r)
        : "r"(__float2int_rn(a)), "r"(__float2int_rn(b)), "r"(__float2int_rn(c)), "r"(__float2int_rn(d)));
    return r;
#endif
}

// Four floats -> E4M3 bytes, a lowest, saturated to +-448.
__device__ __forceinline__ u32 pack_e4m3x4(float a, float b, float c, float d) {
    u32 r;
    asm("{\n"
        ".reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n"
        "}"
        : "=r"(r)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return r;
}

// Two floats -> packed bf16 or fp16, a in the low half. fp16 saturates to +-65504.
__device__ __forceinline__ u32 pack_bf16x2(float a, float b) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
}

__device__ __forceinline__ u32 pack_f16x2(float a, float b) {
    u32 r;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
}

// Two halves -> floats, the lower first.
__device__ __forceinline__ float2 unpack_f16x2(u32 x) {
    float2 r;
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
        : "=f"(r.x), "=f"(r.y)
        : "r"(x));
    return r;
}
