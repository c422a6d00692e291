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
    // Two tiles of K, then the same two of V, which is the order in which consumers hand stages back.
    const int padded = C::kStepTiles * ceil_div(tiles, C::kStepTiles);
#pragma unroll 1
    for (int n = 0; n < 2 * padded; ++n) {
        const int i = n / 4 * 2 + n % 2;
        const int t = min(i, tiles - 1);  // half a step is filled up with a tile that will be masked
        const int stage = i % C::kStages;
        const u32 parity = (i / C::kStages & 1) ^ 1;
        if (n % 4 < 2) {
            mbarrier_wait(C::kKEmpty + 8 * stage, parity);
            mbarrier_expect(C::kKFull + 8 * stage, C::kKTile + C::kKScaleStage);
            bulk_copy(C::kK + stage * C::kKTile, k_codes + (i64)t * C::kKTile, C::kKTile, C::kKFull + 8 * stage);
            bulk_copy(C::kKScale + stage * C::kKScaleStage, k_scale + t * 4, C::kKScaleStage, C::kKFull + 8 * stage);
            continue;
        }
        mbarrier_wait(C::kVEmpty + 8 * stage, parity);
        mbarrier_expect(C::kVFull + 8 * stage, C::kVTile + C::kVScaleStage);
        bulk_copy(C::kV + stage * C::kVStage, v_codes + (i64)t * C::kVTile, C::kVTile, C::kVFull + 8 * stage);
        if (C::kInt8Values) {
            bulk_copy(C::kVScale + stage * C::kVScaleStage, v_scale + (i64)t * C::kHeadDim, C::kVScaleStage,
                      C::kVFull + 8 * stage);
        }
        // Halfway through a group, so that the wait inside hardly ever holds up K and V.
        const int place = i % C::kMeanTiles;
        if (C::kMean && (place == C::kMeanTiles / 2 || (i == tiles - 1 && place < C::kMeanTiles / 2))) {
            copy_means<C>(p, head, i / C::kMeanTiles, ceil_div(tiles, C::kMeanTiles));
        }
    }
}
