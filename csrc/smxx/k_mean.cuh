// Channel mean of K over every s-th block of 128 tokens in sequence order: k_mean of vc_attention/reference/scores.py.
#pragma once

#include "smxx/columns.cuh"

// grid (BH, sampled blocks), 2 D threads
template <class T, int D>
__device__ inline void k_mean(const KMeanParams& p) {
    __shared__ Partials<D> partial;
    const Columns<D> at;
    int bh = blockIdx.x, sample = blockIdx.y;

    TileWords raw;
    load_tile(p.k, head(p.k, bh), nullptr, sample * p.block_stride, p.seqlen, at, raw);
    sum_rows<T>(raw, at, partial);
    __syncthreads();
    int channel = threadIdx.x;
    if (channel < D) p.sums[((i64)bh * gridDim.y + sample) * D + channel] = finish_rows<D>(partial, channel, Add());
}

// grid BH, D threads
extern "C" __global__ void vc_k_mean_finish(const __grid_constant__ KMeanFinishParams p) {
    int head_dim = blockDim.x;
    const float* sums = p.sums + (i64)blockIdx.x * p.sampled * head_dim + threadIdx.x;
    p.mean[blockIdx.x * head_dim + threadIdx.x] = __fdiv_rn(tree_sum(sums, p.sampled, head_dim), p.rows);
}
