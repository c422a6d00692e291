// What every attention kernel gets, and the ways to write probabilities.
#pragma once

#include "common/types.cuh"

// All operands as in csrc/README.md, Z = B * H.
struct AttentionParams {
    const u8* q_codes;                             // [Z, nQ, 128, D]
    const float* q_scale;                          // [Z, nQ * 128]
    const u8* k_codes;                             // [Z, nK, 128, D]
    const float* k_scale;                          // [Z, nK, 4]
    const u8* v_codes;                             // [Z, nK, D, 128]
    const float* v_scale;                          // [Z, D] (E4M3) or [Z, nK, D] (INT8)
    const float* v_mean;                           // [Z, ceil(nK / 32), D, 32]; not read by kernels without means
    void* out;                                     // [B, H, Nq, D] with the strides below, channels next to each other
    i64 out_stride_b, out_stride_h, out_stride_n;  // in elements
    int heads, seqlen_q, seqlen_k;
    float score_scale;  // scores in log2 units = dot * q_scale * k_scale * score_scale
    int out_is_fp16;    // else bf16
};

// A or B as a type: NVRTC has no <type_traits>.
template <bool kFirst, class A, class B>
struct Select {
    using Type = A;
};
template <class A, class B>
struct Select<false, A, B> {
    using Type = B;
};

enum class Probability {
    kExpCast,  // E4M3 bytes from one multiply-add (Eq. 7), row sums of the decoded bytes by columns of ones
    kExact,    // exp2, rounded to E4M3, fp32 row sums
    kU8,       // exp2, rounded to 255 levels for INT8 values, fp32 row sums
    kNvfp4,    // exp2, rounded to NVFP4, row sums of what the codes mean
};

// Where codes of the row maximum lie, and how scores become codes (vc_attention/reference/probability.py).
template <Probability kProbability, bool kRunningMax>
struct CodeScale {
    static constexpr bool kExpCast = kProbability == Probability::kExpCast;
    static constexpr bool kInt8Values = kProbability == Probability::kU8;
    // Where the row maximum lands: 2^8 (Eq. 7), 112 for sums in fp16 (HALF_SUMS_VALUE_MAX of
    // vc_attention/reference/formats.py) or 448, E4M3's largest number; 255 levels.
    static constexpr float kLog2Gain = kInt8Values   ? 7.99435344f
                                       : kRunningMax ? 8.f
                                       : kExpCast    ? 6.80735492f
                                                     : 8.80735492f;
    // Centres the error of reading an E4M3 byte as a logarithm.
    static constexpr float kBeta = kRunningMax ? -0.35f : -0.46f;
    // Scores are kept in eighths of an octave for ExpCast, whose codes count those, else in octaves.
    static constexpr float kStepsPerOctave = kExpCast ? 8.f : 1.f;
    static constexpr float kTopCode = kExpCast ? 8.f * kLog2Gain + 56.f + kBeta : kLog2Gain;
};

// A channel without residual has scale 0; its means must survive the division.
__device__ __forceinline__ float scale_or_one(float scale) {
    return scale == 0.f ? 1.f : scale;
}
