// Q and K to NVFP4 without their means: quantize_without_means of vc_attention/reference/score_means.py.
#pragma once

#include "common/hadamard.cuh"
#include "common/swizzle.cuh"
#include "smxx/columns.cuh"
#include "smxx/nvfp4.cuh"
#include "smxx/quad.cuh"

// Mean of a head's queries, as it is and rotated, and its part in their amax. grid BH, D threads
extern "C" __global__ void vc_q_center(const __grid_constant__ QCenterParams p) {
    __shared__ float row[2][128];
    __shared__ u32 amax;
    int head_dim = blockDim.x, channel = threadIdx.x;
    i64 bh = blockIdx.x;
    float mean = __fdiv_rn(tree_sum(p.sums + bh * p.sampled * head_dim + channel, p.sampled, head_dim), p.rows);
    float x = mean;
    if (channel == 0) amax = 0;
    for (int stride = 1, side = 0; stride < head_dim; stride *= 2, side ^= 1) {
        row[side][channel] = x;
        __syncthreads();
        float other = row[side][channel ^ stride];
        x = channel & stride ? other - x : x + other;
    }
    atomicMax(&amax, __float_as_uint(fabsf(x)));
    __syncthreads();
    p.center[bh * 2 * head_dim + channel] = mean;
    p.center[(bh * 2 + 1) * head_dim + channel] = x;
    if (channel == 0) p.amax[bh] = __uint_as_float(amax);
}

// The eight channels of a chunk, from shared memory. Read when they are needed: kept they would not fit.
__device__ inline void load_channels(const float* shared, const Quad& at, int chunk, float (&value)[8]) {
    *reinterpret_cast<float4*>(value) = load_shared_v4(shared + 8 * at.column + 32 * chunk);
    *reinterpret_cast<float4*>(value + 4) = load_shared_v4(shared + 8 * at.column + 32 * chunk + 4);
}

// x = a row less `mean`, rotated; zeros when it does not exist.
template <class T, int D>
__device__ inline void rotated_row(const u32 (&raw)[D / 32][4], bool exists, const float (&mean)[D], const Quad& at,
                                   float (&x)[D / 32][8]) {
    widen<T>(raw, x);
#pragma unroll
    for (int chunk = 0; chunk < D / 32; ++chunk) {
        float m[8];
        load_channels(mean, at, chunk, m);
#pragma unroll
        for (int i = 0; i < 8; ++i) x[chunk][i] = exists ? x[chunk][i] - m[i] : 0.f;
    }
    hadamard_quad(x, at.column);
}

// Row within the tile that lane row `at.row` of `pass` holds.
__device__ inline int query_row(const Quad& at, int pass) {
    return 32 * at.warp + 8 * pass + at.row;
}

// The query of lane row `at.row` of `pass`: few registers and little code, other warps hide the latency.
template <class T, int D>
__device__ inline bool rotated_query(const PrepareQNvfp4Params& p, int pass, const float (&mean)[D], const Quad& at,
                                     float (&x)[D / 32][8]) {
    int query = kTile * blockIdx.y + query_row(at, pass);
    bool exists = query < p.seqlen;
    const u16* row[1] = {exists ? head(p.q, blockIdx.x) + (i64)query * p.q.stride_token : nullptr};
    u32 raw[1][D / 32][4];
    load_rows(p.q, row, 8 * at.column, 32, raw);
    rotated_row<T, D>(raw[0], exists, mean, at, x);
    return exists;
}

// Codes and micro scales of row `row` of y * inverse; y becomes what rounding lost of that.
template <int D>
__device__ inline void store_nvfp4_row(u8* codes, u8* micro, int row, int column, float inverse,
                                       float (&y)[D / 32][8]) {
#pragma unroll
    for (int chunk = 0; chunk < D / 32; ++chunk) {
        u32 word, scale;
        float decoded[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) y[chunk][i] *= inverse;
        encode_nvfp4(y[chunk], word, scale, decoded);
#pragma unroll
        for (int i = 0; i < 8; ++i) y[chunk][i] -= decoded[i];
        *reinterpret_cast<u32*>(codes + swizzled<D / 2>(row, 4 * (column + 4 * chunk))) = word;
        if (column % 2 == 0) micro[row * (D / 16) + 2 * chunk + column / 2] = (u8)scale;
    }
}

// Largest of the block's magnitudes, in `result` after a barrier.
__device__ inline void block_amax(float amax, u32* result) {
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, lanes));
    if (threadIdx.x % 32 == 0) atomicMax(result, __float_as_uint(amax));
}

template <int D>
__device__ inline void stage_row(const float* source, float (&shared)[D]) {
    for (int channel = threadIdx.x; channel < D; channel += blockDim.x) shared[channel] = source[channel];
}

// Largest magnitude of a head's queries. grid (BH, nT), 128 threads
template <class T, int D>
__device__ inline void q_amax(const PrepareQNvfp4Params& p) {
    __shared__ float mean[D];
    const Quad at;
    stage_row<D>(p.center + (i64)blockIdx.x * 2 * D, mean);
    __syncthreads();
    float amax = 0.f;
#pragma unroll 1
    for (int pass = 0; pass < kPasses; ++pass) {
        float x[D / 32][8];
        rotated_query<T>(p, pass, mean, at, x);
        amax = fmaxf(amax, thread_amax(x));
    }
    block_amax(amax, reinterpret_cast<u32*>(p.amax) + blockIdx.x);
}

// grid (BH, nT), 128 threads
template <class T, int D>
__device__ inline void prepare_q_nvfp4(const PrepareQNvfp4Params& p) {
    __shared__ float mean[D];
    const Quad at;
    i64 image = (i64)blockIdx.x * gridDim.y + blockIdx.y;
    stage_row<D>(p.center + (i64)blockIdx.x * 2 * D, mean);
    __syncthreads();
    const float amax = p.amax[blockIdx.x], inverse = nvfp4_inverse(amax), scale = nvfp4_scale(amax);
    u8* codes = p.codes + image * kTile * D;
    u8* micro = p.micro + image * kTile * (D / 8);
#pragma unroll 1
    for (int pass = 0; pass < kPasses; ++pass) {
        int row = query_row(at, pass);
        float x[D / 32][8];
        bool exists = rotated_query<T>(p, pass, mean, at, x);
#pragma unroll 1  // less code; the second image is of what rounding lost in the first
        for (int part = 0; part < 2; ++part)
            store_nvfp4_row<D>(codes + part * kTile * (D / 2), micro + part * kTile * (D / 16), row, at.column,
                               part ? 1.f : inverse, x);
        if (at.column == 0) p.scale[image * kTile + row] = exists ? scale : 0.f;
    }
}

// Keys: 256 threads with two neighbouring rows each, so that sums over rows begin in a thread.
constexpr int kKeyThreads = 256;
constexpr int kKeyWarps = kKeyThreads / 32;
constexpr int kKeyRows = 2;

__device__ inline int key_row(const Quad& at, int i) {
    return kKeyRows * (8 * at.warp + at.row) + i;
}

template <int D>
struct KeyTile {
    float mean[D], q_mean[D];  // channel mean of the head's keys, then mean of this tile, rotated; of queries, rotated
    float partial[kKeyWarps][D];
    u32 amax;
};

// Mean of the tile's rotated rows, into s.mean.
template <int D>
__device__ inline void tile_mean(const float (&x)[kKeyRows][D / 32][8], const Quad& at, float count, KeyTile<D>& s) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int chunk = 0; chunk < D / 32; ++chunk) {
        float sum[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i] = x[0][chunk][i] + x[1][chunk][i];
        int own = (lane >> 2 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 4 & 1);
        s.partial[at.warp][8 * at.column + 32 * chunk + own] = reduce_lanes(sum, lane, Add());
    }
    __syncthreads();
    int channel = threadIdx.x;
    if (channel < D) {
        float sum[kKeyWarps];
#pragma unroll
        for (int warp = 0; warp < kKeyWarps; ++warp) sum[warp] = s.partial[warp][channel];
        s.mean[channel] = __fdiv_rn(tree8(sum), count);
    }
    __syncthreads();
}

// tree_sum of x * q_mean over the channels of the row that the quad shares.
template <int D>
__device__ inline float product_with(const float (&q_mean)[D], const Quad& at, const float (&x)[D / 32][8]) {
    float sum[D / 32];
#pragma unroll
    for (int chunk = 0; chunk < D / 32; ++chunk) {
        float m[8], product[8];
        load_channels(q_mean, at, chunk, m);
#pragma unroll
        for (int i = 0; i < 8; ++i) product[i] = x[chunk][i] * m[i];
        sum[chunk] = tree8(product);
        sum[chunk] += __shfl_xor_sync(kFullWarp, sum[chunk], 1);
        sum[chunk] += __shfl_xor_sync(kFullWarp, sum[chunk], 2);
    }
    if constexpr (D == 64)
        return sum[0] + sum[1];
    else
        return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// grid (BH, nT), 256 threads
template <class T, int D>
__device__ inline void prepare_k_nvfp4(const PrepareKNvfp4Params& p) {
    __shared__ KeyTile<D> s;
    const Quad at;
    int bh = blockIdx.x, tile = blockIdx.y, count = min(kTile, p.seqlen - kTile * tile);
    i64 image = (i64)bh * gridDim.y + tile;
    stage_row<D>(p.mean + (i64)bh * D, s.mean);
    stage_row<D>(p.q_center + ((i64)bh * 2 + 1) * D, s.q_mean);
    if (threadIdx.x == 0) s.amax = 0;
    const u16* source[kKeyRows];
#pragma unroll
    for (int row = 0; row < kKeyRows; ++row) {
        i64 place = kTile * tile + key_row(at, row), token = place;
        if (place < p.seqlen && p.perm != nullptr) token = p.perm[bh * (i64)p.seqlen + place];
        source[row] = place < p.seqlen ? head(p.k, bh) + token * p.k.stride_token : nullptr;
    }
    u32 raw[kKeyRows][D / 32][4];
    load_rows(p.k, source, 8 * at.column, 32, raw);
    __syncthreads();

    float x[kKeyRows][D / 32][8], bias[kKeyRows];
#pragma unroll
    for (int row = 0; row < kKeyRows; ++row) {
        rotated_row<T, D>(raw[row], key_row(at, row) < count, s.mean, at, x[row]);
        bias[row] = product_with<D>(s.q_mean, at, x[row]);
    }
    __syncthreads();  // all have read the head's mean
    tile_mean<D>(x, at, (float)count, s);

    float amax = 0.f;
#pragma unroll
    for (int chunk = 0; chunk < D / 32; ++chunk) {
        float mean[1][8];
        load_channels(s.mean, at, chunk, mean[0]);
        amax = fmaxf(amax, thread_amax(mean));
#pragma unroll
        for (int row = 0; row < kKeyRows; ++row) {
            bool exists = key_row(at, row) < count;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                x[row][chunk][i] = exists ? x[row][chunk][i] - mean[0][i] : 0.f;
                amax = fmaxf(amax, fabsf(x[row][chunk][i]));
            }
        }
    }
    block_amax(amax, &s.amax);
    __syncthreads();

    amax = __uint_as_float(s.amax);
    const float inverse = nvfp4_inverse(amax), q_inverse = nvfp4_inverse(p.q_amax[bh]);
    u8* codes = p.codes + image * (kTile + 8) * (D / 2);
    u8* micro = p.micro + image * (kTile + 8) * (D / 16);
#pragma unroll
    for (int row = 0; row < kKeyRows; ++row) {
        int slot = image_row_of_key(key_row(at, row), 8);
        store_nvfp4_row<D>(codes, micro, slot, at.column, inverse, x[row]);
        if (at.column == 0) p.bias[image * kTile + slot] = bias[row] * inverse * q_inverse;
    }
    if (threadIdx.x < 4) p.scale[image * 4 + threadIdx.x] = nvfp4_scale(amax);
    if (at.warp != 0) return;
    float mean[D / 32][8];
#pragma unroll
    for (int chunk = 0; chunk < D / 32; ++chunk) load_channels(s.mean, at, chunk, mean[chunk]);
    // Quads of even and odd rows write the same: the mean to the even row, what rounding lost of it to the odd one.
#pragma unroll 1  // less code
    for (int odd = 0; odd < 2; ++odd)
        store_nvfp4_row<D>(codes, micro, kTile + (at.row & ~1) + odd, at.column, odd ? 1.f : inverse, mean);
}
