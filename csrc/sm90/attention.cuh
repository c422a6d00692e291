// Hopper attention kernel: one producer warp, consumer warpgroups of 64 query rows, two schedules.
#pragma once

#include "sm90/consumer.cuh"
#include "sm90/producer.cuh"

// Two warpgroups: a tile's PV runs beside the second half of its own encoding, the next tile's QK beside its merge.
template <class C>
struct Overlapped {
    using Part = typename Consumer<C>::Product[Consumer<C>::template kRegistersT<0>];

    // Scores of the first tile of a group, with nothing to run beside.
    static __device__ __forceinline__ void open(Consumer<C>& c, int tile, int tiles, int seqlen_k) {
        c.wait_keys(tile);
        c.issue_scores(tile);
        c.wait_values(tile);
        if (tile + 1 < tiles) c.wait_keys(tile + 1);
        wgmma_wait<0>();
        c.template take_scores<true>(tile, seqlen_k, tile == 0);
    }

    // `tile`, whose softmax constants are ready, and the scores of the next one. kLast: no tile follows that.
    template <bool kLast>
    static __device__ __forceinline__ void step(Consumer<C>& c, int tile, int seqlen_k) {
        Part t;
        c.softmax.template encode<0, 4>(c.s, c.p);
        c.template issue_values<0, 0, 2>(tile, t);
        c.softmax.template encode<4, 8>(c.s, c.p);
        c.template issue_values<0, 2, 4>(tile, t);
        c.issue_scores(tile + 1);
        wgmma_wait<1>();
        c.template merge<0>(tile, t);
        c.wait_values(tile + 1);
        if (!kLast) c.wait_keys(tile + 2);  // early: the wait costs nothing beside QK
        wgmma_wait<0>();
        c.template take_scores<kLast>(tile + 1, seqlen_k, false);
    }

    // The last tile of a group.
    static __device__ __forceinline__ void close(Consumer<C>& c, int tile) {
        Part t;
        c.softmax.template encode<0, 8>(c.s, c.p);
        c.template issue_values<0, 0, 4>(tile, t);
        wgmma_wait<0>();
        c.template merge<0>(tile, t);
        // Here, where neither scores nor T hold registers.
        if (C::kMean) c.restore_means(tile);
    }

    static __device__ __forceinline__ void run(Consumer<C>& c, int tiles, int seqlen_k) {
        for (int group = 0; group < tiles; group += C::kMeanTiles) {
            const int end = C::kMean ? min(tiles, group + C::kMeanTiles) : tiles;
            const int plain_end = min(end - 1, tiles - 2);
            int tile = group;
            open(c, tile, tiles, seqlen_k);
#pragma unroll 1
            for (; tile + C::kStages <= plain_end; tile += C::kStages) {
#pragma unroll
                for (int i = 0; i < C::kStages; ++i) step<false>(c, tile + i, seqlen_k);
            }
#pragma unroll 1
            for (; tile < plain_end; ++tile) step<false>(c, tile, seqlen_k);
            if (tile < end - 1) step<true>(c, tile, seqlen_k);
            close(c, end - 1);
            if (!C::kMean) break;
        }
    }
};

// Three warpgroups: each goes through its tile alone, and the others fill the tensor cores meanwhile.
template <class C>
struct InTurn {
    template <int kPart>
    static __device__ __forceinline__ void values(Consumer<C>& c, int tile) {
        typename Consumer<C>::Product t[Consumer<C>::template kRegistersT<kPart>];
        c.template issue_values<kPart, 0, 4>(tile, t);
        wgmma_wait<0>();
        c.template merge<kPart>(tile, t);
    }

    template <bool kLast>
    static __device__ __forceinline__ void step(Consumer<C>& c, int tile, int seqlen_k) {
        c.wait_keys(tile);
        c.issue_scores(tile);
        c.wait_values(tile);
        wgmma_wait<0>();
        c.template take_scores<kLast>(tile, seqlen_k, tile == 0);
        c.softmax.template encode<0, 8>(c.s, c.p);
        values<0>(c, tile);
        if constexpr (Consumer<C>::kParts == 2) values<1>(c, tile);
        if (C::kMean && (kLast || (tile & (C::kMeanTiles - 1)) == C::kMeanTiles - 1)) c.restore_means(tile);
    }

    static __device__ __forceinline__ void run(Consumer<C>& c, int tiles, int seqlen_k) {
        int tile = 0;
#pragma unroll 1
        for (; tile + C::kStages <= tiles - 1; tile += C::kStages) {
#pragma unroll
            for (int i = 0; i < C::kStages; ++i) step<false>(c, tile + i, seqlen_k);
        }
#pragma unroll 1
        for (; tile < tiles - 1; ++tile) step<false>(c, tile, seqlen_k);
        step<true>(c, tile, seqlen_k);
    }
};

extern __shared__ __align__(1024) u8 dynamic_shared[];

template <class C>
__device__ __forceinline__ void initialise_shared(const float* v_scale) {
    if (shared_address(dynamic_shared) != C::kBase) __trap();
    if constexpr (C::kOnesRows > 0) {
        constexpr u32 kWords = C::kOnesRows * C::kBlockN / 4;
        for (u32 i = threadIdx.x; i < C::kStages * kWords; i += C::kThreads) {
            store_shared(C::kV + i / kWords * C::kVStage + C::kVTile + i % kWords * 4, 0x38383838);  // E4M3 1.0, four times
        }
    }
    if (!C::kInt8Values && threadIdx.x < C::kHeadDim) {
        store_shared(C::kVUnits + 4 * threadIdx.x, __float_as_uint(1.f / scale_or_one(v_scale[threadIdx.x])));
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < C::kStages; ++i) {
            mbarrier_init(C::kKFull + 8 * i, 1);
            mbarrier_init(C::kVFull + 8 * i, 1);
            mbarrier_init(C::kKEmpty + 8 * i, 4 * C::kWarpgroups);
            mbarrier_init(C::kVEmpty + 8 * i, 4 * C::kWarpgroups);
        }
        mbarrier_init(C::kQFull, 1);
        mbarrier_init(C::kMeansFull, 1);
        mbarrier_init(C::kMeansEmpty, 4 * C::kWarpgroups);
        fence_mbarrier_init();
    }
    fence_proxy_async();  // the rows of ones are read by wgmma
    __syncthreads();
}

template <class C>
__device__ __forceinline__ void attention(const AttentionParams& p) {
    const int q_tile = blockIdx.x, head = blockIdx.y;
    const float* v_scale = p.v_scale + (i64)head * C::kHeadDim;  // of E4M3; INT8 has its scales in the stages
    initialise_shared<C>(v_scale);
    // A shuffle tells the compiler that a whole warp takes the same branch.
    const int warpgroup = __shfl_sync(kFullWarp, (int)threadIdx.x >> 7, 0);
    if (warpgroup == C::kWarpgroups) {
        shrink_registers<C::kProducerRegisters>();
        if (threadIdx.x == 128 * C::kWarpgroups) produce<C>(p, q_tile, head);
        return;
    }
    grow_registers<C::kConsumerRegisters>();
    Consumer<C> c(warpgroup);
    const int padded = ceil_div(p.seqlen_q, kTile) * kTile;
    const int row = q_tile * C::kBlockM + warpgroup * 64 + (threadIdx.x >> 5 & 3) * 16 + (c.lane >> 2);
    for (int r = 0; r < 2; ++r) {
        const float q_scale = row + 8 * r < padded ? p.q_scale[(i64)head * padded + row + 8 * r] : 0.f;
        c.softmax.score_scale[r] = q_scale * (p.score_scale * C::kStepsPerOctave);
    }
    mbarrier_wait(C::kQFull, 0);
    using Schedule = typename Select<C::kWarpgroups == 3, InTurn<C>, Overlapped<C>>::Type;
    Schedule::run(c, ceil_div(p.seqlen_k, C::kBlockN), p.seqlen_k);
    c.store(p, q_tile, head, v_scale);
}

// One kernel per configuration, named vc_attention_d<head_dim>_<probability>_<reference>_<mean | plain>.
#define VC_ATTENTION(name, head_dim, probability, running, mean)                                                                \
    extern "C" __global__ void __launch_bounds__(128 * (VC_WARPGROUPS + 1), 1) name(const __grid_constant__ AttentionParams p) { \
        attention<Config<head_dim, Probability::probability, running, mean>>(p);                                                \
    }
