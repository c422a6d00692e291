// Reading q, k and v: rows of 16-bit elements of any layout, widened to clean fp32.
#pragma once

#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "smxx/params.cuh"

constexpr float kMaxInput = 1099511627776.f;     // 2^40
constexpr float kTiny = 5.421010862427522e-20f;  // 2^-64: an amax or rms below counts as zero

struct Bf16 {
    static constexpr u32 kLargest = 0x5380;  // 2^40; a magnitude above it, or a NaN, needs cleaning
    __device__ static u32 max_abs(u32 a, u32 b) { return max_abs_bf16x2(a, b); }
    __device__ static float low(u32 word) { return __uint_as_float(word << 16); }
    __device__ static float high(u32 word) { return __uint_as_float(word & 0xffff0000u); }
};

struct Fp16 {
    static constexpr u32 kLargest = 0x7bff;  // 65504
    __device__ static u32 max_abs(u32 a, u32 b) { return max_abs_f16x2(a, b); }
    __device__ static float low(u32 word) { return f16_to_f32((u16)word); }
    __device__ static float high(u32 word) { return f16_to_f32((u16)(word >> 16)); }
};

// NaN becomes 0, the rest clamps to +-2^40.
__device__ inline float clean(float x) {
    return x != x ? 0.f : fminf(fmaxf(x, -kMaxInput), kMaxInput);
}

__device__ inline const u16* head(const View& v, int bh) {
    return v.data + (bh / v.heads) * v.stride_batch + (bh % v.heads) * v.stride_head;
}

// kRows tokens (null: zeros) x kChunks chunks of 8 channels, the chunks `step` channels apart.
template <int kRows, int kChunks>
__device__ inline void load_rows(const View& v, const u16* const (&row)[kRows], int channel, int step,
                                 u32 (&word)[kRows][kChunks][4]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
            uint4 quad = make_uint4(0, 0, 0, 0);
            if (row[r] != nullptr && v.vector) quad = load_nc_v4(row[r] + channel + chunk * step);
            word[r][chunk][0] = quad.x;
            word[r][chunk][1] = quad.y;
            word[r][chunk][2] = quad.z;
            word[r][chunk][3] = quad.w;
        }
    }
    if (v.vector) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
            const u16* element = row[r] + (channel + chunk * step) * v.stride_channel;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (row[r] == nullptr) break;
                u32 low = element[2 * i * v.stride_channel], high = element[(2 * i + 1) * v.stride_channel];
                word[r][chunk][i] = low | high << 16;
            }
        }
    }
}

// Widens to fp32 and cleans. Inputs that need cleaning are rare, so one packed maximum looks for them.
template <class T, int kChunks, int kWords>
__device__ inline void widen(const u32 (&word)[kChunks][kWords], float (&x)[kChunks][2 * kWords]) {
    u32 largest = 0;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            largest = T::max_abs(largest, word[chunk][i]);
            x[chunk][2 * i] = T::low(word[chunk][i]);
            x[chunk][2 * i + 1] = T::high(word[chunk][i]);
        }
    }
    if ((largest & 0xffffu) <= T::kLargest && (largest >> 16) <= T::kLargest) return;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
        for (int i = 0; i < 2 * kWords; ++i) x[chunk][i] = clean(x[chunk][i]);
    }
}
