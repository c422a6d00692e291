// Column geometry: 2 D threads hold a tile of 128 rows x D channels and reduce over rows. A thread has four
// neighbouring rows of two groups of 8 channels: neighbours are added first (tree_sum), and four bytes of one channel
// make a word of the transposed image.
#pragma once

#include "common/tree.cuh"
#include "smxx/input.cuh"

template <int D>
struct Columns {
    static constexpr int kThreads = 2 * D;

    int lane = threadIdx.x % 32;
    int quarter = threadIdx.x / 32 % 4;    // 32 of the 128 rows
    int row_group = threadIdx.x % 32 / 4;  // four rows within the quarter
    int first_channel = threadIdx.x / 128 * 64 + threadIdx.x % 4 * 8;

    __device__ int row(int i) const { return 32 * quarter + 4 * row_group + i; }
    __device__ int channel(int group) const { return first_channel + 32 * group; }
};

using TileWords = u32[4][2][4];  // row, group, two channels each

// What the reductions exchange: one value per quarter of the rows and channel.
template <int D>
using Partials = float[4][D];

// Rows `tile * 128 + row` of the head at `base` in the order of `perm` (null: as they are); rows past seqlen are zeros.
template <int D>
__device__ inline void load_tile(const View& v, const u16* base, const int* perm, int tile, int seqlen,
                                 const Columns<D>& at, TileWords& raw) {
    const u16* row[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        int place = kTile * tile + at.row(i);
        i64 token = place >= seqlen ? 0 : perm == nullptr ? place : perm[place];
        row[i] = place >= seqlen ? nullptr : base + token * v.stride_token;
    }
    load_rows(v, row, at.channel(0), 32, raw);
}

struct Add {
    __device__ float operator()(float a, float b) const { return a + b; }
};

struct Max {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Reduces column[8 channels] over the 8 lanes that share them. Each exchange halves the channels that a lane still
// carries, so 7 shuffles do for 8 channels; lane `row_group` ends with the channel whose bits are its own, reversed.
template <class Op>
__device__ inline float reduce_lanes(const float (&column)[8], int lane, Op op) {
    bool odd4 = lane & 4, odd8 = lane & 8, odd16 = lane & 16;
    float half[4], quarter[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float keep = odd4 ? column[i + 4] : column[i], give = odd4 ? column[i] : column[i + 4];
        half[i] = op(keep, __shfl_xor_sync(kFullWarp, give, 4));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float keep = odd8 ? half[i + 2] : half[i], give = odd8 ? half[i] : half[i + 2];
        quarter[i] = op(keep, __shfl_xor_sync(kFullWarp, give, 8));
    }
    float keep = odd16 ? quarter[1] : quarter[0], give = odd16 ? quarter[0] : quarter[1];
    return op(keep, __shfl_xor_sync(kFullWarp, give, 16));
}

// Reduces 8 channels of group `group` over the rows of this warp and leaves the result in `partial`.
template <int D, class Op>
__device__ inline void reduce_rows(const float (&column)[8], int group, const Columns<D>& at, Partials<D>& partial,
                                   Op op) {
    int own = (at.lane >> 2 & 1) * 4 + (at.lane >> 3 & 1) * 2 + (at.lane >> 4 & 1);
    partial[at.quarter][at.channel(group) + own] = reduce_lanes(column, at.lane, op);
}

// The reduction of channel `channel` over all 128 rows, once every warp has left its part.
template <int D, class Op>
__device__ inline float finish_rows(const Partials<D>& partial, int channel, Op op) {
    return op(op(partial[0][channel], partial[1][channel]), op(partial[2][channel], partial[3][channel]));
}

// Makes the compiler widen the tile again instead of keeping 64 widened values from one phase to the next.
__device__ inline void forget_widened(TileWords& raw) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int group = 0; group < 2; ++group) {
#pragma unroll
            for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(raw[i][group][j]));
        }
    }
}

// Two neighbouring rows x 8 channels of one group. Two rows at a time keep registers for a third block on the SM.
template <class T>
__device__ inline void widen_pair(const TileWords& raw, int group, int pair, float (&x)[2][8]) {
    u32 word[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) word[i][j] = raw[2 * pair + i][group][j];
    }
    widen<T>(word, x);
}

struct Itself {
    __device__ float operator()(float x) const { return x; }
};

struct Square {
    __device__ float operator()(float x) const { return x * x; }
};

// Column sums of `of` of the tile's elements.
template <class T, int D, class Of>
__device__ inline void sum_rows(const TileWords& raw, const Columns<D>& at, Partials<D>& partial, Of of) {
#pragma unroll
    for (int group = 0; group < 2; ++group) {
        float sum[8];
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            float x[2][8];
            widen_pair<T>(raw, group, pair, x);
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                float both = of(x[0][j]) + of(x[1][j]);
                sum[j] = pair == 0 ? both : sum[j] + both;
            }
        }
        reduce_rows(sum, group, at, partial, Add());
    }
}
