// V: gather, subtract the block mean, quantize the residual, transpose, write tile images and corrected means (Eq. 4).
// Replaces quantize_v of vc_attention/reference/values.py.
//
// INT8 scales belong to one or two blocks, so one pass does. An E4M3 scale belongs to a channel of the whole head, so a
// first pass finds means and magnitudes and a second one quantizes.
#pragma once

#include "common/swizzle.cuh"
#include "smxx/columns.cuh"

template <int D>
struct VShared {
    uint4 stage[D * 8];  // the tile image, with one more exclusive-or against bank conflicts
    Partials<D> partial;
    float mean[2][D], inverse[D], scale[D];
};

// Formats of the residual: two neighbouring keys of a channel to a half-word, and what it means in units of the scale.
struct Int8Values {
    __device__ static u32 encode(const float (&y)[2], float (&decoded)[2]) {
        // The sum's last mantissa byte is the rounded integer, and subtracting brings it back as a float.
        float low = y[0] + 12582912.f, high = y[1] + 12582912.f;
        decoded[0] = low - 12582912.f;
        decoded[1] = high - 12582912.f;
        return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7740) & 0xffffu;
    }
};

struct E4m3Values {
    __device__ static u32 encode(const float (&y)[2], float (&decoded)[2]) {
        u32 codes = pack_e4m3x2(y[0], y[1]);
        unpack_e4m3x2(codes, decoded[0], decoded[1]);
        return codes;
    }
};

// Four neighbouring channels of a shared array, read anew each time: the constants of all would not fit beside the
// tile.
__device__ inline void load_channels(const float* shared, float (&value)[4]) {
    *reinterpret_cast<float4*>(value) = load_shared_v4(shared);
}

// x - mean of rows 2 * pair and 2 * pair + 1, 8 channels; rows past seqlen stay zero.
template <class T, int D>
__device__ inline void residual(const TileWords& raw, int group, int pair, const Columns<D>& at, int rows,
                                const float (&means)[D], float (&x)[2][8]) {
    widen_pair<T>(raw, group, pair, x);
    float mean[4];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        if (j % 4 == 0) load_channels(means + at.channel(group) + j, mean);
        x[0][j] -= mean[j % 4];
        x[1][j] -= mean[j % 4];
    }
    if (rows == kTile) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (at.row(2 * pair + i) < rows) continue;
#pragma unroll
        for (int j = 0; j < 8; ++j) x[i][j] = 0.f;
    }
}

// Fills `mean`, one of s.mean; zeros when means are off.
template <class T, int D>
__device__ inline void block_mean(const TileWords& raw, const Columns<D>& at, float rows, bool means, VShared<D>& s,
                                  float (&mean)[D]) {
    if (means) sum_rows<T>(raw, at, s.partial, Itself());
    __syncthreads();
    int channel = threadIdx.x;
    if (channel < D) mean[channel] = means ? __fdiv_rn(finish_rows<D>(s.partial, channel, Add()), rows) : 0.f;
    __syncthreads();
}

// Leaves the largest |residual| per quarter and channel in s.partial.
template <class T, int D>
__device__ inline void residual_amax(const TileWords& raw, const Columns<D>& at, int rows, const float (&mean)[D],
                                     VShared<D>& s) {
#pragma unroll
    for (int group = 0; group < 2; ++group) {
        float amax[8] = {};
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            float x[2][8];
            residual<T>(raw, group, pair, at, rows, mean, x);
#pragma unroll
            for (int j = 0; j < 8; ++j) amax[j] = fmaxf(amax[j], fmaxf(fabsf(x[0][j]), fabsf(x[1][j])));
        }
        reduce_rows(amax, group, at, s.partial, Max());
    }
    __syncthreads();
}

template <int D>
__device__ inline void set_scale(float amax, float value_max, int channel, VShared<D>& s) {
    bool zero = amax < kTiny;
    s.inverse[channel] = zero ? 0.f : __fdiv_rn(value_max, amax);
    s.scale[channel] = zero ? 0.f : __fdiv_rn(amax, value_max);
}

// Chunk of the stage that holds chunk `chunk` (16 keys) of a channel's row. Lanes of a warp write four channels that
// differ in bits 3 and 4 and two chunks that differ in bit 0: the second exclusive-or spreads them over all banks.
__device__ inline int staged(int channel, int chunk) {
    return channel * 8 + (chunk ^ (channel & 7) ^ ((channel >> 3 & 3) << 1));
}

// Quantizes the residual into the stage and leaves what the rounding lost, summed over rows, in s.partial.
template <class T, class Format, int D>
__device__ inline void quantize(const TileWords& raw, const Columns<D>& at, int rows, const float (&mean)[D],
                                VShared<D>& s) {
    u16* stage = reinterpret_cast<u16*>(s.stage);
#pragma unroll
    for (int group = 0; group < 2; ++group) {
        float lost[8];
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            float x[2][8], inverse[4], scale[4];
            residual<T>(raw, group, pair, at, rows, mean, x);
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                if (j % 4 == 0) {
                    load_channels(s.inverse + at.channel(group) + j, inverse);
                    load_channels(s.scale + at.channel(group) + j, scale);
                }
                const float y[2] = {x[0][j] * inverse[j % 4], x[1][j] * inverse[j % 4]};
                float decoded[2];
                u32 half = Format::encode(y, decoded);
                float error = (x[0][j] - decoded[0] * scale[j % 4]) + (x[1][j] - decoded[1] * scale[j % 4]);
                int chunk = staged(at.channel(group) + j, at.row(0) >> 4);
                stage[chunk * 8 + (at.row(2 * pair) >> 1 & 7)] = (u16)half;
                lost[j] = pair == 0 ? error : lost[j] + error;
            }
        }
        reduce_rows(lost, group, at, s.partial, Add());
    }
    __syncthreads();
}

// Nearest even at TF32's 10 mantissa bits: tensor cores would cut the rest off, which is biased.
__device__ inline float round_tf32(float x) {
    u32 bits = __float_as_uint(x);
    return __uint_as_float((bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu);
}

// One channel's mean into the image that 32 neighbouring tiles share; the last tile also clears what follows it there.
template <int D>
__device__ inline void store_mean(float* means, int bh, int tile, int tiles, int channel, float mean) {
    constexpr int kGroup = 32;
    int groups = ceil_div(tiles, kGroup);
    float* image = means + ((i64)bh * groups + tile / kGroup) * D * kGroup;
    image[swizzled<128>(channel, tile % kGroup * 4) / 4] = round_tf32(mean);
    if (tile + 1 < tiles) return;
    for (int past = tile % kGroup + 1; past < kGroup; ++past) image[swizzled<128>(channel, past * 4) / 4] = 0.f;
}

// Stage to global image, and the mean with what the rounding lost added back.
template <int D>
__device__ inline void store_tile(const PrepareVParams& p, int bh, int tile, const float (&mean)[D],
                                  const VShared<D>& s) {
    int tiles = ceil_div(p.seqlen, kTile), channel = threadIdx.x;
    uint4* out = reinterpret_cast<uint4*>(p.codes + ((i64)bh * tiles + tile) * D * kTile);
    for (int at = threadIdx.x; at < D * 8; at += Columns<D>::kThreads) {
        int row = at >> 3, chunk = (at & 7) ^ (row & 7);
        out[at] = s.stage[staged(row, chunk)];
    }
    if (channel >= D || !p.means) return;
    float lost = __fdiv_rn(finish_rows<D>(s.partial, channel, Add()), (float)min(kTile, p.seqlen - tile * kTile));
    store_mean<D>(p.mean, bh, tile, tiles, channel, mean[channel] + lost);
}

__device__ inline const int* head_perm(const PrepareVParams& p, int bh) {
    return p.perm == nullptr ? nullptr : p.perm + (i64)bh * p.seqlen;
}

// Reads a tile, leaves its means in s.mean[slot] and gives the largest |residual| of channel `threadIdx.x`.
template <class T, int D>
__device__ inline float tile_moments(const PrepareVParams& p, int bh, int tile, const Columns<D>& at, int slot,
                                     TileWords& raw, VShared<D>& s) {
    int rows = min(kTile, p.seqlen - tile * kTile);
    load_tile(p.v, head(p.v, bh), head_perm(p, bh), tile, p.seqlen, at, raw);
    block_mean<T>(raw, at, rows, p.means, s, s.mean[slot]);
    forget_widened(raw);
    residual_amax<T>(raw, at, rows, s.mean[slot], s);
    return threadIdx.x < D ? finish_rows<D>(s.partial, threadIdx.x, Max()) : 0.f;
}

// E4M3, first pass: block means into p.block_mean, magnitudes into p.amax. grid (BH, nT), 2 D threads
template <class T, int D>
__device__ inline void v_moments(const PrepareVParams& p) {
    __shared__ VShared<D> s;
    const Columns<D> at;
    int bh = blockIdx.x, tile = blockIdx.y, channel = threadIdx.x;
    TileWords raw;
    float amax = tile_moments<T>(p, bh, tile, at, 0, raw, s);
    if (channel >= D) return;
    p.block_mean[((i64)bh * gridDim.y + tile) * D + channel] = s.mean[0][channel];
    // Magnitudes are not negative, so their bits order as they do.
    atomicMax(p.amax + bh * D + channel, __float_as_uint(amax));
}

// E4M3, second pass. grid (BH, nT), 2 D threads
template <class T, int D>
__device__ inline void v_e4m3(const PrepareVParams& p) {
    __shared__ VShared<D> s;
    const Columns<D> at;
    int bh = blockIdx.x, tile = blockIdx.y, rows = min(kTile, p.seqlen - tile * kTile), channel = threadIdx.x;

    TileWords raw;
    load_tile(p.v, head(p.v, bh), head_perm(p, bh), tile, p.seqlen, at, raw);
    if (channel < D) {
        s.mean[0][channel] = p.block_mean[((i64)bh * gridDim.y + tile) * D + channel];
        set_scale(__uint_as_float(p.amax[bh * D + channel]), p.value_max, channel, s);
        if (tile == 0) p.scale[bh * D + channel] = s.scale[channel];
    }
    __syncthreads();
    quantize<T, E4m3Values>(raw, at, rows, s.mean[0], s);
    store_tile(p, bh, tile, s.mean[0], s);
}

// One or two neighbouring tiles share their scales: a kernel accumulates both before it applies them. Each keeps its
// own mean. The first of two is read twice, the second time from L2: both in registers would leave room for fewer
// blocks. grid (BH, ceil(nT / shared_tiles)), 2 D threads
template <class T, int D>
__device__ inline void v_int8(const PrepareVParams& p) {
    __shared__ VShared<D> s;
    const Columns<D> at;
    int bh = blockIdx.x, first = p.shared_tiles * blockIdx.y, tiles = ceil_div(p.seqlen, kTile), channel = threadIdx.x;
    int last = min(first + p.shared_tiles, tiles) - 1;

    TileWords raw;
    float amax = 0.f;
#pragma unroll 1
    for (int tile = first; tile <= last; ++tile) {
        amax = fmaxf(amax, tile_moments<T>(p, bh, tile, at, tile - first, raw, s));
        __syncthreads();
    }
    if (channel < D) {
        set_scale(amax, p.value_max, channel, s);
        for (int tile = first; tile <= last; ++tile) p.scale[((i64)bh * tiles + tile) * D + channel] = s.scale[channel];
    }
    __syncthreads();
#pragma unroll 1
    for (int tile = last; tile >= first; --tile) {
        if (tile < last) load_tile(p.v, head(p.v, bh), head_perm(p, bh), tile, p.seqlen, at, raw);
        forget_widened(raw);
        int rows = min(kTile, p.seqlen - tile * kTile);
        quantize<T, Int8Values>(raw, at, rows, s.mean[tile - first], s);
        store_tile(p, bh, tile, s.mean[tile - first], s);
        __syncthreads();
    }
}
