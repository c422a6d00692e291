// ExpCast from scores of 16 bits, two in a register (expcast_packed of vc_attention/reference/probability.py). A score
// costs two instructions until it is a byte instead of four; 128 of them need 64 registers.
//
// Fixed point: the bits of a half below 2^-13 count its units of 2^-24. So integers up to 2048 are halves as they are,
// and what an FMA of halves rounds to is an integer again.
#pragma once

#include "common/row_reference.cuh"
#include "ptx/packed.cuh"
#include "ptx/softmax.cuh"

constexpr float kPackedUnit = 256.f;  // of a dot product

template <class C>
struct PackedSoftmax : RowReference {
    static constexpr float kMaxSlope = 32.f;
    static constexpr int kRange = 2048;              // units below the maximum that the fixed point reaches
    static constexpr int kCoarse = 3;                // bits more that scores of flat rows lose: then it reaches all
    static constexpr u32 kMaskedPair = 0xC000C000u;  // below every score, and its distance fits 16 bits

    float slope[2];      // [row] octaves that a unit of a score is worth
    float offset[2];     // [row] octaves at a score of zero
    u32 half_slope[2];   // [row] codes that a unit is worth, as halves: a multiple of 2^-11
    u32 zero_code[2];    // [row] code of a score kRange below the maximum, below 0 as a rule, in fixed point
    u32 maxima;          // of the step, a row in each half
    u32 shift[2];        // [row] kRange - maximum
    float row_scale[2];  // [row] slope over the scale of the keys
    float key_scale;
    bool rare;  // some row of the warp is flat or steep

    // 110 is 112, the largest with which 256 keys' products fit fp16: 256 * 112 * 2.25 (HALF_SUMS_VALUE_MAX of
    // vc_attention/reference/formats.py). It reads as more than its logarithm says, and by as much as codes do on
    // average: no mass moves to or from the maximum. Steep slopes, of 2 codes and more, are multiples of 2^-9 to 2^-5,
    // and 2048 times as much has to divide their top, which is 96. Flat rows' scores lose kCoarse bits more.
    static constexpr float kTop = 110.f, kSteepTop = 96.f;
    static constexpr u32 kTopCode = 0x006e006eu, kTop2048th = 0x2ae02ae0u;
    static constexpr u32 kSteepTopCode = 0x00600060u, kSteepTop2048th = 0x2a002a00u;

    __device__ __forceinline__ void set_slope(float k_scale) {
        key_scale = k_scale;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            slope[r] = row_scale[r] * k_scale;
            offset[r] = fmaf(slope[r], 0.5f, -kTop / C::kStepsPerOctave);
        }
        // A half for each row, until here.
        const u32 nearest = pack_f16x2(slope[0] * C::kStepsPerOctave, slope[1] * C::kStepsPerOctave);
        const u32 zeros = zero_codes(nearest, kTopCode), halves = half_slopes(zeros, kTop2048th);
        rare = __any_sync(kFullWarp, ((~zeros & 0x80008000u) | (nearest & 0x40004000u)) != 0);
        spread(zeros, zero_code);
        spread(halves, half_slope);
        if (rare) set_rare_slope();
    }

    __device__ __forceinline__ void set_rare_slope() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float codes = fminf(codes_per_unit(r), kMaxSlope) * (is_flat(r) ? 1 << kCoarse : 1);
            const u32 nearest = pack_f16x2(codes, codes);
            const bool steep = (nearest & 0x4000) != 0;
            slope[r] = codes / C::kStepsPerOctave;
            offset[r] = fmaf(slope[r], 0.5f, (steep ? -kSteepTop : -kTop) / C::kStepsPerOctave);
            zero_code[r] = zero_codes(nearest, steep ? kSteepTopCode : kTopCode);
            half_slope[r] = half_slopes(zero_code[r], steep ? kSteepTop2048th : kTop2048th);
        }
    }

    __device__ __forceinline__ float codes_per_unit(int r) const {
        return row_scale[r] * key_scale * C::kStepsPerOctave;
    }
    // Whether a score kRange below the maximum would still be worth something.
    __device__ __forceinline__ bool is_flat(int r) const {
        const float codes = codes_per_unit(r);
        return codes < 1.f && (short)zero_codes(pack_f16x2(codes, codes), kTopCode) > 0;
    }

    // top - 2048 slope, and the slope that this has: by -2^-13 and by -2^13.
    static __device__ __forceinline__ u32 zero_codes(u32 slopes, u32 top) {
        return fma_f16x2(slopes, 0x88008800u, top);
    }
    static __device__ __forceinline__ u32 half_slopes(u32 zeros, u32 top_2048th) {
        return fma_f16x2(zeros, 0xf000f000u, top_2048th);
    }

    static __device__ __forceinline__ void spread(u32 rows, u32 (&x)[2]) {
        x[0] = __byte_perm(rows, 0, 0x1010);
        x[1] = __byte_perm(rows, 0, 0x3232);
    }

    // Scores of the step, in the first registers of s: floor(s / 256), of flat rows 2^kCoarse less.
    __device__ __forceinline__ void pack(int (&s)[128]) const {
        if (rare) {
            const int bits[2] = {is_flat(0) ? kCoarse : 0, is_flat(1) ? kCoarse : 0};
#pragma unroll
            for (int i = 0; i < 64; ++i) s[i] = pack_pair(s[2 * i] >> bits[i & 1], s[2 * i + 1] >> bits[i & 1]);
        } else {
#pragma unroll
            for (int i = 0; i < 64; ++i) s[i] = pack_pair(s[2 * i], s[2 * i + 1]);
        }
    }
    static __device__ __forceinline__ int pack_pair(int first, int second) {
        return (int)__byte_perm((u32)first, (u32)second, 0x6521);
    }

    // Keys from `valid` on lie below all others.
    static __device__ __forceinline__ void mask(int (&s)[128], int valid) {
        const int quad_lane = threadIdx.x & 3;
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            const int left = valid - ((i >> 2) * 16 + 4 * quad_lane + (i >> 1 & 1) * 2);
            if (left <= 0) s[i] = (int)kMaskedPair;
            if (left == 1) s[i] = (int)__byte_perm((u32)s[i], kMaskedPair, 0x7610);
        }
    }

    // And have no probability.
    static __device__ __forceinline__ void mask_codes(u32 (&p)[2][16], int valid) {
        const int quad_lane = threadIdx.x & 3;
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            p[i >> 4][i & 15] &= low_bits(8 * max(valid - ((i >> 1) * 16 + 4 * quad_lane), 0));
        }
    }

    // Row maxima over the quad, and what the codes of the step count from.
    __device__ __forceinline__ void set_offsets(const int (&s)[128]) {
        u32 row[2] = {(u32)s[0], (u32)s[1]};
#pragma unroll
        for (int i = 2; i < 62; i += 4) {
#pragma unroll
            for (int r = 0; r < 2; ++r) row[r] = max_s16x2(max_s16x2(row[r], (u32)s[i + r]), (u32)s[i + 2 + r]);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) row[r] = max_s16x2(row[r], (u32)s[62 + r]);
        maxima = max_s16x2(__byte_perm(row[0], row[1], 0x5410), __byte_perm(row[0], row[1], 0x7632));
        maxima = max_s16x2(maxima, __shfl_xor_sync(kFullWarp, maxima, 1));
        maxima = max_s16x2(maxima, __shfl_xor_sync(kFullWarp, maxima, 2));
        spread(add_s16x2(~maxima, (kRange + 1) * 0x10001u), shift);
    }

    // What the codes count in, and so what their products weigh. Half a unit, in the offset, was cut off on average,
    // and steps differ in their unit.
    __device__ __forceinline__ void weigh(bool first) {
        const int maximum[2] = {(int)(short)maxima, (int)maxima >> 16};
#pragma unroll
        for (int r = 0; r < 2; ++r) refer(r, fmaf((float)maximum[r], slope[r], offset[r]), first);
    }

    // Scores -> A fragments of the PV product: the key slots make both layouts agree.
    __device__ __forceinline__ void encode(const int (&s)[128], u32 (&p)[2][16]) const {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            const int first = 4 * (i >> 1) + (i & 1), r = i & 1;
            u32 codes[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const u32 above = max_s16x2(add_s16x2((u32)s[first + 2 * j], shift[r]), 0);
                codes[j] = fma_relu_f16x2(above, half_slope[r], zero_code[r]);
            }
            p[i >> 4][i & 15] = __byte_perm(codes[0], codes[1], 0x6420);
        }
    }
};
