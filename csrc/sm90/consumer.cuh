// A consumer warpgroup: 64 query rows against all key tiles.
//
// Per tile: S = Q K^T (INT8), P = low-bit softmax of S, T = P V, O += weight * T. T is a fresh accumulator for every
// tile because FP8 products are summed with about 14 bits, and because the tile's codes have a reference of their own.
#pragma once

#include "ptx/async.cuh"
#include "ptx/wgmma.cuh"
#include "sm90/config.cuh"
#include "sm90/softmax.cuh"

template <bool kFirst, class A, class B>
struct Select {
    using Type = A;
};
template <class A, class B>
struct Select<false, A, B> {
    using Type = B;
};

// A channel without residual has scale 0; its means must survive the division.
__device__ __forceinline__ float scale_or_one(float scale) {
    return scale == 0.f ? 1.f : scale;
}

template <class C>
struct Consumer {
    static constexpr int kRegistersO = C::kHeadDim / 2;
    // Channels of one PV product. Three warpgroups have too few registers for all channels at once.
    static constexpr int kParts = C::kWarpgroups == 3 && C::kHeadDim == 128 ? 2 : 1;
    static constexpr int kRegistersPart = kRegistersO / kParts;
    using Product = typename Select<C::kInt8Values, int, float>::Type;
    template <int kPart>  // the columns of ones follow the last channel
    static constexpr int kRegistersT = kRegistersPart + (kPart == kParts - 1 ? C::kOnesRows / 2 : 0);

    const int warpgroup, lane;
    Softmax<C> softmax;
    float row_sum[2] = {0.f, 0.f};
    float tile_sums[2] = {0.f, 0.f};  // weighted row sums of the tile that this lane of the quad keeps
    float o[kRegistersO];
    int s[64];
    u32 p[16];

    __device__ __forceinline__ Consumer(int warpgroup_) : warpgroup(warpgroup_), lane(threadIdx.x & 31) {
#pragma unroll
        for (int i = 0; i < kRegistersO; ++i) o[i] = 0.f;
        softmax.running_max[0] = softmax.running_max[1] = -1e30f;
        if (C::kMean) {
            for (int c = 0; c < 8; ++c) store_shared_v2(tile_sums_address(c), 0.f, 0.f);
        }
    }

    static __device__ __forceinline__ int stage(int tile) { return tile % C::kStages; }
    static __device__ __forceinline__ u32 parity(int tile) { return tile / C::kStages & 1; }
    __device__ __forceinline__ u32 tile_sums_address(int chunk) const {
        return C::kTileSums + chunk * C::kTileSumsChunk + threadIdx.x * 8;
    }
    __device__ __forceinline__ void wait_keys(int tile) const { mbarrier_wait(C::kKFull + 8 * stage(tile), parity(tile)); }
    __device__ __forceinline__ void wait_values(int tile) const { mbarrier_wait(C::kVFull + 8 * stage(tile), parity(tile)); }

    __device__ __forceinline__ void issue_scores(int tile) {
        const u64 q = matrix_descriptor<C::kHeadDim>(C::kQ + warpgroup * C::kQTile);
        const u64 k = matrix_descriptor<C::kHeadDim>(C::kK + stage(tile) * C::kKTile);
#pragma unroll
        for (int i = 0; i < 64; ++i) s[i] = kMagicBits;
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < C::kHeadDim / 32; ++i) wgmma_s8<true>(s, q + 2 * i, k + 2 * i);
        wgmma_commit();
    }

    // Keys 32 kFirst .. 32 kEnd of the tile times the channels of kPart.
    template <int kPart, int kFirst, int kEnd>
    __device__ __forceinline__ void issue_values(int tile, Product (&t)[kRegistersT<kPart>]) {
        const u64 v = matrix_descriptor<128>(C::kV + stage(tile) * C::kVStage + kPart * (C::kVTile / kParts));
        wgmma_fence();
#pragma unroll
        for (int i = kFirst; i < kEnd; ++i) {
            if constexpr (C::kInt8Values) {
                i == 0 ? wgmma_u8s8<false>(t, p, v) : wgmma_u8s8<true>(t, p + 4 * i, v + 2 * i);
            } else {
                i == 0 ? wgmma_e4m3<false>(t, p, v) : wgmma_e4m3<true>(t, p + 4 * i, v + 2 * i);
            }
        }
        wgmma_commit();
    }

    // Scores have landed: hand the stage back and prepare the softmax of the tile.
    template <bool kMayMask>
    __device__ __forceinline__ void take_scores(int tile, int seqlen_k, bool first_tile) {
        wgmma_landed(s);
        const float k_scale = load_shared(C::kKScale + stage(tile) * C::kKScaleStage + 4 * (lane & 3));
        mbarrier_arrive_warp(C::kKEmpty + 8 * stage(tile));
        if (kMayMask) mask_scores(s, seqlen_k - tile * C::kBlockN);
        softmax.template set_slope<kMayMask>(k_scale);
        softmax.set_reference(s, first_tile);
        if (__builtin_expect(softmax.runs_away(), false)) move_reference();
    }

    // O += weight * T in the channels of kPart.
    template <int kPart>
    __device__ __forceinline__ void merge(int tile, Product (&t)[kRegistersT<kPart>]) {
        wgmma_landed(t);
        constexpr int kBase = kPart * kRegistersPart;
        const u32 scales = C::kVScale + stage(tile) * C::kVScaleStage + 8 * (lane & 3) + 8 * kBase;
#pragma unroll
        for (int i = 0; i < kRegistersPart; i += 4) {
            float2 scale{1.f, 1.f};
            if (C::kInt8Values) scale = load_shared_v2(scales + 8 * i);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float* const row = o + kBase + i + 2 * r;
                row[0] = fmaf((float)t[i + 2 * r], softmax.weight[r] * scale.x, row[0]);
                row[1] = fmaf((float)t[i + 2 * r + 1], softmax.weight[r] * scale.y, row[1]);
            }
        }
        if (kPart < kParts - 1) return;
        if constexpr (C::kExpCast) {  // every column of ones has it
            add_row_sums(tile, t[kRegistersPart], t[kRegistersPart + 2]);
        } else {
            add_row_sums(tile, softmax.tile_sum[0], softmax.tile_sum[1]);
        }
        mbarrier_arrive_warp(C::kVEmpty + 8 * stage(tile));
    }

    __device__ __forceinline__ void add_row_sums(int tile, float sum0, float sum1) {
        float sum[2] = {sum0, sum1};
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (C::kMean && !C::kExpCast) {
                sum[r] += __shfl_xor_sync(kFullWarp, sum[r], 1);
                sum[r] += __shfl_xor_sync(kFullWarp, sum[r], 2);
            }
            row_sum[r] = fmaf(softmax.weight[r], sum[r], row_sum[r]);
            // Lane q of a quad keeps the sums of tiles 4c + q, as the A fragment of restore_means wants them.
            if (C::kMean && ((tile ^ lane) & 3) == 0) tile_sums[r] = softmax.weight[r] * sum[r];
        }
        if (C::kMean && (tile & 3) == 3) store_shared_v2(tile_sums_address(tile >> 2 & 7), tile_sums[0], tile_sums[1]);
    }

    // O += R M after the last tile of a group of 32: R their weighted row sums, M their block means (Eq. 6), both TF32.
    // R never leaves its thread: shared memory only saves registers. What an earlier group left there meets zeros of M.
    __device__ __forceinline__ void restore_means(int tile) {
        store_shared_v2(tile_sums_address(tile >> 2 & 7), tile_sums[0], tile_sums[1]);
        u32 r[16];
#pragma unroll
        for (int c = 0; c < 8; ++c) {
            const float2 sums = load_shared_v2(tile_sums_address(c));
            r[2 * c] = __float_as_uint(sums.x) + 0x1000;  // the tensor core truncates: round here
            r[2 * c + 1] = __float_as_uint(sums.y) + 0x1000;
        }
        float m[kRegistersO];
        const u64 means = matrix_descriptor<128>(C::kMeans);
        mbarrier_wait(C::kMeansFull, tile / C::kMeanTiles & 1);
        wgmma_fence();
        wgmma_tf32<false>(m, r, means);
#pragma unroll
        for (int i = 1; i < 4; ++i) wgmma_tf32<true>(m, r + 4 * i, means + 2 * i);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_landed(m);
        mbarrier_arrive_warp(C::kMeansEmpty);
#pragma unroll
        for (int i = 0; i < kRegistersO / 4; ++i) {
            float2 units{1.f, 1.f};
            if (!C::kInt8Values) units = load_shared_v2(C::kVUnits + 32 * i + 8 * (lane & 3));
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                o[4 * i + 2 * r] = fmaf(m[4 * i + 2 * r], units.x, o[4 * i + 2 * r]);
                o[4 * i + 2 * r + 1] = fmaf(m[4 * i + 2 * r + 1], units.y, o[4 * i + 2 * r + 1]);
            }
        }
    }

    // Rare: a row's reference is far below a new maximum. Everything summed so far is rescaled to the new one.
    __device__ __forceinline__ void move_reference() {
        float factor[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const bool moves = softmax.lead[r] > C::kMaxLead;
            factor[r] = moves ? exp2_approx(-softmax.lead[r] * (1.f / C::kStepsPerOctave)) : 1.f;
            softmax.reference[r] = moves ? softmax.reference[r] + softmax.lead[r] : softmax.reference[r];
            softmax.weight[r] = moves ? 1.f : softmax.weight[r];
            row_sum[r] *= factor[r];
            tile_sums[r] *= factor[r];
        }
#pragma unroll
        for (int i = 0; i < kRegistersO; ++i) o[i] *= factor[i >> 1 & 1];
        if (C::kMean) {
#pragma unroll 1
            for (int c = 0; c < 8; ++c) {
                const float2 sums = load_shared_v2(tile_sums_address(c));
                store_shared_v2(tile_sums_address(c), sums.x * factor[0], sums.y * factor[1]);
            }
        }
    }

    // O / row_sum in natural units, rounded and written; rows from seqlen_q on are not.
    __device__ __forceinline__ void store(const AttentionParams& params, int q_tile, int head, const float* v_scale) {
        const int first_row = q_tile * C::kBlockM + warpgroup * 64 + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
        const i64 base = head / params.heads * params.out_stride_b + head % params.heads * params.out_stride_h;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float sum = row_sum[r];
            if (!C::kExpCast && !C::kMean) {  // add_row_sums() has not added up the quad
                sum += __shfl_xor_sync(kFullWarp, sum, 1);
                sum += __shfl_xor_sync(kFullWarp, sum, 2);
            }
            const float inverse = 1.f / sum;
            const int row = first_row + 8 * r;
            if (row >= params.seqlen_q) continue;
            u16* const out = (u16*)params.out + base + row * params.out_stride_n + 2 * (lane & 3);
#pragma unroll
            for (int i = 0; i < kRegistersO / 4; ++i) {
                float2 scale{1.f, 1.f};  // merge() has already applied the scales of INT8 blocks
                if (!C::kInt8Values) scale = *(const float2*)(v_scale + 8 * i + 2 * (lane & 3));
                const float x = o[4 * i + 2 * r] * inverse * scale_or_one(scale.x);
                const float y = o[4 * i + 2 * r + 1] * inverse * scale_or_one(scale.y);
                *(u32*)(out + 8 * i) = params.out_is_fp16 ? pack_f16x2(x, y) : pack_bf16x2(x, y);
            }
        }
    }
};
