// Integer tensor-core product of sm_80 and later.
#pragma once

#include "common/types.cuh"

// D = A B + C, m16n8k32, int8 x int8 -> int32. With g = lane / 4, t = lane % 4: a[0..3] hold rows g, g+8, g, g+8 at
// k = 4t..4t+3 (a[2], a[3]: + 16), b0 and b1 column g at the same k, c rows g (c[0], c[1]) and g+8, columns 2t and
// 2t+1.
__device__ inline void mma_s8_16x8x32(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, const int (&c)[4]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}
