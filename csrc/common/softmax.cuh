// A step of scores of a thread (two tiles): row maxima, the constants of its softmax, its low-bit probabilities.
#pragma once

#include "common/attention.cuh"
#include "common/quad.cuh"
#include "common/row_reference.cuh"
#include "ptx/mma.cuh"
#include "ptx/softmax.cuh"

// Integer scores are accumulated on top of the bits of 1.5 * 2^23, so that they are floats as they land: exact while
// |dot| < 2^22, and |dot| <= 128 * 127 * 127 < 2^21.
constexpr int kMagicBits = 0x4B400000;
constexpr float kMagic = 12582912.f;
// The folded constant below is rounded by at most 1.2 units of a dot product. Two units of slack keep every code at or
// below the top code, hence every E4M3 byte a number, whatever the scale.
constexpr float kMagicWithSlack = kMagic + 2.f;
constexpr int kMasked = (int)0xFF800000;  // -infinity, and the smallest integer among scores

template <class C>
struct Softmax : RowReference {
    float slope[2][2], offset[2][2];  // [tile][row] code or exponent of a score with float bits s: s * slope + offset
    float running_max[2];
    float row_max[2];  // of the step, or, where the reference is the running one, of all so far
    // [tile][row] exact exponentials of this thread, or, where C::kSumsByProduct, of all keys: sums of pairs as halves,
    // multiplied with ones, need no reduction over lanes.
    float sum[2][2];

    // Scores of more than some 10^3 nats per unit of standard deviation are compressed: the slack of kMagicWithSlack is
    // two units of a score, which must stay small in codes. A masked tile's slope must not be 0, or -infinity would
    // become NaN.
    template <bool kMasks>
    __device__ __forceinline__ void set_slope(int tile, const float (&q_scale)[2], float k_scale) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            slope[tile][r] = fminf(q_scale[r] * k_scale, C::kMaxSlope);
            if (kMasks) slope[tile][r] = fmaxf(slope[tile][r], 1e-30f);
        }
    }

    // Row maxima over the quad, and what the codes of the step count from.
    __device__ __forceinline__ void set_offsets(const int (&s)[128]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            int top[2];
#pragma unroll
            for (int tile = 0; tile < 2; ++tile) {
                const int* x = s + 64 * tile;
                int low = x[2 * r], high = x[32 + 2 * r];  // two chains
#pragma unroll
                for (int i = 0; i < 32; i += 4) {
                    low = max(max(low, x[i + 2 * r]), x[i + 2 * r + 1]);
                    high = max(max(high, x[32 + i + 2 * r]), x[33 + i + 2 * r]);
                }
                top[tile] = max(low, high);
            }
            // Key groups have scales of their own, so maxima meet in scaled units.
            row_max[r] =
                fmaxf((__int_as_float(top[0]) - kMagic) * slope[0][r], (__int_as_float(top[1]) - kMagic) * slope[1][r]);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            row_max[r] = quad_max(row_max[r]);
            if (C::kRunningMax) row_max[r] = running_max[r] = fmaxf(row_max[r], running_max[r]);
#pragma unroll
            for (int tile = 0; tile < 2; ++tile) {
                offset[tile][r] = fmaf(-kMagicWithSlack, slope[tile][r], C::kTopCode - row_max[r]);
                sum[tile][r] = 0.f;
            }
        }
    }

    // What the codes count in, and so what their products weigh.
    __device__ __forceinline__ void weigh(bool first) {
#pragma unroll
        for (int r = 0; r < 2; ++r) refer(r, row_max[r] * (1.f / C::kStepsPerOctave), first);
    }

    __device__ __forceinline__ void set_reference(const int (&s)[128], bool first) {
        set_offsets(s);
        weigh(first);
    }

    // Scores -> A fragments of the PV product: the key slots make both layouts agree.
    __device__ __forceinline__ void encode(int tile, const int* s, u32 (&p)[16]) {
        float row_sums[4] = {};
        u32 halves[4];
        float start[2] = {offset[tile][0], offset[tile][1]};
#pragma unroll
        for (int k = 0; k < 8; ++k) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float e[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int score = s[8 * k + 4 * (j >> 1) + 2 * r + (j & 1)];
                    e[j] = fmaf(__int_as_float(score), slope[tile][r], start[r]);
                    if (!C::kExpCast) e[j] = exp2_approx(e[j]);
                }
                if constexpr (C::kSumsByProduct) {
                    halves[2 * (k & 1) + r] = pack_f16x2(e[0] + e[1], e[2] + e[3]);
                } else if (!C::kExpCast) {
                    sum[tile][r] += (e[0] + e[1]) + (e[2] + e[3]);
                    // No other number, but it has to wait for these exponentials. Without that ptxas writes all others
                    // first and additions last, and exponentials, one in eight clocks, leave the gaps empty.
                    start[r] = fmaf(sum[tile][r], 0.f, offset[tile][r]);
                }
                p[2 * k + r] = C::kProbability == Probability::kExact ? pack_e4m3x4(e[0], e[1], e[2], e[3])
                                                                      : pack_u8x4(e[0], e[1], e[2], e[3]);
            }
            if constexpr (C::kSumsByProduct) {
                constexpr u32 kOnes[2] = {0x3c003c00, 0x3c003c00};
                if (k & 1) mma_f16(row_sums, halves, kOnes, row_sums);
            }
        }
        if constexpr (C::kSumsByProduct) {
            sum[tile][0] = row_sums[0];
            sum[tile][1] = row_sums[2];
        }
    }
};

// Keys from `valid` on count as -infinity.
__device__ __forceinline__ void mask_scores(int (&s)[128], int valid) {
    const int quad_lane = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < 128; ++i) {
        const int key = (i >> 3) * 16 + 4 * quad_lane + (i >> 2 & 1) * 2 + (i & 1);
        if (key >= valid) s[i] = kMasked;
    }
}
