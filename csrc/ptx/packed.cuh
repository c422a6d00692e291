// Two 16-bit numbers in a register, of sm_90 and later: one instruction each, and max(add(a, b), c) is one as well.
#pragma once

#include "common/types.cuh"

__device__ __forceinline__ u32 add_s16x2(u32 a, u32 b) {
    u32 r;
    asm("add.s16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

__device__ __forceinline__ u32 max_s16x2(u32 a, u32 b) {
    u32 r;
    asm("max.s16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

// a * b + c in halves, rounded once, subnormal numbers kept.
__device__ __forceinline__ u32 fma_f16x2(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

// The same, or 0 where it is negative.
__device__ __forceinline__ u32 fma_relu_f16x2(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.relu.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

// A mask of the lowest `count` bits; of all from 32 on.
__device__ __forceinline__ u32 low_bits(int count) {
    u32 r;
    asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(r) : "r"(count));
    return r;
}
