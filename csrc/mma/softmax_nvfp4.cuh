// A tile of scores of a thread -> NVFP4 probabilities: E2M1 nibbles, and one UE4M3 scale for 16 neighbouring keys.
//
// The row maximum so far lands at 448 * 6, the largest number of the two levels. A thread has, of each of its two rows,
// eight of the 16 keys of a scale; the lane beside it has the others.
#pragma once

#include "common/softmax.cuh"

template <class C>
struct Nvfp4Softmax {
    static constexpr float kLog2Gain = 11.3923174f;  // of 448 * 6
    static constexpr float kLog2Six = 2.58496250f;

    float running_max[2] = {-1e30f, -1e30f};
    float slope[2];         // exponents of two per unit of a score
    float offset[2];        // exponent of a score s: s * slope + offset
    float factor[2];        // what older sums lose because the maximum has risen
    float shift[2];         // what all scores of a row lack: the product of means, or minus what INT8 scores start from
    float group_max[2][4];  // [row][32 keys], of the thread's own eight

    __device__ __forceinline__ void set_slope(const float (&q_scale)[2], float k_scale) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            // Not 0: of a masked score that would make NaN.
            slope[r] = fmaxf(fminf(q_scale[r] * k_scale, C::kMaxSlope), 1e-30f);
        }
    }

    __device__ __forceinline__ void set_reference(const int (&s)[64]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int group = 0; group < 4; ++group) {
                const int* x = s + 16 * group + 2 * r;
                float top = fmaxf(__int_as_float(x[0]), __int_as_float(x[1]));
#pragma unroll
                for (int i = 4; i < 16; i += 4) {
                    top = fmaxf(fmaxf(top, __int_as_float(x[i])), __int_as_float(x[i + 1]));
                }
                group_max[r][group] = top;
            }
            const float* g = group_max[r];
            float row_max = fmaxf(fmaxf(g[0], g[1]), fmaxf(g[2], g[3]));
            row_max = (row_max + shift[r]) * slope[r];
            row_max = fmaxf(row_max, __shfl_xor_sync(kFullWarp, row_max, 1));
            row_max = fmaxf(row_max, __shfl_xor_sync(kFullWarp, row_max, 2));
            row_max = fmaxf(row_max, running_max[r]);
            factor[r] = exp2_approx(running_max[r] - row_max);
            running_max[r] = row_max;
            offset[r] = fmaf(shift[r], slope[r], kLog2Gain - row_max);
        }
    }

    __device__ __forceinline__ bool must_rescale() const {
        return __any_sync(kFullWarp, factor[0] != 1.f || factor[1] != 1.f);
    }

    // A fragments of the PV product, [64 keys], and the register of their scales that this lane supplies.
    __device__ __forceinline__ void encode(const int (&s)[64], u32 (&p)[2][4], u32& scales) const {
        u32 codes[2];  // scale bytes of the row, one for each group of 32 keys: of the 16 that this pair of lanes has
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float scale[4];
#pragma unroll
            for (int group = 0; group < 4; ++group) {
                float top = fmaf(group_max[r][group], slope[r], offset[r] - kLog2Six);
                top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 1));
                scale[group] = exp2_approx(top);
            }
            codes[r] = pack_e4m3x4(scale[0], scale[1], scale[2], scale[3]);
            unpack_e4m3x2(codes[r], scale[0], scale[1]);
            unpack_e4m3x2(codes[r] >> 16, scale[2], scale[3]);
#pragma unroll
            for (int group = 0; group < 4; ++group) {
                // Dividing by the decoded scale. Where that is 0 any nibble means 0.
                const float bias = offset[r] - log2_approx(scale[group]);
                const int* x = s + 16 * group + 2 * r;
                float e[8];
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    e[i] = exp2_approx(fmaf(__int_as_float(x[4 * (i >> 1) + (i & 1)]), slope[r], bias));
                }
                p[group >> 1][2 * (group & 1) + r] = C::Nvfp4::pack(e);
            }
        }
        scales = scales_of_lane(codes);
    }

    // Lanes 0 and 1 of a quad supply the scales of the first 64 keys of rows g and g + 8, lanes 2 and 3 of the last 64.
    // Lanes 0 and 1 have those of keys 0..15 of every 32, lanes 2 and 3 of keys 16..31.
    static __device__ __forceinline__ u32 scales_of_lane(const u32 (&codes)[2]) {
        const int quad_lane = threadIdx.x & 3;
        const u32 own = quad_lane & 1 ? codes[1] : codes[0];
        const u32 other = __shfl_xor_sync(kFullWarp, own, 2);
        return __byte_perm(own, other, quad_lane & 2 ? 0x3726 : 0x5140);
    }
};

// Keys from `valid` on count as -infinity.
__device__ __forceinline__ void mask_nvfp4_scores(int (&s)[64], int valid) {
    const int quad_lane = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        const int key = (i >> 4) * 32 + 8 * quad_lane + (i >> 2 & 3) * 2 + (i & 1);
        if (key >= valid) s[i] = kMasked;
    }
}
