// k-means over value tokens in exact integers: everything but the assignment (vc_attention/reference/grouping.py).
// Training tokens are every token_stride-th token, `rows` of them.
#pragma once

#include "common/tree.cuh"
#include "smxx/quad.cuh"

constexpr float kRange = 8.f;  // int8 covers 8 rms

// Value -> int8 steps.
__device__ inline float to_steps(float x, float step) {
    return fminf(fmaxf(rintf(x * step), -127.f), 127.f);
}

template <class T>
__device__ inline float load_element(const View& v, const u16* base, i64 token, int channel) {
    u32 word = base[token * v.stride_token + channel * v.stride_channel];
    return clean(T::low(word));
}

// Sum of squares of 128 training tokens, tree_sum over (token, channel). grid (BH, ceil(rows / 128)), 128 threads
template <class T, int D>
__device__ inline void kmeans_moments(const KMeansMomentsParams& p) {
    __shared__ float warp_sum[4];
    const Quad at;
    int token[kPasses];
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
        int row = kTile * blockIdx.y + 32 * at.warp + 8 * pass + at.row;
        token[pass] = row < p.rows ? row * p.token_stride : -1;
    }
    u32 raw[kPasses][D / 32][4];
    load_quads(p.v, head(p.v, blockIdx.x), token, at, raw);

    float sum[kPasses];
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
        float x[D / 32][8], chunk_sum[D / 32];
        widen<T>(raw[pass], x);
#pragma unroll
        for (int chunk = 0; chunk < D / 32; ++chunk) {
#pragma unroll
            for (int i = 0; i < 8; ++i) x[chunk][i] *= x[chunk][i];
            float s = tree8(x[chunk]);
            s += __shfl_xor_sync(kFullWarp, s, 1);
            chunk_sum[chunk] = s + __shfl_xor_sync(kFullWarp, s, 2);
        }
#pragma unroll
        for (int stride = 1; stride < D / 32; stride *= 2) {
#pragma unroll
            for (int chunk = 0; chunk < D / 32; chunk += 2 * stride) chunk_sum[chunk] += chunk_sum[chunk + stride];
        }
        sum[pass] = chunk_sum[0];
#pragma unroll
        for (int rows = 4; rows < 32; rows *= 2) sum[pass] += __shfl_xor_sync(kFullWarp, sum[pass], rows);
    }
    if (threadIdx.x % 32 == 0) warp_sum[at.warp] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    __syncthreads();
    if (threadIdx.x == 0)
        p.sums[blockIdx.x * gridDim.y + blockIdx.y] = (warp_sum[0] + warp_sum[1]) + (warp_sum[2] + warp_sum[3]);
}

// tree_sum over `count` values by one warp: a lane takes a power of two of neighbours, so lanes are subtrees.
__device__ inline float warp_tree_sum(const float* x, int count) {
    int share = 1;
    while (32 * share < count) share *= 2;
    int lane = threadIdx.x % 32, first = lane * share;
    float sum = tree_sum(x + first, max(0, min(share, count - first)), 1);
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(kFullWarp, sum, lanes);
    return sum;
}

// The step, and strided training tokens as first centroids. grid (BH, C), D threads
template <class T>
__device__ inline void kmeans_init(const KMeansInitParams& p) {
    int bh = blockIdx.x, cluster = blockIdx.y, channel = threadIdx.x, parts = ceil_div(p.rows, kTile);
    float mean_square = __fdiv_rn(warp_tree_sum(p.sums + bh * parts, parts), (float)((i64)p.rows * p.head_dim));
    float rms = __fsqrt_rn(mean_square);
    float step = rms < kTiny ? 0.f : __fdiv_rn(127.f, kRange * rms);
    if (cluster == 0 && channel == 0) p.step[bh] = step;

    i64 row = (i64)cluster * p.rows / p.clusters;
    float x = load_element<T>(p.v, head(p.v, bh), row * p.token_stride, channel);
    p.centroids[((i64)bh * p.clusters + cluster) * p.head_dim + channel] = (u8)__float2int_rn(to_steps(x, step));
}

constexpr int kIndexBits = 9;
constexpr int kMaxClusters = 1 << kIndexBits;

// Smallest key of the block; `stage` alternates between calls so that one barrier does.
__device__ inline u32 block_min(u32 key, u32 (&stage)[kMaxClusters / 32]) {
    key = __reduce_min_sync(kFullWarp, key);
    if (threadIdx.x % 32 == 0) stage[threadIdx.x / 32] = key;
    __syncthreads();
    return __reduce_min_sync(kFullWarp, stage[threadIdx.x % (kMaxClusters / 32)]);
}

// Greedy nearest-neighbour tour, from the centroid of largest norm. A key is (distance << kIndexBits | index), so ties
// go to the lowest index; a squared distance fits 23 bits. Thread i keeps centroid i. grid BH, 512 threads
template <int D>
__device__ inline void kmeans_chain(const KMeansChainParams& p) {
    constexpr u32 kVisited = 0xffffffffu, kLargest = (1u << 23) - 1;
    __shared__ u32 stage[2][kMaxClusters / 32];
    __shared__ int norms[kMaxClusters];
    int self = threadIdx.x;
    bool waiting = self < p.clusters;
    const int4* centroids = reinterpret_cast<const int4*>(p.centroids + (i64)blockIdx.x * p.clusters * D);

    int4 own[D / 16];
    int norm = 0;
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
        own[i] = waiting ? centroids[self * (D / 16) + i] : make_int4(0, 0, 0, 0);
        norm = __dp4a(own[i].x, own[i].x, __dp4a(own[i].y, own[i].y, norm));
        norm = __dp4a(own[i].z, own[i].z, __dp4a(own[i].w, own[i].w, norm));
    }
    norms[self] = norm;
    u32 key = waiting ? (kLargest - norm) << kIndexBits | self : kVisited;
    for (int place = 0; place < p.clusters; ++place) {
        int current = block_min(key, stage[place & 1]) & (kMaxClusters - 1);
        if (current == self) {
            p.rank[blockIdx.x * p.clusters + self] = place;
            waiting = false;
        }
        int dot[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < D / 16; ++i) {
            int4 other = __ldg(centroids + current * (D / 16) + i);
            dot[0] = __dp4a(own[i].x, other.x, dot[0]);
            dot[1] = __dp4a(own[i].y, other.y, dot[1]);
            dot[2] = __dp4a(own[i].z, other.z, dot[2]);
            dot[3] = __dp4a(own[i].w, other.w, dot[3]);
        }
        int distance = norm + norms[current] - 2 * (dot[0] + dot[1] + dot[2] + dot[3]);
        key = waiting ? (u32)distance << kIndexBits | self : kVisited;
    }
}
