// The producer warp: one thread keeps the shared-memory stages full with bulk copies of tile images.
#pragma once

#include "ptx/async.cuh"
#include "sm90/config.cuh"

template <class C>
__device__ __forceinline__ void copy_queries(const AttentionParams& p, int q_tile, int head) {
    const i64 tile = (i64)head * ceil_div(p.seqlen_q, C::kBlockM) + q_tile;
    mbarrier_expect(C::kQFull, C::kBlockM * (C::kHeadDim + 4));
    bulk_copy(C::kQ, p.q_codes + tile * C::kBlockM * C::kHeadDim, C::kBlockM * C::kHeadDim, C::kQFull);
    bulk_copy(C::kQScale, p.q_scale + tile * C::kBlockM, C::kBlockM * 4, C::kQFull);
}

template <class C>
__device__ __forceinline__ void copy_means(const AttentionParams& p, int head, int group, int groups) {
    // The single buffer is free once group - 1 has been restored, which was at its last tile.
    mbarrier_wait(C::kMeansEmpty, (group & 1) ^ 1);
    mbarrier_expect(C::kMeansFull, C::kMeanImage);
    const char* source = (const char*)p.v_mean + ((i64)head * groups + group) * C::kMeanImage;
    bulk_copy(C::kMeans, source, C::kMeanImage, C::kMeansFull);
}

template <class C>
__device__ __forceinline__ void produce(const AttentionParams& p, int q_tile, int head) {
    copy_queries<C>(p, q_tile, head);
    const int tiles = ceil_div(p.seqlen_k, C::kBlockN);
    const u8* k_codes = p.k_codes + (i64)head * tiles * C::kKTile;
    const float* k_scale = p.k_scale + (i64)head * tiles * 4;
    const u8* v_codes = p.v_codes + (i64)head * tiles * C::kVTile;
    const float* v_scale = p.v_scale + (i64)head * tiles * C::kHeadDim;
#pragma unroll 1
    for (int first = 0; first < tiles; first += C::kStepTiles) {
        const int stage = first / C::kStepTiles % C::kStages;
        const u32 parity = (first / (C::kStepTiles * C::kStages) & 1) ^ 1;
        mbarrier_wait(C::kKEmpty + 8 * stage, parity);
        mbarrier_expect(C::kKFull + 8 * stage, C::kKStage + C::kKScaleStage);
        for (int i = 0; i < C::kStepTiles; ++i) {
            const int tile = min(first + i, tiles - 1);  // half a step is filled up with a tile that will be masked
            bulk_copy(C::kK + stage * C::kKStage + i * C::kKTile, k_codes + (i64)tile * C::kKTile, C::kKTile,
                      C::kKFull + 8 * stage);
            bulk_copy(C::kKScale + stage * C::kKScaleStage + i * C::kKScaleTile, k_scale + tile * 4, C::kKScaleTile,
                      C::kKFull + 8 * stage);
        }
        mbarrier_wait(C::kVEmpty + 8 * stage, parity);
        mbarrier_expect(C::kVFull + 8 * stage, C::kStepTiles * C::kVTile + C::kVScaleStage);
        for (int i = 0; i < C::kStepTiles; ++i) {
            const int tile = min(first + i, tiles - 1);
            bulk_copy(C::kV + stage * C::kVStage + i * C::kVRows, v_codes + (i64)tile * C::kVTile, C::kVTile,
                      C::kVFull + 8 * stage);
            if (!C::kInt8Values) continue;
            bulk_copy(C::kVScale + stage * C::kVScaleStage + i * C::kVScaleTile, v_scale + (i64)tile * C::kHeadDim,
                      C::kVScaleTile, C::kVFull + 8 * stage);
        }
        // Halfway through a group, so that the wait inside hardly ever holds up K and V.
        const int place = first % C::kMeanTiles;
        const bool last = first + C::kStepTiles >= tiles;
        if (C::kMean && (place == C::kMeanTiles / 2 || (last && place < C::kMeanTiles / 2))) {
            copy_means<C>(p, head, first / C::kMeanTiles, ceil_div(tiles, C::kMeanTiles));
        }
    }
}
