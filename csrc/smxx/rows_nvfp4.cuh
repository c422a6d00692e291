// Rows of Q and K to NVFP4: four lanes share a row and each holds whole groups.
#pragma once

#include "common/hadamard.cuh"
#include "common/swizzle.cuh"
#include "smxx/nvfp4.cuh"
#include "smxx/quad.cuh"

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
        const float* four = shared + spaced(kGroup * (at.column + 4 * chunk)) + i;
        *reinterpret_cast<float4*>(value + i) = load_shared_v4(four);
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

// x = the row at `row` less `mean`, rotated.
template <class T, int D>
__device__ inline void rotated_row(const View& v, const u16* row, const Channels<D>& mean, const Quad& at,
                                   RowValues<D>& x) {
    RowWords<D> raw;
    load_row<D>(v, row, at, raw);
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
