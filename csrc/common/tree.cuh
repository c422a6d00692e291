// tree_sum of vc_attention/reference/arithmetic.py: neighbours are added until one sum is left.
#pragma once

#include "common/types.cuh"

__device__ inline float tree8(const float (&x)[8]) {
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

// tree_sum of the `count` values x[i * stride], count up to 2^20. Zero padding adds nothing, so a sum that has no right
// neighbour simply moves up.
__device__ inline float tree_sum(const float* x, int count, int stride) {
    constexpr int kLevels = 18;
    float waiting[kLevels];  // waiting[l]: sum of 8 * 2^l values that waits for its right neighbour
    int batches = ceil_div(count, 8);
    for (int batch = 0; batch < batches; ++batch) {
        float value[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            int at = 8 * batch + i;
            value[i] = at < count ? x[(i64)at * stride] : 0.f;
        }
        float sum = tree8(value);
        bool moving = true;  // a flag, not a break: a run-time index would move `waiting` out of the registers
#pragma unroll
        for (int level = 0; level < kLevels; ++level) {
            bool meets = (batch >> level) & 1;
            if (moving && !meets) waiting[level] = sum;
            moving = moving && meets;
            if (moving) sum = waiting[level] + sum;
        }
    }
    float total = 0.f;
#pragma unroll
    for (int level = 0; level < kLevels; ++level)
        if ((batches >> level) & 1) total = waiting[level] + total;
    return total;
}
