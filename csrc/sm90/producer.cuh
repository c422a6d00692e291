// The producer warp: one thread keeps the shared-memory stages full with bulk copies of tile images.
#pragma once

#include "ptx/async.cuh"
#include "sm90/config.cuh"

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
    const int tiles = ceil_div(p.seqlen_k, C::kBlockN);
    const int groups = ceil_div(tiles, C::kMeanTiles);

    // Images hold whole tiles of 128 queries: the last CTA may have rows of 64 to itself that no image has.
    const int slabs = 2 * ceil_div(p.seqlen_q, kTile);
    const int first = q_tile * C::kWarpgroups;
    const u32 q_bytes = min(C::kWarpgroups, slabs - first) * C::kQTile;
    mbarrier_expect(C::kQFull, q_bytes);
    bulk_copy(C::kQ, p.q_codes + ((i64)head * slabs + first) * C::kQTile, q_bytes, C::kQFull);

    const u8* k_codes = p.k_codes + (i64)head * tiles * C::kKTile;
    const float* k_scale = p.k_scale + (i64)head * tiles * 4;
    const u8* v_codes = p.v_codes + (i64)head * tiles * C::kVTile;
    const float* v_scale = p.v_scale + (i64)head * tiles * C::kHeadDim;
    for (int t = 0; t < tiles; ++t) {
        const int stage = t % C::kStages;
        const u32 parity = (t / C::kStages & 1) ^ 1;
        mbarrier_wait(C::kKEmpty + 8 * stage, parity);
        mbarrier_expect(C::kKFull + 8 * stage, C::kKTile + C::kKScaleStage);
        bulk_copy(C::kK + stage * C::kKTile, k_codes + (i64)t * C::kKTile, C::kKTile, C::kKFull + 8 * stage);
        bulk_copy(C::kKScale + stage * C::kKScaleStage, k_scale + t * 4, C::kKScaleStage, C::kKFull + 8 * stage);
        mbarrier_wait(C::kVEmpty + 8 * stage, parity);
        mbarrier_expect(C::kVFull + 8 * stage, C::kVTile + C::kVScaleStage);
        bulk_copy(C::kV + stage * C::kVStage, v_codes + (i64)t * C::kVTile, C::kVTile, C::kVFull + 8 * stage);
        if (C::kInt8Values) {
            bulk_copy(C::kVScale + stage * C::kVScaleStage, v_scale + (i64)t * C::kHeadDim, C::kVScaleStage, C::kVFull + 8 * stage);
        }
        // Halfway through a group, so that the wait inside never holds up K and V.
        const int place = t % C::kMeanTiles;
        if (C::kMean && (place == C::kMeanTiles / 2 || (t == tiles - 1 && place < C::kMeanTiles / 2))) {
            copy_means<C>(p, head, t / C::kMeanTiles, groups);
        }
    }
}
