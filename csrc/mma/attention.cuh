// The mma.sync attention kernel: 128 query rows, eight warps, one thread block an SM. It runs wherever there are tensor
// cores, and is the kernel of the GPUs that have neither wgmma nor tcgen05 (csrc/README.md, docs/mma-log.md).
#pragma once

#include "mma/config.cuh"
#include "mma/warp.cuh"

template <class C>
__device__ __forceinline__ void attend_step(Warp<C>& w, int step) {
    int s[Warp<C>::kScores];
    w.scores(step, s);
    const int valid = w.params.seqlen_k - step * C::kStepTiles * C::kBlockN;
    if constexpr (C::kNvfp4Values) {
        if (valid < C::kBlockN) mask_nvfp4_scores(s, valid);
        w.softmax.set_reference(s);
        w.add_nvfp4_values(step, s);
    } else {
        if (valid < C::kStepTiles * C::kBlockN) mask_scores(s, valid);
        w.softmax.set_reference(s, step == 0);
        w.add_values(step, s);
    }
}

template <class C>
__device__ __forceinline__ void attend(Warp<C>& w) {
    constexpr int kMeanSteps = C::kMeanTiles / C::kStepTiles;  // after which means are restored
    const int steps = ceil_div(w.params.seqlen_k, C::kStepTiles * C::kBlockN);
    int step = 0;
#pragma unroll 1
    while (step < steps) {
        const int first = step, end = C::kMean ? min(steps, first + kMeanSteps) : steps;
#pragma unroll 1
        for (; step < end; ++step) attend_step(w, step);
        if (C::kMean) w.restore_means(first * C::kStepTiles);
    }
}

extern __shared__ __align__(1024) u8 dynamic_shared[];

// Everything in shared memory that no ring fills. `tile`: the query tile, counted over all heads.
template <class C>
__device__ __forceinline__ void initialise_shared(const AttentionParams& a, i64 tile, const float* v_scale) {
    const u32 shared = shared_address(dynamic_shared), thread = threadIdx.x;
    const u8* q = a.q_codes + tile * C::kQBytes;
    for (u32 at = 16 * thread; at < C::kQBytes; at += 16 * C::kThreads) {
        *(uint4*)(dynamic_shared + C::kQ + at) = *(const uint4*)(q + at);
    }
    if constexpr (C::kStepTiles > 1) {  // a last step may lack its second tile: what is masked must be finite
        for (u32 at = C::kK + 16 * thread; at < C::kUnits; at += 16 * C::kThreads) {
            *(uint4*)(dynamic_shared + at) = uint4{0, 0, 0, 0};
        }
    }
    if (!C::kInt8Values && thread < C::kHeadDim) {
        store_shared(shared + C::kUnits + 4 * thread, __float_as_uint(1.f / scale_or_one(v_scale[thread])));
    }
    if (thread < C::kBlockM) {
        store_shared(shared + C::kQScale + 4 * thread, __float_as_uint(a.q_scale[tile * C::kBlockM + thread]));
    }
    if (thread < 4) {
        store_shared(shared + C::kMagic + 4 * thread, kMagicBits);
        store_shared(shared + C::kCentre + 4 * thread, kCentreBits);
    }
    store_shared_v2(shared + C::kRowSum + 8 * thread, 0.f, 0.f);
    if (C::kMean) store_shared_v4(shared + C::kRecent + 16 * thread, 0.f, 0.f, 0.f, 0.f);
}

template <class C>
__device__ __forceinline__ void attention(const MmaAttentionParams& p) {
    if (dynamic_shared_bytes() != C::kSharedBytes) __trap();
    const AttentionParams& a = p.attention;
    const int q_tile = blockIdx.x, head = blockIdx.y;
    const float* v_scale = a.v_scale + (i64)head * C::kHeadDim;  // of INT8 the stages have them
    initialise_shared<C>(a, (i64)head * ceil_div(a.seqlen_q, C::kBlockM) + q_tile, v_scale);

    u32 shared = shared_address(dynamic_shared);
    if (C::kCopies == Copies::kBulk) keep_in_register(shared);  // before sm_90 it is a constant
    const int tiles = ceil_div(a.seqlen_k, C::kBlockN);
    const u32 first = head * tiles;
    const typename Warp<C>::Keys keys{{a.k_codes, (const u8*)a.k_scale, p.k_micro, (const u8*)p.k_bias},
                                      shared + C::kK,
                                      shared + C::kKBarriers,
                                      first,
                                      tiles};
    const u8* v_scales = C::kNvfp4Values ? p.v_micro : (const u8*)a.v_scale;
    const typename Warp<C>::Values values{{a.v_codes, v_scales}, shared + C::kV, shared + C::kVBarriers, first, tiles};
    keys.initialise();
    values.initialise();
    if (C::kCopies == Copies::kBulk) fence_proxy_async();  // the copy engine comes after the zeros
    __syncthreads();
    for (int i = 0; i < C::kStages - C::kLag; ++i) keys.fill(i);
    for (int i = 0; i < C::kStages - 1; ++i) values.fill(i);

    Warp<C> w(p, keys, values, q_tile, head, shared);
    attend(w);
    w.store(q_tile, head, v_scale);
}

// One kernel per configuration, named vc_attention_mma_d<head_dim>_<scores>_<probability>_<mean | plain>.
#define VC_MMA_ATTENTION(name, head_dim, scores, probability, mean, copies, nvfp4)                            \
    extern "C" __global__ void __launch_bounds__(256, 1) name(const __grid_constant__ MmaAttentionParams p) { \
        attention<MmaConfig<head_dim, Scores::scores, Probability::probability, mean, copies, nvfp4>>(p);     \
    }
