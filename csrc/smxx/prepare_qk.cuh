// Q and K: (gather, smooth,) balance, rotate, (sort,) quantize to INT8, write tile images. Replaces quantize_q,
// sorted_keys and quantize_k of vc_attention/reference/scores.py.
#pragma once

#include "common/hadamard.cuh"
#include "common/quad.cuh"
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

// One value a channel into shared memory; visible after the next barrier.
template <int D>
__device__ inline void stage_channels(const float* source, float (&shared)[D]) {
    for (int channel = threadIdx.x; channel < D; channel += kQuadThreads) shared[channel] = source[channel];
}

// The eight values that belong to a chunk of a row. Read again in every pass: kept, they would not fit beside the rows.
__device__ inline void load_chunk(const float* shared, const Quad& at, int chunk, float (&value)[8]) {
    *reinterpret_cast<float4*>(value) = load_shared_v4(shared + 8 * at.column + 32 * chunk);
    *reinterpret_cast<float4*>(value + 4) = load_shared_v4(shared + 8 * at.column + 32 * chunk + 4);
}

// Row within the tile that lane row `at.row` of `pass` holds.
__device__ inline int row_of(const Quad& at, int pass) {
    return 32 * at.warp + 8 * pass + at.row;
}

// grid (BH, nT), 128 threads
template <class T, int D>
__device__ inline void prepare_q(const PrepareQParams& p) {
    const Quad at;
    int bh = blockIdx.x, tile = blockIdx.y;
    i64 image = (i64)bh * gridDim.y + tile;
    __shared__ float factor[D];
    stage_channels<D>(p.factor + (i64)bh * 2 * D, factor);

    int token[kPasses];
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
        int query = kTile * tile + row_of(at, pass);
        token[pass] = query < p.seqlen ? query : -1;
    }
    u32 raw[kPasses][D / 32][4];
    load_quads(p.q, head(p.q, bh), token, at, raw);
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
        float x[D / 32][8];
        widen<T>(raw[pass], x);
#pragma unroll
        for (int chunk = 0; chunk < D / 32; ++chunk) {
            float f[8];
            load_chunk(factor, at, chunk, f);
#pragma unroll
            for (int i = 0; i < 8; ++i) x[chunk][i] *= f[i];
        }
        hadamard_quad(x, at.column);
        float amax = quad_max(thread_amax(x));
        bool zero = amax < kTiny;
        int row = row_of(at, pass);
        store_row<D>(p.codes + image * kTile * D, row, at.column, x, zero ? 0.f : __fdiv_rn(kInt8Max, amax));
        if (at.column == 0) p.scale[image * kTile + row] = zero ? 0.f : __fdiv_rn(amax, kInt8Max);
    }
}

// What the rows of a tile tell each other.
struct KeyShared {
    uint4 key[kTile / 4];  // a row's size with its number in the last bits, see sorted_keys
    float amax[kTile];
    int place[kTile];
    u32 group_amax[4];  // bits of a magnitude, which order as it does
};

// Place of key `threadIdx.x` among the tile's keys: groups, which are lanes', take them in ascending order. Then the
// groups' magnitudes.
__device__ inline void place_keys(KeyShared& s, bool sorts, int lane_keys) {
    int key = threadIdx.x, place = key;
    if (sorts) {
        u32 mine = reinterpret_cast<const u32*>(s.key)[key];
        int rank = 0;
#pragma unroll 8
        for (int i = 0; i < kTile / 4; ++i) {
            uint4 four = s.key[i];
            rank += (four.x < mine) + (four.y < mine) + (four.z < mine) + (four.w < mine);
        }
        place = 4 * (rank & 31 & -lane_keys) + lane_keys * (rank >> 5) + (rank & (lane_keys - 1));
    }
    s.place[key] = place;
    atomicMax(&s.group_amax[lane_of_key(place, lane_keys)], __float_as_uint(s.amax[key]));
    __syncthreads();
}

// x = the rotated row of a key; a row past seqlen is zero.
template <class T, int D>
__device__ inline void rotated_key(const u32 (&raw)[D / 32][4], bool exists, const float (&mean)[D],
                                   const float (&factor)[D], const Quad& at, float (&x)[D / 32][8]) {
    widen<T>(raw, x);
#pragma unroll
    for (int chunk = 0; chunk < D / 32; ++chunk) {
        float m[8], f[8];
        load_chunk(mean, at, chunk, m);
        load_chunk(factor, at, chunk, f);
#pragma unroll
        for (int i = 0; i < 8; ++i) x[chunk][i] = exists ? (x[chunk][i] - m[i]) * f[i] : 0.f;
    }
    hadamard_quad(x, at.column);
}

// grid (BH, nT), 128 threads
template <class T, int D>
__device__ inline void prepare_k(const PrepareKParams& p) {
    const Quad at;
    int bh = blockIdx.x, tile = blockIdx.y;
    i64 image = (i64)bh * gridDim.y + tile;
    const int* perm = p.perm == nullptr ? nullptr : p.perm + (i64)bh * p.seqlen;
    __shared__ float mean[D], factor[D];
    __shared__ KeyShared s;
    stage_channels<D>(p.mean + (i64)bh * D, mean);
    stage_channels<D>(p.factor + ((i64)bh * 2 + 1) * D, factor);
    if (threadIdx.x < 4) s.group_amax[threadIdx.x] = 0;

    int token[kPasses];
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
        int place = kTile * tile + row_of(at, pass);
        token[pass] = place >= p.seqlen ? -1 : perm == nullptr ? place : perm[place];
    }
    u32 raw[kPasses][D / 32][4];
    load_quads(p.k, head(p.k, bh), token, at, raw);
    __syncthreads();

    float x[kPasses][D / 32][8];
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
        rotated_key<T, D>(raw[pass], kTile * tile + row_of(at, pass) < p.seqlen, mean, factor, at, x[pass]);
        float amax = quad_max(thread_amax(x[pass]));
        int row = row_of(at, pass);
        if (at.column != 0) continue;
        s.amax[row] = amax;
        reinterpret_cast<u32*>(s.key)[row] = (__float_as_uint(amax) & ~(kTile - 1u)) | row;
    }
    __syncthreads();
    place_keys(s, p.order != nullptr && kTile * (tile + 1) <= p.seqlen, p.lane_keys);

#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
        int row = row_of(at, pass), place = s.place[row];
        float amax = __uint_as_float(s.group_amax[lane_of_key(place, p.lane_keys)]);
        float inverse = amax < kTiny ? 0.f : __fdiv_rn(kInt8Max, amax);
        store_row<D>(p.codes + image * kTile * D, image_row_of_key(place, p.lane_keys), at.column, x[pass], inverse);
        if (p.order == nullptr || at.column != 0 || kTile * tile + row >= p.seqlen) continue;
        p.order[(i64)bh * p.seqlen + kTile * tile + place] =
            perm == nullptr ? kTile * tile + row : perm[kTile * tile + row];
    }
    if (threadIdx.x < 4) {
        float amax = __uint_as_float(s.group_amax[threadIdx.x]);
        p.scale[image * 4 + threadIdx.x] = amax < kTiny ? 0.f : __fdiv_rn(amax, kInt8Max);
    }
}

constexpr int kStepThreads = 512;  // of two tiles, in two passes: the rows of a thread stay in registers
constexpr int kStepPasses = 2;

// All keys of a step share a scale, and keep perm's order. grid (BH, ceil(nT / tiles of a step)), 256 threads a tile
template <class T, int D>
__device__ inline void prepare_k_step(const PrepareKStepParams& p) {
    const Quad at;
    int bh = blockIdx.x, tiles = ceil_div(p.seqlen, kTile);
    int first = blockIdx.y * (blockDim.x / 2) + 16 * at.warp + at.row;  // place of the thread's first key
    const int* perm = p.perm == nullptr ? nullptr : p.perm + (i64)bh * p.seqlen;
    __shared__ float mean[D], factor[D];
    __shared__ u32 step_amax;  // bits of a magnitude, which order as it does
    stage_channels<D>(p.mean + (i64)bh * D, mean);
    stage_channels<D>(p.factor + ((i64)bh * 2 + 1) * D, factor);
    if (threadIdx.x == 0) step_amax = 0;

    int token[kStepPasses];
#pragma unroll
    for (int pass = 0; pass < kStepPasses; ++pass) {
        int place = first + 8 * pass;
        token[pass] = place >= p.seqlen ? -1 : perm == nullptr ? place : perm[place];
    }
    u32 raw[kStepPasses][D / 32][4];
    load_quads(p.k, head(p.k, bh), token, at, raw);
    __syncthreads();

    float x[kStepPasses][D / 32][8], amax = 0.f;
#pragma unroll
    for (int pass = 0; pass < kStepPasses; ++pass) {
        rotated_key<T, D>(raw[pass], first + 8 * pass < p.seqlen, mean, factor, at, x[pass]);
        amax = fmaxf(amax, thread_amax(x[pass]));
    }
    u32 warp_amax = __reduce_max_sync(kFullWarp, __float_as_uint(amax));
    if (threadIdx.x % 32 == 0) atomicMax(&step_amax, warp_amax);
    __syncthreads();

    amax = __uint_as_float(step_amax);
    bool zero = amax < kTiny;
    int tile = first / kTile;
    if (tile >= tiles) return;
    i64 image = (i64)bh * tiles + tile;
#pragma unroll
    for (int pass = 0; pass < kStepPasses; ++pass) {
        store_row<D>(p.codes + image * kTile * D, image_row_of_key((first + 8 * pass) % kTile, 4), at.column, x[pass],
                     zero ? 0.f : __fdiv_rn(kInt8Max, amax));
    }
    if (first % kTile == 0) p.scale[image * 4 + at.column] = zero ? 0.f : __fdiv_rn(amax, kInt8Max);
}
