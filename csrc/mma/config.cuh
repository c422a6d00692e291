// mma.sync attention: what a kernel is made of, where things lie in shared memory.
#pragma once

#include "common/attention.cuh"
#include "mma/nvfp4.cuh"

// What a launch gets: the operands of every kernel, and those of NVFP4 (null for other formats).
struct MmaAttentionParams {
    AttentionParams attention;
    const u8* q_micro;    // [Z, nQ, 2, 128, D / 16]
    const u8* k_micro;    // [Z, nK, 136, D / 16]
    const float* k_bias;  // [Z, nK, 128]
    const u8* v_micro;    // [Z, nK, D, 8]
};

enum class Scores { kInt8, kNvfp4 };  // operand format of Q K^T

// How stages are filled.
enum class Copies {
    kBulk,   // the copy engine and mbarriers, sm_90 and later
    kAsync,  // cp.async of every thread, sm_80 and later
};

#if __CUDA_ARCH__ >= 900
constexpr Copies kBestCopies = Copies::kBulk;
#else
constexpr Copies kBestCopies = Copies::kAsync;
#endif

// Sums of a step of u8 x s8 products lie within 256 * 255 * 128 < 2^23. Accumulated on top of 2^23 their bits are those
// of the float (2^23 + sum) * 2^-149, be it denormal or not: a multiply-add takes that as it is, and exactly.
constexpr int kCentreBits = 1 << 23;
constexpr float kCentre = 0x1p-126f;  // the same bits as a float
constexpr float kLift = 0x1p109f;     // what brings such floats near 1; with RowReference's largest weight still finite
constexpr float kInt8Unit = 0x1p-40f;  // kLift * 2^-149, the unit of O where values are INT8

// Nvfp4: NativeNvfp4, or EmulatedNvfp4 where the GPU has no such product. Of no meaning to kernels without NVFP4.
template <int kHeadDim_, Scores kScores_, Probability kProbability_, bool kMean_, Copies kCopies_, class Nvfp4_>
struct MmaConfig {
    using Nvfp4 = Nvfp4_;
    static constexpr int kHeadDim = kHeadDim_;
    static constexpr Probability kProbability = kProbability_;
    static constexpr bool kMean = kMean_;
    static constexpr Copies kCopies = kCopies_;

    static constexpr bool kNvfp4Scores = kScores_ == Scores::kNvfp4;
    static constexpr bool kNvfp4Values = kProbability == Probability::kNvfp4;
    // The reference of P: the running maximum where all tiles share one accumulator, else the maximum of the step.
    static constexpr bool kRunningMax = kNvfp4Values;
    using Codes = CodeScale<kProbability, kRunningMax>;
    static constexpr bool kExpCast = Codes::kExpCast;
    static constexpr bool kInt8Values = Codes::kInt8Values;
    static constexpr float kStepsPerOctave = Codes::kStepsPerOctave;
    static constexpr float kTopCode = Codes::kTopCode;
    static constexpr bool kSumsByProduct = kInt8Values;  // row sums of exact exponentials
    // Larger slopes are compressed: exponents keep their precision, and such a row has one probability anyway.
    static constexpr float kMaxSlope = kNvfp4Scores ? 1.f / 32768 : kStepsPerOctave / 8.f;
    static constexpr float kUnit = kInt8Values ? kInt8Unit : 1.f;  // of O, beside the scales of V

    static constexpr int kWarps = 8;  // 16 query rows each
    static constexpr int kThreads = 32 * kWarps;
    static constexpr int kBlockM = 16 * kWarps;
    static constexpr int kBlockN = kTile;
    static constexpr int kStepTiles = kNvfp4Values ? 1 : 2;  // tiles whose codes share a reference and an accumulator
    static constexpr int kStages = kNvfp4Scores ? 3 : kNvfp4Values ? 2 : 1;  // steps of K, and of V, in shared memory
    // How many steps behind its use a stage of K is filled anew: none to spare where there is but one.
    static constexpr int kLag = kStages > 1 ? 1 : 0;
    static constexpr int kMeanTiles = 8;  // tiles whose means are restored at once

    // Bytes of a row of Q and K, and of a row of V^T; products of 32 bytes along them.
    static constexpr int kScoreRow = kNvfp4Scores ? kHeadDim / 2 : kHeadDim;
    static constexpr int kValueRow = kNvfp4Values ? kBlockN / 2 : kBlockN;
    static constexpr int kScoreSteps = kScoreRow / 32;
    static constexpr int kValueSteps = kValueRow / 32;

    // Images of Q, and rows of an image of K: NVFP4 has what rounding lost of Q, and means of K below the keys.
    static constexpr int kQImages = kNvfp4Scores ? 2 : 1;
    static constexpr int kKRows = kNvfp4Scores ? kBlockN + 8 : kBlockN;

    // Bytes a tile of each part of an operand.
    static constexpr u32 kQBytes = kQImages * kBlockM * kScoreRow;
    static constexpr u32 kKCodesBytes = kKRows * kScoreRow;
    static constexpr u32 kKScaleBytes = 16;
    static constexpr u32 kKMicroBytes = kNvfp4Scores ? kKRows * kHeadDim / 16 : 0;
    static constexpr u32 kKBiasBytes = kNvfp4Scores ? kBlockN * 4 : 0;
    static constexpr u32 kVCodesBytes = kHeadDim * kValueRow;
    static constexpr u32 kVScaleBytes = kInt8Values ? kHeadDim * 4 : kNvfp4Values ? kHeadDim * kBlockN / 16 : 0;

    // Offsets in a stage of K (128 bytes are for scales, for alignment) and in one of V.
    static constexpr u32 kKScale = kStepTiles * kKCodesBytes;
    static constexpr u32 kKMicro = kKScale + 128;
    static constexpr u32 kKBias = kKMicro + kStepTiles * kKMicroBytes;
    static constexpr u32 kKStage = (kKBias + kStepTiles * kKBiasBytes + 127) / 128 * 128;
    static constexpr u32 kVScale = kStepTiles * kVCodesBytes;
    static constexpr u32 kVStage = kVScale + kStepTiles * kVScaleBytes;

    // Offsets in dynamic shared memory.
    static constexpr u32 kQ = 0;
    static constexpr u32 kK = kQ + kQBytes;
    static constexpr u32 kV = kK + kStages * kKStage;
    static constexpr u32 kUnits = kV + kStages * kVStage;  // [D] units of O per natural unit
    static constexpr u32 kMagic = kUnits + kHeadDim * 4;   // kMagicBits four times
    static constexpr u32 kCentre = kMagic + 16;            // kCentreBits four times
    static constexpr u32 kQScale = kCentre + 16;
    static constexpr u32 kRowSum = kQScale + kBlockM * 4;   // [thread][2]
    static constexpr u32 kRecent = kRowSum + 8 * kThreads;  // [thread][2][2] row sums of recent tiles
    static constexpr u32 kKBarriers = kRecent + (kMean ? 16 * kThreads : 0);
    static constexpr u32 kVBarriers = kKBarriers + 16 * kStages;
    static constexpr u32 kSharedBytes = kVBarriers + 16 * kStages;
    static_assert(kSharedBytes <= 99 * 1024, "one CTA fits an SM of sm_86, sm_89 and sm_120");
};
