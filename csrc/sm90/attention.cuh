// Hopper attention kernel: one producer warp and two consumer warpgroups that fill each other's gaps: while one is busy
// with softmax and sums, the tensor cores work for the other.
#pragma once

#include "sm90/consumer.cuh"
#include "sm90/producer.cuh"

// Tiles `tile` and `tile + 1`. kLast: keys end within or before the second, which may be missing.
template <bool kLast, class C>
__device__ __forceinline__ void step(Consumer<C>& c, int tile) {
    u32 p[2][16];
    {
        int s[128];
        c.wait_step(C::kKFull, tile);
        c.issue_scores(tile, s);
        // Beside the product, where it costs nothing.
        if (!C::kTakesTurns) c.template load_slopes<kLast>(tile);
        c.wait_step(C::kVFull, tile);
        wgmma_wait<0>();
        c.template take_scores<kLast>(tile, s);
        if constexpr (C::kTakesTurns) {
            c.weigh(tile == 0);
            c.template take_turn<kLast>();
        }
        c.template encode<kLast>(tile, s, p);
    }
    typename Consumer<C>::Product t[Consumer<C>::kRegistersT];
    c.issue_values(tile, p, t);
    if (C::kTakesTurns && !(kLast && c.warpgroup == 1)) c.pass_turn();  // nobody waits for the last one
    if (!C::kTakesTurns) c.weigh(tile == 0);                            // beside this product
    wgmma_wait<0>();
    c.merge(tile, t);
    if (C::kMean && (kLast || (tile + C::kStepTiles) % C::kMeanTiles == 0)) c.restore_means(tile);
}

template <class C>
__device__ __forceinline__ void consume(Consumer<C>& c) {
    int tile = 0;
    if (C::kTakesTurns && c.warpgroup == 1) c.pass_turn();  // the other one begins
#pragma unroll 1
    for (; (tile + C::kStepTiles) * C::kBlockN < c.params.seqlen_k; tile += C::kStepTiles) step<false>(c, tile);
    step<true>(c, tile);
}

extern __shared__ __align__(1024) u8 dynamic_shared[];

template <class C>
__device__ __forceinline__ void initialise_shared(const float* v_scale) {
    if (shared_address(dynamic_shared) != C::kBase || dynamic_shared_bytes() != C::kSharedBytes) __trap();
    if constexpr (C::kOnesRows > 0) {
        constexpr u32 kRowWords = C::kBlockN / 4, kWords = C::kOnesRows * kRowWords;
        for (u32 i = threadIdx.x; i < C::kStages * C::kStepTiles * kWords; i += C::kThreads) {
            // Row n becomes column n of the product, which lane n / 2 of a quad holds: sums of even tiles go to even
            // lanes, sums of odd tiles to odd ones.
            const u32 tile = i / kWords, quad_lane = i % kWords / kRowWords / 2;
            const u32 ones = (tile ^ quad_lane) & 1 ? 0 : 0x38383838;  // E4M3 1.0, four times
            store_shared(C::kV + tile * C::kVRows + C::kVTile + i % kWords * 4, ones);
        }
    }
    if (!C::kInt8Values && threadIdx.x < C::kHeadDim) {
        store_shared(C::kVUnits + 4 * threadIdx.x, __float_as_uint(1.f / scale_or_one(v_scale[threadIdx.x])));
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < C::kStages; ++i) {
            mbarrier_init(C::kKFull + 8 * i, 1);
            mbarrier_init(C::kVFull + 8 * i, 1);
            mbarrier_init(C::kKEmpty + 8 * i, C::kConsumers);
            mbarrier_init(C::kVEmpty + 8 * i, C::kConsumers);
        }
        mbarrier_init(C::kQFull, 1);
        mbarrier_init(C::kMeansFull, 1);
        mbarrier_init(C::kMeansEmpty, C::kConsumers);
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
    Consumer<C> c(p, warpgroup);
    c.load_queries();
    consume(c);
    c.store(q_tile, head, v_scale);
}

// One kernel per configuration, named vc_attention_sm90_d<head_dim>_<probability>_<reference>_<mean | plain>.
#define VC_ATTENTION(name, head_dim, probability, running, mean)                                           \
    extern "C" __global__ void __launch_bounds__(384, 1) name(const __grid_constant__ AttentionParams p) { \
        attention<Config<head_dim, Probability::probability, running, mean>>(p);                           \
    }
