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

// A row's groups of 16 channels that a lane of its quad holds: at.column + 4 * chunk.
template <int D>
using RowWords = u32[D / 64][kGroup / 2];
template <int D>
using RowValues = float[D / 64][kGroup];

// One value a channel in shared memory, with a gap every 32: the lanes of a quad read different banks.
template <int D>
using Channels = float[D + D / 8];

__device__ inline int spaced(int channel) {
    return channel + channel / 32 * 4;
}

// The channels of a chunk. Read when they are needed: kept they would not fit.
__device__ inline void load_channels(const float* shared, const Quad& at, int chunk, float (&value)[kGroup]) {
#pragma unroll
    for (int i = 0; i < kGroup; i += 4) {
        float4 four = load_shared_v4(shared + spaced(kGroup * (at.column + 4 * chunk)) + i);
        value[i] = four.x;
        value[i + 1] = four.y;
        value[i + 2] = four.z;
        value[i + 3] = four.w;
    }
}

// A lane's channels of a row.
template <int D>
__device__ inline void load_row(const View& v, const u16* row, const Quad& at, RowWords<D>& word) {
    const u16* first = row + kGroup * at.column * v.stride_channel;
    if (v.vector) {
#pragma unroll
        for (int i = 0; i < D / 8; i += 4) {
            uint4 quad = load_nc_v4(first + 64 * (i / 8) + 2 * (i % 8));
            word[i / 8][i % 8] = quad.x;
            word[i / 8][i % 8 + 1] = quad.y;
            word[i / 8][i % 8 + 2] = quad.z;
            word[i / 8][i % 8 + 3] = quad.w;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
        const u16* element = first + (64 * (i / 8) + 2 * (i % 8)) * v.stride_channel;
        word[i / 8][i % 8] = element[0] | (u32)element[v.stride_channel] << 16;
    }
}

// x = a row less `mean`, rotated.
template <class T, int D>
__device__ inline void rotated_row(const RowWords<D>& raw, const Channels<D>& mean, const Quad& at, RowValues<D>& x) {
    widen<T>(raw, x);
#pragma unroll
    for (int chunk = 0; chunk < D / 64; ++chunk) {
        float m[kGroup];
        load_channels(mean, at, chunk, m);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) x[chunk][i] -= m[i];
    }
    hadamard_quad(x, at.column);
}

// Row within the tile that lane row `at.row` of `pass` holds.
__device__ inline int query_row(const Quad& at, int pass) {
    return 32 * at.warp + 8 * pass + at.row;
}

// The query of lane row `at.row` of `pass`, the last one where there is none. Few registers and little code: other
// warps hide the latency.
template <class T, int D>
__device__ inline bool rotated_query(const PrepareQNvfp4Params& p, const u16* base, int pass, const Channels<D>& mean,
                                     const Quad& at, RowValues<D>& x) {
    int query = kTile * blockIdx.y + query_row(at, pass);
    RowWords<D> raw;
    load_row<D>(p.q, base + (i64)min(query, p.seqlen - 1) * p.q.stride_token, at, raw);
    rotated_row<T, D>(raw, mean, at, x);
    return query < p.seqlen;
}

// Codes and micro scale of x * inverse, group `group` of image row `row`; with two parts once more of what rounding
// lost, `rows_to_rest` rows further on, a multiple of 8 or from an even row to the next. x is used up.
template <int D, int kParts>
__device__ inline void store_group(u8* codes, u8* micro, int row, int rows_to_rest, int group, float inverse,
                                   float (&x)[kGroup]) {
    codes += swizzled<D / 2>(row, group * kGroup / 2);
    micro += row * (D / kGroup) + group;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
        const Nvfp4Group made(x, part ? 1.f : inverse);
        *reinterpret_cast<uint2*>(codes + part * rows_to_rest * (D / 2)) = made.codes;
        micro[part * rows_to_rest * (D / kGroup)] = (u8)made.micro;
        if (part + 1 < kParts) made.lost(x);
    }
}

// Lets a loop over chunks have one body, which must fit the instruction cache: each in turn is the first.
template <int D>
__device__ inline void move_on(RowValues<D>& x) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[0][i] = x[D / 64 - 1][i];
}

// Largest of the block's magnitudes, in `result` after a barrier.
__device__ inline void block_amax(float amax, u32* result) {
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, lanes));
    if (threadIdx.x % 32 == 0) atomicMax(result, __float_as_uint(amax));
}

template <int D>
__device__ inline void stage_channels(const float* source, Channels<D>& shared) {
    for (int channel = threadIdx.x; channel < D; channel += blockDim.x) shared[spaced(channel)] = source[channel];
}

// Largest magnitude of a head's queries. grid (BH, nT), 128 threads
template <class T, int D>
__device__ inline void q_amax(const PrepareQNvfp4Params& p) {
    __shared__ Channels<D> mean;
    const Quad at;
    const u16* base = head(p.q, blockIdx.x);
    stage_channels<D>(p.center + (i64)blockIdx.x * 2 * D, mean);
    __syncthreads();
    float amax = 0.f;
#pragma unroll 1
    for (int pass = 0; pass < kPasses; ++pass) {
        RowValues<D> x;
        if (rotated_query<T, D>(p, base, pass, mean, at, x)) amax = fmaxf(amax, thread_amax(x));
    }
    block_amax(amax, reinterpret_cast<u32*>(p.amax) + blockIdx.x);
}

// grid (BH, nT), 128 threads
template <class T, int D>
__device__ inline void prepare_q_nvfp4(const PrepareQNvfp4Params& p) {
    __shared__ Channels<D> mean;
    const Quad at;
    const u16* base = head(p.q, blockIdx.x);
    i64 image = (i64)blockIdx.x * gridDim.y + blockIdx.y;
    stage_channels<D>(p.center + (i64)blockIdx.x * 2 * D, mean);
    __syncthreads();
    const float amax = p.amax[blockIdx.x], inverse = nvfp4_inverse(amax), scale = nvfp4_scale(amax);
    u8* codes = p.codes + image * kTile * D;
    u8* micro = p.micro + image * kTile * (D / 8);
#pragma unroll 1
    for (int pass = 0; pass < kPasses; ++pass) {
        int row = query_row(at, pass);
        RowValues<D> x;
        bool exists = rotated_query<T, D>(p, base, pass, mean, at, x);
#pragma unroll 1
        for (int group = at.column; group < D / kGroup; group += 4) {
            store_group<D, 2>(codes, micro, row, kTile, group, exists ? inverse : 0.f, x[0]);
            move_on<D>(x);
        }
        if (at.column == 0) p.scale[image * kTile + row] = exists ? scale : 0.f;
    }
}

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
    RowWords<D> raw;
    load_row<D>(p.k, base + token * p.k.stride_token, at, raw);
    rotated_row<T, D>(raw, mean, at, x);
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
        for (int i = 0; i < kGroup; i += 4)
            s.part(chunk, i) = make_float4(x[chunk][i], x[chunk][i + 1], x[chunk][i + 2], x[chunk][i + 3]);
    }
}

template <int D>
__device__ inline void fetch(KeyTile<D>& s, int chunk, float (&x)[kGroup]) {
#pragma unroll
    for (int i = 0; i < kGroup; i += 4) {
        float4 four = load_shared_v4(&s.part(chunk, i).x);
        x[i] = four.x;
        x[i + 1] = four.y;
        x[i + 2] = four.z;
        x[i + 3] = four.w;
    }
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
