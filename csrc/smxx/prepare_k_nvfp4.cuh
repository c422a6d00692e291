// K to NVFP4 without the means of its tiles, the means, and what the mean query contributes: quantize_without_means of
// vc_attention/reference/score_means.py.
#pragma once

#include "smxx/columns.cuh"
#include "smxx/rows_nvfp4.cuh"

// Keys: 256 threads with two neighbouring rows each, so that sums over rows begin in a thread. One row waits in shared
// memory: both would fill the registers.
constexpr int kKeyThreads = 256;
constexpr int kKeyWarps = kKeyThreads / 32;
constexpr int kKeyRows = 2;

__device__ inline int key_row(const Quad& at, int i) {
    return kKeyRows * (8 * at.warp + at.row) + i;
}

template <int D>
struct KeyTile {
    Channels<D> mean, q_mean;  // channel mean of the head's keys, then mean of this tile, rotated; of queries, rotated
    Channels<D> partial[kKeyWarps];
    float4 waiting[D / 16][kKeyThreads];
    float bias[kTile];
    u32 amax;

    __device__ float4& part(int chunk, int i) { return waiting[(kGroup * chunk + i) / 4][threadIdx.x]; }
};

// Row `row` of a tile of `count` keys, zeros where there is none.
template <class T, int D>
__device__ inline void rotated_key(const PrepareKNvfp4Params& p, const u16* base, int tile, int row, int count,
                                   const Channels<D>& mean, const Quad& at, RowValues<D>& x) {
    int token = kTile * tile + min(row, count - 1);
    if (p.perm != nullptr) token = p.perm[blockIdx.x * (i64)p.seqlen + token];
    rotated_row<T, D>(p.k, base + token * p.k.stride_token, mean, at, x);
    if (count == kTile) return;
#pragma unroll
    for (int chunk = 0; chunk < D / 64; ++chunk) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) x[chunk][i] = row < count ? x[chunk][i] : 0.f;
    }
}

template <int D>
__device__ inline void let_wait(const RowValues<D>& x, KeyTile<D>& s) {
#pragma unroll
    for (int chunk = 0; chunk < D / 64; ++chunk) {
#pragma unroll
        for (int i = 0; i < kGroup; i += 4) s.part(chunk, i) = *reinterpret_cast<const float4*>(x[chunk] + i);
    }
}

template <int D>
__device__ inline void fetch(KeyTile<D>& s, int chunk, float (&x)[kGroup]) {
#pragma unroll
    for (int i = 0; i < kGroup; i += 4) *reinterpret_cast<float4*>(x + i) = load_shared_v4(&s.part(chunk, i).x);
}

// Mean of the tile's rotated rows, into s.mean, and its part in s.amax.
template <int D>
__device__ inline void tile_mean(const RowValues<D>& x, const Quad& at, float count, KeyTile<D>& s) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int chunk = 0; chunk < D / 64; ++chunk) {
        float other[kGroup];
        fetch<D>(s, chunk, other);
#pragma unroll
        for (int first = 0; first < kGroup; first += 8) {
            float sum[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[i] = other[first + i] + x[chunk][first + i];
            int own = (lane >> 2 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 4 & 1);
            int channel = kGroup * (at.column + 4 * chunk) + first + own;
            s.partial[at.warp][spaced(channel)] = reduce_lanes(sum, lane, Add());
        }
    }
    __syncthreads();
    int channel = threadIdx.x;
    if (channel < D) {
        float sum[kKeyWarps];
#pragma unroll
        for (int warp = 0; warp < kKeyWarps; ++warp) sum[warp] = s.partial[warp][spaced(channel)];
        float mean = __fdiv_rn(tree8(sum), count);
        s.mean[spaced(channel)] = mean;
        block_amax(fabsf(mean), &s.amax);
    }
    __syncthreads();
}

// A chunk of the row that waited, less the tile's mean.
template <int D>
__device__ inline void fetch_residual(KeyTile<D>& s, const Quad& at, int chunk, float (&x)[kGroup]) {
    float mean[kGroup];
    fetch<D>(s, chunk, x);
    load_channels(s.mean, at, chunk, mean);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] -= mean[i];
}

// tree_sum of x * q_mean over the channels of the row that the quad shares.
template <int D>
__device__ inline float product_with(const Channels<D>& q_mean, const Quad& at, const RowValues<D>& x) {
    float sum[D / 64];
#pragma unroll
    for (int chunk = 0; chunk < D / 64; ++chunk) {
        float m[kGroup], product[2][8];
        load_channels(q_mean, at, chunk, m);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) product[i / 8][i % 8] = x[chunk][i] * m[i];
        sum[chunk] = tree8(product[0]) + tree8(product[1]);
        sum[chunk] += __shfl_xor_sync(kFullWarp, sum[chunk], 1);
        sum[chunk] += __shfl_xor_sync(kFullWarp, sum[chunk], 2);
    }
    if constexpr (D == 64)
        return sum[0];
    else
        return sum[0] + sum[1];
}

// grid (BH, nT), 256 threads
template <class T, int D>
__device__ inline void prepare_k_nvfp4(const PrepareKNvfp4Params& p) {
    __shared__ KeyTile<D> s;
    const Quad at;
    int bh = blockIdx.x, tile = blockIdx.y, count = min(kTile, p.seqlen - kTile * tile);
    i64 image = (i64)bh * gridDim.y + tile;
    stage_channels<D>(p.mean + (i64)bh * D, s.mean);
    stage_channels<D>(p.q_center + ((i64)bh * 2 + 1) * D, s.q_mean);
    if (threadIdx.x == 0) s.amax = 0;
    __syncthreads();

    const u16* base = head(p.k, bh);
    RowValues<D> x;
#pragma unroll 1  // less code and fewer registers
    for (int i = 0; i < kKeyRows; ++i) {
        if (i > 0) let_wait<D>(x, s);
        int row = key_row(at, i);
        rotated_key<T, D>(p, base, tile, row, count, s.mean, at, x);
        float product = product_with<D>(s.q_mean, at, x);
        if (at.column == 0) s.bias[row] = product;
    }
    __syncthreads();  // all have read the head's mean
    tile_mean<D>(x, at, (float)count, s);

    constexpr int kChunks = D / 64;
    float amax = 0.f;
#pragma unroll 1  // the row that waits, a few registers at a time
    for (int chunk = 0; chunk < kChunks; ++chunk) {
        float rest[1][kGroup];
        fetch_residual<D>(s, at, chunk, rest[0]);
        if (key_row(at, 0) < count) amax = fmaxf(amax, thread_amax(rest));
    }
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
        float mean[kGroup];
        load_channels(s.mean, at, chunk, mean);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) x[chunk][i] -= mean[i];
    }
    if (key_row(at, 1) < count) amax = fmaxf(amax, thread_amax(x));
    block_amax(amax, &s.amax);
    __syncthreads();

    amax = __uint_as_float(s.amax);
    const float inverse = nvfp4_inverse(amax);
    if (threadIdx.x < kTile) {
        float bias = s.bias[threadIdx.x] * inverse * nvfp4_inverse(p.q_amax[bh]);
        p.bias[image * kTile + image_row_of_key(threadIdx.x, 8)] = bias;
    }
    if (threadIdx.x < 4) p.scale[image * 4 + threadIdx.x] = nvfp4_scale(amax);
    u8* codes = p.codes + image * (kTile + 8) * (D / 2);
    u8* micro = p.micro + image * (kTile + 8) * (D / 16);
#pragma unroll 1  // one body; what waited comes last
    for (int turn = 0; turn < kKeyRows * kChunks; ++turn) {
        int key = key_row(at, turn < kChunks), group = at.column + 4 * (turn % kChunks);
        store_group<D, 1>(codes, micro, image_row_of_key(key, 8), 0, group, key < count ? inverse : 0.f, x[0]);
        if (turn + 1 < kChunks) {
            move_on<D>(x);
        } else {
            fetch_residual<D>(s, at, (turn + 1) % kChunks, x[0]);
        }
    }
    if (at.warp != 0) return;
    // Two quads share the chunks of the mean: it goes to even rows, what rounding lost of it to odd ones.
    int chunk = at.row % (D / 64);
    float mean[kGroup];
    load_channels(s.mean, at, chunk, mean);
    store_group<D, 2>(codes, micro, kTile + (at.row & ~1), 1, at.column + 4 * chunk, inverse, mean);
}
