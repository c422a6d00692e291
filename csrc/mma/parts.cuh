// What stages of K and V are made of, for the rings that fill them.
#pragma once

#include "mma/config.cuh"

// What a stage of K is made of.
template <class C>
struct KeyParts {
    static constexpr int kStages = C::kStages, kStepTiles = C::kStepTiles, kWarps = C::kWarps;
    static constexpr u32 kStage = C::kKStage;
    static constexpr u32 kTileBytes = C::kKCodesBytes + C::kKScaleBytes + C::kKMicroBytes + C::kKBiasBytes;
    const u8 *codes, *scale, *micro, *bias;

    template <class Engine>
    __device__ __forceinline__ void copy(u32 stage, u32 tile, int tiles, const Engine& engine) const {
        engine.template run<C::kKCodesBytes>(stage, codes, tile, tiles);
        engine.template run<C::kKScaleBytes>(stage + C::kKScale, scale, tile, tiles);
        if constexpr (C::kNvfp4Scores) {
            engine.template run<C::kKMicroBytes>(stage + C::kKMicro, micro, tile, tiles);
            engine.template run<C::kKBiasBytes>(stage + C::kKBias, bias, tile, tiles);
        }
    }
};

// What a stage of V is made of.
template <class C>
struct ValueParts {
    static constexpr int kStages = C::kStages, kStepTiles = C::kStepTiles, kWarps = C::kWarps;
    static constexpr u32 kStage = C::kVStage, kTileBytes = C::kVCodesBytes + C::kVScaleBytes;
    const u8 *codes, *scale;  // scale: of INT8 tiles, or NVFP4's second-level ones

    template <class Engine>
    __device__ __forceinline__ void copy(u32 stage, u32 tile, int tiles, const Engine& engine) const {
        engine.template run<C::kVCodesBytes>(stage, codes, tile, tiles);
        if constexpr (C::kVScaleBytes > 0) {
            engine.template run<C::kVScaleBytes>(stage + C::kVScale, scale, tile, tiles);
        }
    }
};
