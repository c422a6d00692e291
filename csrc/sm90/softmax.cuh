// One tile of scores of a thread: row maxima, the constants of its softmax, and its low-bit probabilities.
#pragma once

#include "ptx/softmax.cuh"
#include "sm90/config.cuh"

// Integer scores are accumulated on top of the bits of 1.5 * 2^23, so that they are floats as they land: exact while
// |dot| < 2^22, and |dot| <= 128 * 127 * 127 < 2^21.
constexpr int kMagicBits = 0x4B400000;
constexpr float kMagic = 12582912.f;
// The folded constant below is rounded by at most 1.2 units of a dot product. Two units of slack keep every code at or
// below the top code, hence every E4M3 byte a number, whatever the scale.
constexpr float kMagicWithSlack = kMagic + 2.f;
constexpr int kMasked = (int)0xFF800000;  // -infinity, and the smallest integer among scores

template <class C>
struct Softmax {
    float score_scale[2];  // of the thread's rows g and g + 8: q_scale * (kernel's constant)
    float slope[2], offset[2];  // code or exponent of a score with float bits s: s * slope + offset
    float reference[2];    // O and the row sums are in units of 2^reference
    float running_max[2];
    float weight[2];  // 2^(reference of the tile's codes - reference)
    float lead[2];    // log of that
    float tile_sum[2];  // exact exponentials of this thread

    // A masked tile's slope must not be 0, or -infinity would become NaN.
    template <bool kMaskedTile>
    __device__ __forceinline__ void set_slope(float k_scale) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            slope[r] = score_scale[r] * k_scale;
            if (kMaskedTile) slope[r] = fmaxf(slope[r], 1e-30f);
        }
    }

    // Row maxima of the tile over the quad, and what follows from them.
    __device__ __forceinline__ void set_reference(const int (&s)[64], bool first_tile) {
        int low[2] = {s[0], s[2]}, high[2] = {s[32], s[34]};  // two chains a row
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                low[r] = max(max(low[r], s[4 * i + 2 * r]), s[4 * i + 2 * r + 1]);
                high[r] = max(max(high[r], s[32 + 4 * i + 2 * r]), s[33 + 4 * i + 2 * r]);
            }
        }
        float row_max[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            // Key groups have scales of their own, so maxima meet in scaled units.
            row_max[r] = (__int_as_float(max(low[r], high[r])) - kMagic) * slope[r];
            row_max[r] = fmaxf(row_max[r], __shfl_xor_sync(kFullWarp, row_max[r], 1));
            row_max[r] = fmaxf(row_max[r], __shfl_xor_sync(kFullWarp, row_max[r], 2));
            if (C::kRunningMax) row_max[r] = running_max[r] = fmaxf(row_max[r], running_max[r]);
            if (first_tile) reference[r] = row_max[r];
            lead[r] = row_max[r] - reference[r];
            weight[r] = exp2_approx(lead[r] * (1.f / C::kStepsPerOctave));
            offset[r] = fmaf(-kMagicWithSlack, slope[r], C::kTopCode - row_max[r]);
            tile_sum[r] = 0.f;
        }
    }

    // Whether some row of the warp left its reference so far below that sums could overflow.
    __device__ __forceinline__ bool runs_away() const {
        return __any_sync(kFullWarp, fmaxf(lead[0], lead[1]) > C::kMaxLead);
    }

    // Scores 8 kFirst .. 8 kEnd -> A fragments of the PV product: the key slots make both layouts agree.
    template <int kFirst, int kEnd>
    __device__ __forceinline__ void encode(const int (&s)[64], u32 (&p)[16]) {
#pragma unroll
        for (int k = kFirst; k < kEnd; ++k) {
            float e[8];
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const int r = j >> 1 & 1;
                e[j] = fmaf(__int_as_float(s[8 * k + j]), slope[r], offset[r]);
                if (!C::kExpCast) e[j] = exp2_approx(e[j]);
            }
            if (!C::kExpCast) {
                tile_sum[0] += (e[0] + e[1]) + (e[4] + e[5]);
                tile_sum[1] += (e[2] + e[3]) + (e[6] + e[7]);
            }
            if (C::kProbability == Probability::kExact) {
                p[2 * k] = pack_e4m3x4(e[0], e[1], e[4], e[5]);
                p[2 * k + 1] = pack_e4m3x4(e[2], e[3], e[6], e[7]);
            } else {
                p[2 * k] = pack_u8x4(e[0], e[1], e[4], e[5]);
                p[2 * k + 1] = pack_u8x4(e[2], e[3], e[6], e[7]);
            }
        }
    }
};

// Keys from `valid` on count as -infinity.
__device__ __forceinline__ void mask_scores(int (&s)[64], int valid) {
    const int quad_lane = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        const int key = (i >> 3) * 16 + 4 * quad_lane + (i >> 2 & 1) * 2 + (i & 1);
        if (key >= valid) s[i] = kMasked;
    }
}
