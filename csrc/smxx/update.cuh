// New centroids: floor((2 sum + count) / (2 count)) over the training tokens of each cluster, which the counting sort
// has put side by side. Integer sums need no order, and no two blocks share one, so there are no atomics.
#pragma once

#include "smxx/sort.cuh"

constexpr int kUpdateThreads = 128;
constexpr int kUpdateWarps = kUpdateThreads / 32;
constexpr int kUpdateUnroll = 4;

// kPairs pairs of neighbouring channels of the token at `row`, clean.
template <class T, int kPairs>
__device__ inline void load_pairs(const View& v, const u16* row, int channel, float (&x)[2 * kPairs]) {
    u32 word[kPairs];
    if (!v.vector) {
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            u32 low = row[(channel + 2 * i) * v.stride_channel], high = row[(channel + 2 * i + 1) * v.stride_channel];
            word[i] = low | high << 16;
        }
    } else if constexpr (kPairs == 2) {
        uint2 pair = __ldg(reinterpret_cast<const uint2*>(row + channel));
        word[0] = pair.x;
        word[1] = pair.y;
    } else {
        word[0] = __ldg(reinterpret_cast<const u32*>(row + channel));
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
        x[2 * i] = clean(T::low(word[i]));
        x[2 * i + 1] = clean(T::high(word[i]));
    }
}

// grid (BH, C), 128 threads: warps take tokens of the cluster in turn, lanes D / 32 channels each
template <class T, int D>
__device__ inline void kmeans_update(const KMeansUpdateParams& p) {
    constexpr int kChannels = D / 32;
    __shared__ int partial[kUpdateWarps][D];
    int bh = blockIdx.x, cluster = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int* first = p.offsets + (i64)bh * ceil_div(p.rows, kChunkTokens) * p.clusters;  // of every label, in chunk 0
    int begin = first[cluster], end = cluster + 1 < p.clusters ? first[cluster + 1] : p.rows;
    if (begin == end) return;  // an empty cluster keeps its centroid

    const u16* base = head(p.v, bh);
    const int* perm = p.perm + (i64)bh * p.rows;
    float step = p.step[bh];
    int sum[kChannels] = {};
    for (int place = begin + warp; place < end; place += kUpdateWarps * kUpdateUnroll) {
        float x[kUpdateUnroll][kChannels];
#pragma unroll
        for (int i = 0; i < kUpdateUnroll; ++i) {
            int at = min(place + i * kUpdateWarps, end - 1);
            i64 token = (i64)perm[at] * p.token_stride;
            load_pairs<T, kChannels / 2>(p.v, base + token * p.v.stride_token, lane * kChannels, x[i]);
        }
#pragma unroll
        for (int i = 0; i < kUpdateUnroll; ++i) {
            if (place + i * kUpdateWarps >= end) continue;
#pragma unroll
            for (int j = 0; j < kChannels; ++j) sum[j] += __float2int_rn(to_steps(x[i][j], step));
        }
    }
#pragma unroll
    for (int j = 0; j < kChannels; ++j) partial[warp][lane * kChannels + j] = sum[j];
    __syncthreads();

    int channel = threadIdx.x;
    if (channel >= D) return;
    int total = 0, members = end - begin;
#pragma unroll
    for (int w = 0; w < kUpdateWarps; ++w) total += partial[w][channel];
    int above = 2 * total + members, below = 2 * members;
    int mean = above / below - (above % below < 0);  // the quotient rounds to zero, floor is wanted
    p.centroids[((i64)bh * p.clusters + cluster) * D + channel] = (u8)mean;
}
