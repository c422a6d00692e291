// Stable counting sort of tokens by label (Eq. 3), from the histograms that the assignment left for every chunk of 768
// tokens.
#pragma once

#include "smxx/assign.cuh"

// Turns histograms into offsets: where the first token of label l of chunk c goes. Thread l owns label l. grid BH, 512
// threads
extern "C" __global__ void __launch_bounds__(kMaxClusters) vc_sort_offsets(const __grid_constant__ SortParams p) {
    __shared__ int warp_total[kMaxClusters / 32];
    int label = threadIdx.x, lane = label % 32, chunks = ceil_div(p.seqlen, kChunkTokens);
    int* column = p.offsets + (i64)blockIdx.x * chunks * p.clusters + label;
    bool owns = label < p.clusters;

    int total = 0;
#pragma unroll 8
    for (int chunk = 0; chunk < chunks; ++chunk) total += owns ? column[chunk * p.clusters] : 0;

    int inclusive = total;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        int lower = __shfl_up_sync(kFullWarp, inclusive, lanes);
        if (lane >= lanes) inclusive += lower;
    }
    if (lane == 31) warp_total[label / 32] = inclusive;
    __syncthreads();
    int next = inclusive - total;
    for (int warp = 0; warp < label / 32; ++warp) next += warp_total[warp];

    for (int first = 0; owns && first < chunks; first += 8) {
        int count[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) count[i] = first + i < chunks ? column[(first + i) * p.clusters] : 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (first + i < chunks) column[(first + i) * p.clusters] = next;
            next += count[i];
        }
    }
}

constexpr int kSortThreads = kAssignThreads;
constexpr int kSortWarps = kSortThreads / 32;
constexpr int kWarpShare = kChunkTokens / kSortWarps;  // neighbouring tokens of one warp

// Every token to its place, tokens of a label in sequence order. grid (BH, chunks), 192 threads, 6 * C ints of shared
// memory
extern "C" __global__ void __launch_bounds__(kSortThreads) vc_sort_scatter(const __grid_constant__ SortParams p) {
    extern __shared__ int next[];  // [warp][label]: first the warp's histogram, then where its next token goes
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, bh = blockIdx.x;
    int first = blockIdx.y * kChunkTokens + warp * kWarpShare;
    const u16* labels = p.labels + (i64)bh * p.seqlen;
    int* mine = next + warp * p.clusters;

    for (int i = threadIdx.x; i < kSortWarps * p.clusters; i += kSortThreads) next[i] = 0;
    __syncthreads();
    int label[kWarpShare / 32];
#pragma unroll
    for (int i = 0; i < kWarpShare / 32; ++i) {
        int token = first + 32 * i + lane;
        label[i] = token < p.seqlen ? labels[token] : kMaxClusters;  // no cluster has this label
        if (token < p.seqlen) atomicAdd(&mine[label[i]], 1);
    }
    __syncthreads();

    const int* offsets = p.offsets + ((i64)bh * gridDim.y + blockIdx.y) * p.clusters;
    for (int l = threadIdx.x; l < p.clusters; l += kSortThreads) {
        int place = offsets[l];
#pragma unroll
        for (int w = 0; w < kSortWarps; ++w) {
            int count = next[w * p.clusters + l];
            next[w * p.clusters + l] = place;
            place += count;
        }
    }
    __syncthreads();

#pragma unroll
    for (int i = 0; i < kWarpShare / 32; ++i) {
        u32 same = __match_any_sync(kFullWarp, label[i]);
        int before = __popc(same & ((1u << lane) - 1));
        bool exists = label[i] < kMaxClusters;
        int place = exists ? mine[label[i]] + before : 0;
        __syncwarp();
        if (exists) {
            p.perm[(i64)bh * p.seqlen + place] = first + 32 * i + lane;
            if (before == 0) mine[label[i]] = place + __popc(same);
        }
        __syncwarp();
    }
}
