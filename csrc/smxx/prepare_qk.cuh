// Q and K: (gather, smooth,) rotate, quantize to INT8, write tile images. Replaces quantize_q and quantize_k of
// vc_attention/reference/scores.py. No thread waits for another warp.
#pragma once

#include "common/hadamard.cuh"
#include "common/swizzle.cuh"
#include "smxx/quad.cuh"

constexpr float kInt8Max = 127.f;

// Codes of one row into the tile image.
template <int D>
__device__ inline void store_row(u8* image, int row, int column, const float (&x)[D / 32][8], float inverse) {
#pragma unroll
    for (int chunk = 0; chunk < D / 32; ++chunk) {
        float y[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) y[i] = x[chunk][i] * inverse;
        uint2 codes = make_uint2(pack_s8x4(y[0], y[1], y[2], y[3]), pack_s8x4(y[4], y[5], y[6], y[7]));
        *reinterpret_cast<uint2*>(image + swizzled<D>(row, 8 * (column + 4 * chunk))) = codes;
    }
}

// grid (BH, nT), 128 threads
template <class T, int D>
__device__ inline void prepare_q(const PrepareQParams& p) {
    const Quad at;
    int bh = blockIdx.x, tile = blockIdx.y;
    i64 image = (i64)bh * gridDim.y + tile;

    i64 token[kPasses];
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
        int query = kTile * tile + 32 * at.warp + 8 * pass + at.row;
        token[pass] = query < p.seqlen ? query : -1;
    }
    u32 raw[kPasses][D / 32][4];
    load_quads(p.q, head(p.q, bh), token, at, raw);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
        int row = 32 * at.warp + 8 * pass + at.row;
        float x[D / 32][8];
        widen<T>(raw[pass], x);
        hadamard_quad(x, at.column);
        float amax = thread_amax(x);
        amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, 1));
        amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, 2));
        bool zero = amax < kTiny;
        store_row<D>(p.codes + image * kTile * D, row, at.column, x, zero ? 0.f : __fdiv_rn(kInt8Max, amax));
        if (at.column == 0) p.scale[image * kTile + row] = zero ? 0.f : __fdiv_rn(amax, kInt8Max);
    }
}

// Key within the tile that lane row `at.row` of `pass` holds: warp w has the keys of scale group w.
__device__ inline int key_of(const Quad& at, int pass) {
    return 16 * (2 * pass + (at.row >> 2)) + 4 * at.warp + (at.row & 3);
}

// grid (BH, nT), 128 threads. Warp w owns scale group w: the keys with (key >> 2 & 3) == w.
template <class T, int D>
__device__ inline void prepare_k(const PrepareKParams& p) {
    const Quad at;
    int bh = blockIdx.x, tile = blockIdx.y;
    i64 image = (i64)bh * gridDim.y + tile;
    __shared__ float mean[D];
    for (int channel = threadIdx.x; channel < D; channel += kQuadThreads) mean[channel] = p.mean[bh * D + channel];

    i64 token[kPasses];
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
        int place = kTile * tile + key_of(at, pass);
        token[pass] = place >= p.seqlen ? -1 : p.perm == nullptr ? place : p.perm[(i64)bh * p.seqlen + place];
    }
    u32 raw[kPasses][D / 32][4];
    load_quads(p.k, head(p.k, bh), token, at, raw);
    __syncthreads();

    float x[kPasses][D / 32][8];
    float amax = 0.f;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
        widen<T>(raw[pass], x[pass]);
#pragma unroll
        for (int chunk = 0; chunk < D / 32; ++chunk) {
            // Read again in every pass: 32 means kept would not fit beside 128 values.
            float m[8];
            *reinterpret_cast<float4*>(m) = load_shared_v4(mean + 8 * at.column + 32 * chunk);
            *reinterpret_cast<float4*>(m + 4) = load_shared_v4(mean + 8 * at.column + 32 * chunk + 4);
#pragma unroll
            for (int i = 0; i < 8; ++i) x[pass][chunk][i] -= m[i];
        }
        if (kTile * tile + key_of(at, pass) >= p.seqlen) {
#pragma unroll
            for (int chunk = 0; chunk < D / 32; ++chunk) {
#pragma unroll
                for (int i = 0; i < 8; ++i) x[pass][chunk][i] = 0.f;
            }
        }
        hadamard_quad(x[pass], at.column);
        amax = fmaxf(amax, thread_amax(x[pass]));
    }
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, lanes));

    bool zero = amax < kTiny;
    float inverse = zero ? 0.f : __fdiv_rn(kInt8Max, amax);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass)
        store_row<D>(p.codes + image * kTile * D, image_row_of_key(key_of(at, pass)), at.column, x[pass], inverse);
    if (threadIdx.x % 32 == 0) p.scale[image * 4 + at.warp] = zero ? 0.f : __fdiv_rn(amax, kInt8Max);
}
