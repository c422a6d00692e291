// Nearest centroid of every token on the integer tensor cores: argmax over c of x.c - ((|c|^2 + 1) >> 1).
//
// The score fits 22 bits and an index 9, so `score << kIndexBits | (511 - index)` is one int32 whose maximum is the
// answer, ties to the lowest index: one shift-add and one maximum per score.
#pragma once

#include "ptx/mma.cuh"
#include "smxx/kmeans.cuh"

// Two blocks an SM: three warps a scheduler with 168 registers each. 256 threads would leave 128 and spill.
constexpr int kAssignThreads = 192;
constexpr int kWarpTokens = 64;  // four m16 tiles share every centroid fragment
constexpr int kRounds = 2;
constexpr int kChunkTokens = kAssignThreads / 32 * kWarpTokens * kRounds;  // tokens of a block: one histogram

// Clusters are padded to a multiple of 8 columns. Dynamic shared memory: codes, then keys, then the histogram.
template <int D>
struct AssignShared {
    u8* codes;       // [padded][D], see stage_centroids
    int* key;        // [padded] what the shifted dot product is added to
    int* histogram;  // [C]

    __device__ AssignShared(uint4* raw, int padded) {
        codes = reinterpret_cast<u8*>(raw);
        key = reinterpret_cast<int*>(codes + padded * D);
        histogram = key + padded;
    }
};

// Byte offset of the 16 bytes that lane column `column` multiplies in the k-steps 2 * pair and 2 * pair + 1. Rows of
// 128 bytes alternate their halves, so that 8 lanes reading 16 bytes meet no bank twice.
template <int D>
__device__ inline int fragment(int cluster, int pair, int column) {
    int half = D == 128 ? pair ^ (cluster & 1) : pair;
    return cluster * D + half * 64 + column * 16;
}

// Any order of channels does for a dot product if both sides share it. Lane column t takes the 8-channel chunks t, t +
// 4, ... as a row of `Quad` does, so chunk t + 4 j lands in half j & 1 of the lane's 16 bytes of pair j >> 1.
template <int D>
__device__ inline void stage_centroids(const u8* centroids, int clusters, int padded, const AssignShared<D>& s) {
    constexpr int kLanes = D / 16;  // 16 bytes each
    for (int i = threadIdx.x; i < padded * kLanes; i += kAssignThreads) {
        int cluster = i / kLanes, part = i % kLanes;
        int4 c = make_int4(0, 0, 0, 0);
        if (cluster < clusters) c = *reinterpret_cast<const int4*>(centroids + cluster * D + part * 16);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int chunk = 2 * part + half;
            int2 codes = half == 0 ? make_int2(c.x, c.y) : make_int2(c.z, c.w);
            int offset = fragment<D>(cluster, chunk >> 3, chunk & 3) + (chunk >> 2 & 1) * 8;
            *reinterpret_cast<int2*>(s.codes + offset) = codes;
        }
        int norm = __dp4a(c.x, c.x, __dp4a(c.y, c.y, __dp4a(c.z, c.z, __dp4a(c.w, c.w, 0))));
#pragma unroll
        for (int lanes = 1; lanes < kLanes; lanes *= 2) norm += __shfl_xor_sync(kFullWarp, norm, lanes);
        // A padded column never wins: its dot product is 0.
        if (part == 0)
            s.key[cluster] =
                cluster < clusters ? -((norm + 1) >> 1) * kMaxClusters + (kMaxClusters - 1 - cluster) : (int)0x80000000;
    }
}

// A fragments of 64 tokens from `first`: a[m][k-step][register].
template <class T, int D>
__device__ inline void load_tokens(const KMeansAssignParams& p, const u16* base, int first, const Quad& at, float step,
                                   u32 (&a)[4][D / 32][4]) {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
        const u16* row[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            int token = first + 16 * m + 8 * r + at.row;
            row[r] = token < p.rows ? base + (i64)token * p.token_stride * p.v.stride_token : nullptr;
        }
        u32 raw[2][D / 32][4];
        load_rows(p.v, row, 8 * at.column, 32, raw);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int chunk = 0; chunk < D / 32; ++chunk) {
                // One chunk at a time: registers are full of fragments.
                const u32 word[1][4] = {{raw[r][chunk][0], raw[r][chunk][1], raw[r][chunk][2], raw[r][chunk][3]}};
                float x[1][8], y[8];
                widen<T>(word, x);
#pragma unroll
                for (int i = 0; i < 8; ++i) y[i] = fminf(fmaxf(x[0][i] * step, -127.f), 127.f);
                // Chunk j feeds k-step j: bytes 0..3 are k = 4t.., bytes 4..7 k = 16 + 4t..
                a[m][chunk][r] = pack_s8x4(y[0], y[1], y[2], y[3]);
                a[m][chunk][r + 2] = pack_s8x4(y[4], y[5], y[6], y[7]);
            }
        }
    }
}

// Best key of the 8 rows that a thread shares with its quad: best[m][r] of token 16 m + 8 r + at.row.
template <int D>
__device__ inline void best_keys(const AssignShared<D>& s, int padded, const Quad& at, const u32 (&a)[4][D / 32][4],
                                 int (&best)[4][2]) {
#pragma unroll
    for (int m = 0; m < 4; ++m) best[m][0] = best[m][1] = (int)0x80000000;
#pragma unroll 2
    for (int column = 0; column < padded; column += 8) {
        int dot[4][4] = {};
#pragma unroll
        for (int pair = 0; pair < D / 64; ++pair) {
            uint4 codes = *reinterpret_cast<const uint4*>(s.codes + fragment<D>(column + at.row, pair, at.column));
            const u32 b[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
            for (int m = 0; m < 4; ++m) mma_s8(dot[m], a[m][2 * pair], b, dot[m]);
#pragma unroll
            for (int m = 0; m < 4; ++m) mma_s8(dot[m], a[m][2 * pair + 1], b + 2, dot[m]);
        }
        int2 key = *reinterpret_cast<const int2*>(s.key + column + 2 * at.column);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
#pragma unroll
            for (int r = 0; r < 2; ++r)
                best[m][r] = max(best[m][r],
                                 max((dot[m][2 * r] << kIndexBits) + key.x, (dot[m][2 * r + 1] << kIndexBits) + key.y));
        }
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            best[m][r] = max(best[m][r], __shfl_xor_sync(kFullWarp, best[m][r], 1));
            best[m][r] = max(best[m][r], __shfl_xor_sync(kFullWarp, best[m][r], 2));
        }
    }
}

// grid (BH, ceil(rows / 768)), 192 threads, padded * (D + 4) + C * 4 bytes of shared memory
template <class T, int D>
__device__ inline void kmeans_assign(const KMeansAssignParams& p) {
    extern __shared__ uint4 raw_shared[];
    const Quad at;
    int padded = ceil_div(p.clusters, 8) * 8, bh = blockIdx.x;
    const AssignShared<D> s(raw_shared, padded);
    const u16* base = head(p.v, bh);
    float step = p.step[bh];

    for (int i = threadIdx.x; i < p.clusters; i += kAssignThreads) s.histogram[i] = 0;
    stage_centroids<D>(p.centroids + (i64)bh * p.clusters * D, p.clusters, padded, s);
    __syncthreads();

#pragma unroll 1
    for (int round = 0; round < kRounds; ++round) {
        int first = blockIdx.y * kChunkTokens + (round * kAssignThreads / 32 + at.warp) * kWarpTokens;
        if (first >= p.rows) break;
        u32 a[4][D / 32][4];
        int best[4][2];
        load_tokens<T, D>(p, base, first, at, step, a);
        best_keys<D>(s, padded, at, a, best);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                int token = first + 16 * m + 8 * r + at.row;
                if (at.column != m || token >= p.rows) continue;  // lane m of a quad writes m's tokens
                int label = kMaxClusters - 1 - (best[m][r] & (kMaxClusters - 1));
                if (p.rank != nullptr) label = p.rank[bh * p.clusters + label];
                p.labels[(i64)bh * p.rows + token] = (u16)label;
                atomicAdd(&s.histogram[label], 1);
            }
        }
    }
    __syncthreads();
    int* out = p.histogram + ((i64)bh * gridDim.y + blockIdx.y) * p.clusters;
    for (int i = threadIdx.x; i < p.clusters; i += kAssignThreads) out[i] = s.histogram[i];
}
