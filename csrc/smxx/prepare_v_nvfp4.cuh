// V to NVFP4, second pass; the first is v_moments. Replaces quantize_v of vc_attention/reference/values.py.
#pragma once

#include "smxx/nvfp4.cuh"
#include "smxx/prepare_v.cuh"

// The tile transposed: 16 chunks of eight keys a channel. Lanes write four channels that differ in bits 3 and 4, and
// read every other chunk of one: the exclusive-ors spread both over all banks.
__device__ inline int transposed(int channel, int chunk) {
    return channel * 16 + (chunk ^ ((channel >> 3 & 3) << 1) ^ (chunk >> 3));
}

template <int D>
__device__ inline void transpose(const TileWords& raw, const Columns<D>& at, uint4* stage) {
    // What the exclusive-or adds is the same for all channels of the thread.
    uint2* keys = reinterpret_cast<uint2*>(stage + transposed(at.channel(0), at.row(0) >> 3)) + (at.row(0) >> 2 & 1);
#pragma unroll
    for (int group = 0; group < 2; ++group) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            u32 half = j % 2 ? 0x7632 : 0x5410;
            keys[2 * 16 * (32 * group + j)] = make_uint2(__byte_perm(raw[0][group][j / 2], raw[1][group][j / 2], half),
                                                         __byte_perm(raw[2][group][j / 2], raw[3][group][j / 2], half));
        }
    }
}

// Group `group` of a channel's keys less the channel's mean; keys past the tile's rows are zeros.
template <class T>
__device__ inline void residual_group(const uint4* stage, int channel, int group, int rows, float mean,
                                      float (&x)[kGroup]) {
    uint4 low = stage[transposed(channel, 2 * group)], high = stage[transposed(channel, 2 * group + 1)];
    const u32 word[1][kGroup / 2] = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
    float wide[1][kGroup];
    widen<T>(word, wide);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = wide[0][i] - mean;
    if (rows == kTile) return;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = kGroup * group + i < rows ? x[i] : 0.f;
}

// grid (BH, nT), 2 D threads. A group of 16 keys of a channel a thread and turn.
template <class T, int D>
__device__ inline void v_nvfp4(const PrepareVParams& p) {
    __shared__ uint4 stage[D * 16];
    __shared__ float mean[D], inverse[D], scale[D], lost[D];
    int bh = blockIdx.x, tile = blockIdx.y, rows = min(kTile, p.seqlen - tile * kTile);
    i64 image = (i64)bh * gridDim.y + tile;
    {
        const Columns<D> at;
        TileWords raw;
        load_tile(p.v, head(p.v, bh), head_perm(p, bh), tile, p.seqlen, at, raw);
        transpose<D>(raw, at, stage);
    }
    if (threadIdx.x < D) {
        int channel = threadIdx.x;
        float amax = __uint_as_float(p.amax[bh * D + channel]);
        mean[channel] = p.block_mean[image * D + channel];
        inverse[channel] = nvfp4_inverse(amax);
        scale[channel] = nvfp4_scale(amax);
        if (tile == 0) p.scale[bh * D + channel] = scale[channel];
    }
    __syncthreads();
    int group = threadIdx.x % 8;
    u8* codes = p.codes + image * D * (kTile / 2);
    u8* micro = p.micro + image * D * 8;
#pragma unroll 1
    for (int channel = threadIdx.x / 8; channel < D; channel += D / 4) {
        float x[kGroup];
        residual_group<T>(stage, channel, group, rows, mean[channel], x);
        const Nvfp4Group made(x, inverse[channel]);
        *reinterpret_cast<uint2*>(codes + swizzled<kTile / 2>(channel, group * kGroup / 2)) = made.codes;
        micro[channel * 8 + group] = (u8)made.micro;
        float rest[2][8];
#pragma unroll
        for (int i = 0; i < kGroup; ++i)
            rest[i / 8][i % 8] = with_sign_of(x[i], fabsf(x[i]) - made.element[i] * made.scale * scale[channel]);
        float sum = tree8(rest[0]) + tree8(rest[1]);
#pragma unroll
        for (int lanes = 1; lanes < 8; lanes *= 2) sum += __shfl_xor_sync(kFullWarp, sum, lanes);
        if (group == 0) lost[channel] = sum;
    }
    if (!p.means) return;
    __syncthreads();
    int channel = threadIdx.x;
    if (channel >= D) return;
    store_mean<D>(p.mean, bh, tile, gridDim.y, channel, mean[channel] + __fdiv_rn(lost[channel], (float)rows));
}
