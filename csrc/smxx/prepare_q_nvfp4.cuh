// Q to NVFP4 without its mean, and once more what rounding lost: quantize_without_means of
// vc_attention/reference/score_means.py.
#pragma once

#include "smxx/rows_nvfp4.cuh"

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
    rotated_row<T, D>(p.q, base + (i64)min(query, p.seqlen - 1) * p.q.stride_token, mean, at, x);
    return query < p.seqlen;
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
