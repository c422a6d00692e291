// Channel statistics of Q and K over every s-th block of 128 tokens in sequence order: the mean of K, and what balances
// Q and K. sample_sum, channel_mean and balance of vc_attention/reference/scores.py.
#pragma once

#include "smxx/columns.cuh"

// grid (BH, sampled blocks), 2 D threads
template <class T, int D>
__device__ inline void sample_sums(const SampleSumsParams& p) {
    __shared__ Partials<D> partial, squares;
    const Columns<D> at;
    int bh = blockIdx.x, sample = blockIdx.y;

    TileWords raw;
    load_tile(p.x, head(p.x, bh), nullptr, sample * p.block_stride, p.seqlen, at, raw);
    sum_rows<T>(raw, at, partial, Itself());
    forget_widened(raw);
    sum_rows<T>(raw, at, squares, Square());
    __syncthreads();
    int channel = threadIdx.x;
    if (channel >= D) return;
    i64 out = ((i64)bh * gridDim.y + sample) * D + channel;
    p.sums[out] = finish_rows<D>(partial, channel, Add());
    p.squares[out] = finish_rows<D>(squares, channel, Add());
}

// The power of two that brings mean squares `q` and `k` of a channel nearest to each other: 2^(log2(k / q) / 4),
// rounded in the exponent, at most 2^+-8; 1 where one of them counts as zero.
__device__ inline float balance(float q, float k) {
    constexpr int kBias = 127, kMost = 8;
    int octaves = (int)(__float_as_uint(__fdiv_rn(k, fmaxf(q, kTiny))) >> 23) - kBias;
    int exponent = min(max((octaves + 2) >> 2, -kMost), kMost);
    return q < kTiny || k < kTiny ? 1.f : __uint_as_float((u32)(exponent + kBias) << 23);
}

// grid BH, D threads
extern "C" __global__ void vc_channel_stats(const __grid_constant__ ChannelStatsParams p) {
    int head_dim = blockDim.x, channel = threadIdx.x;
    i64 bh = blockIdx.x, first = bh * p.sampled_k * head_dim + channel;
    float sum = tree_sum(p.k_sums + first, p.sampled_k, head_dim);
    float mean = __fdiv_rn(sum, p.rows_k), factor = 1.f;
    if (p.q_squares != nullptr) {
        float k = tree_sum(p.k_squares + first, p.sampled_k, head_dim) - sum * mean;
        float q = tree_sum(p.q_squares + bh * p.sampled_q * head_dim + channel, p.sampled_q, head_dim);
        factor = balance(__fdiv_rn(q, p.rows_q), __fdiv_rn(k, p.rows_k));
    }
    p.k_mean[bh * head_dim + channel] = mean;
    p.factor[bh * 2 * head_dim + channel] = factor;
    p.factor[(bh * 2 + 1) * head_dim + channel] = 1.f / factor;  // exact
}
