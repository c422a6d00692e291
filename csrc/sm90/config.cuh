// Hopper attention: what a launch gets, what a kernel is made of, where things lie in shared memory.
#pragma once

#include "common/attention.cuh"

template <int kHeadDim_, Probability kProbability_, bool kRunningMax_, bool kMean_>
struct Config {
    static constexpr int kHeadDim = kHeadDim_;
    static constexpr Probability kProbability = kProbability_;
    static constexpr bool kRunningMax = kRunningMax_;  // the paper's reference for P; else the maximum of its own step
    static constexpr bool kMean = kMean_;

    // Scores as pairs of 16 bits, where the keys of a step have one scale and its row maximum is their reference, and
    // sums of values in fp16 (Numerics.half_sums).
    static constexpr bool kPacked = kProbability == Probability::kExpCast && !kRunningMax;

    using Codes = CodeScale<kProbability, kRunningMax>;
    static constexpr bool kExpCast = Codes::kExpCast;
    static constexpr bool kInt8Values = Codes::kInt8Values;
    static constexpr float kStepsPerOctave = Codes::kStepsPerOctave;
    static constexpr float kTopCode = Codes::kTopCode;

    static constexpr int kWarpgroups = 2;  // consumers, 64 rows each
    static constexpr int kConsumers = 128 * kWarpgroups;
    static constexpr int kThreads = kConsumers + 128;
    static constexpr int kBlockM = 64 * kWarpgroups;
    static constexpr int kBlockN = kTile;
    static constexpr int kStepTiles = 2;  // tiles whose codes share a reference and an accumulator
    static constexpr int kStages = 2;     // steps in flight
    // The launch gives each of 384 threads 168 registers, and consumers get no more than the producer gives back: with
    // 32 here they would wait for ever.
    static constexpr int kConsumerRegisters = 240;
    static constexpr int kProducerRegisters = 24;
    static_assert(kWarpgroups * (kConsumerRegisters - 168) <= 168 - kProducerRegisters, "setmaxnreg would hang");

    // Consumers compute exponentials one after the other, each while the other keeps the tensor cores busy. Left to
    // themselves they may fall into step, wait for the same unit, and take up to a fifth longer.
    static constexpr bool kTakesTurns = !kExpCast;

    // Cheaper than reading Q again in every step, where registers allow it.
    static constexpr bool kQueriesInRegisters = kExpCast;

    static constexpr bool kSumsByProduct = false;              // of exact exponentials
    static constexpr float kMaxSlope = kStepsPerOctave / 8.f;  // see Softmax::set_slope

    static constexpr int kOnesRows = kExpCast ? 8 : 0;  // below V^T: their products are row sums of the codes
    static constexpr int kMeanTiles = 32;               // tiles that one image of means serves

    // Bytes.
    static constexpr u32 kQTile = 64 * kHeadDim;  // of one warpgroup
    static constexpr u32 kKTile = kBlockN * kHeadDim;
    static constexpr u32 kVTile = kHeadDim * kBlockN;
    static constexpr u32 kVRows = (kHeadDim + kOnesRows) * kBlockN;  // of a tile, with those of ones
    static constexpr u32 kKStage = kStepTiles * kKTile;
    static constexpr u32 kVStage = kStepTiles * kVRows;
    static constexpr u32 kMeanImage = kHeadDim * kMeanTiles * 4;
    static constexpr u32 kVScaleTile = kInt8Values ? kHeadDim * 4 : 0;
    static constexpr u32 kVScaleStage = kStepTiles * kVScaleTile;
    static constexpr u32 kKScaleTile = 16;
    static constexpr u32 kKScaleStage = kStepTiles * kKScaleTile;

    // Dynamic shared memory begins here on sm_90 (a kernel traps if not), so that every address is a constant.
    static constexpr u32 kBase = 1024;
    static constexpr u32 kQ = kBase;
    static constexpr u32 kK = kQ + kWarpgroups * kQTile;
    static constexpr u32 kV = kK + kStages * kKStage;
    static constexpr u32 kMeans = kV + kStages * kVStage;
    static constexpr u32 kTileSums =
        kMeans + (kMean ? kMeanImage : 0);  // [8][consumer thread] float2, see restore_means
    static constexpr u32 kTileSumsChunk = kWarpgroups * 128 * 8;
    static constexpr u32 kVScale = kTileSums + (kMean ? 8 * kTileSumsChunk : 0);
    static constexpr u32 kVUnits =
        kVScale + kStages * kVScaleStage;  // [D] units of O per natural unit, see restore_means
    static constexpr u32 kQScale = kVUnits + kHeadDim * 4;
    static constexpr u32 kKScale = kQScale + kBlockM * 4;
    static constexpr u32 kBarriers = kKScale + kStages * kKScaleStage;
    static constexpr u32 kKFull = kBarriers;
    static constexpr u32 kVFull = kKFull + 8 * kStages;
    static constexpr u32 kKEmpty = kVFull + 8 * kStages;
    static constexpr u32 kVEmpty = kKEmpty + 8 * kStages;
    static constexpr u32 kQFull = kVEmpty + 8 * kStages;
    static constexpr u32 kMeansFull = kQFull + 8;
    static constexpr u32 kMeansEmpty = kMeansFull + 8;
    static constexpr u32 kSharedBytes = kMeansEmpty + 8 - kBase;
    static_assert(kSharedBytes <= 227 * 1024, "one CTA fits an SM of sm_90");
};
