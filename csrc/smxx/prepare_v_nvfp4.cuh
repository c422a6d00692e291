// V to NVFP4, second pass; the first is v_moments. Replaces quantize_v of vc_attention/reference/values.py.
#pragma once

#include "smxx/nvfp4.cuh"
#include "smxx/prepare_v.cuh"

// The tile transposed: 16 chunks of eight keys a channel. Lanes write four channels that differ in bits 3 and 4: the
// exclusive-or spreads them over all banks.
__device__ inline int transposed(int channel, int chunk) {
    return channel * 16 + (chunk ^ ((channel >> 3 & 3) << 1));
}

template <int D>
__device__ inline void transpose(const TileWords& raw, const Columns<D>& at, uint4* stage) {
#pragma unroll
    for (int group = 0; group < 2; ++group) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            u32 half = j % 2 ? 0x7632 : 0x5410;
            uint2 keys = make_uint2(__byte_perm(raw[0][group][j / 2], raw[1][group][j / 2], half),
                                    __byte_perm(raw[2][group][j / 2], raw[3][group][j / 2], half));
            int chunk = transposed(at.channel(group) + j, at.row(0) >> 3);
            reinterpret_cast<uint2*>(stage)[2 * chunk + (at.row(0) >> 2 & 1)] = keys;
        }
    }
}

// grid (BH, nT), 2 D threads. Eight keys of a channel a thread and turn.
template <class T, int D>
__device__ inline void v_nvfp4(const PrepareVParams& p) {
    __shared__ uint4 stage[D * 16];
    __shared__ float mean[D], inverse[D], scale[D];
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
#pragma unroll 1
    for (int item = threadIdx.x; item < D * 16; item += 2 * D) {
        int channel = item / 16, chunk = item % 16;
        uint4 raw = stage[transposed(channel, chunk)];
        const u32 word[1][4] = {{raw.x, raw.y, raw.z, raw.w}};
        float x[1][8], y[8], decoded[8], lost[8];
        widen<T>(word, x);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            x[0][i] = 8 * chunk + i < rows ? x[0][i] - mean[channel] : 0.f;
            y[i] = x[0][i] * inverse[channel];
        }
        u32 codes, micro;
        encode_nvfp4(y, codes, micro, decoded);
        *reinterpret_cast<u32*>(p.codes + image * D * (kTile / 2) + swizzled<kTile / 2>(channel, 4 * chunk)) = codes;
        if (chunk % 2 == 0) p.micro[(image * D + channel) * 8 + chunk / 2] = (u8)micro;
#pragma unroll
        for (int i = 0; i < 8; ++i) lost[i] = x[0][i] - decoded[i] * scale[channel];
        float sum = tree8(lost);
#pragma unroll
        for (int lanes = 1; lanes < 16; lanes *= 2) sum += __shfl_xor_sync(kFullWarp, sum, lanes);
        if (chunk == 0 && p.means)
            store_mean<D>(p.mean, bh, tile, gridDim.y, channel, mean[channel] + __fdiv_rn(sum, (float)rows));
    }
}
