// A consumer warpgroup: 64 query rows against all key tiles, two tiles a step.
//
// Per step: S = Q K^T (INT8), P = low-bit softmax of S, T = P V, O += weight * T. T is a fresh accumulator for every
// step because FP8 products are summed with about 14 bits, and because the step's codes have a reference of their own.
#pragma once

#include "common/softmax.cuh"
#include "common/swizzle.cuh"
#include "ptx/async.cuh"
#include "ptx/wgmma.cuh"
#include "sm90/config.cuh"
#include "sm90/packed_softmax.cuh"

template <class C>
struct Consumer {
    static constexpr int kRegistersO = C::kHeadDim / 2;
    using Product = typename Select<C::kPacked, u32, typename Select<C::kInt8Values, int, float>::Type>::Type;
    static constexpr int kRegistersT = (kRegistersO + C::kOnesRows / 2) / (C::kPacked ? 2 : 1);

    const AttentionParams& params;
    const int warpgroup, lane;
    typename Select<C::kPacked, PackedSoftmax<C>, Softmax<C>>::Type softmax;
    float row_sum[2] = {0.f, 0.f};  // of the even tiles in even lanes, of the odd ones in odd lanes
    float k_scale[2];               // of this thread's keys, by tile, in steps of codes
    float o[kRegistersO];
    u32 q[C::kHeadDim / 32][4];  // A fragments of Q, unless C leaves it in shared memory

    __device__ __forceinline__ Consumer(const AttentionParams& params_, int warpgroup_)
        : params(params_), warpgroup(warpgroup_), lane(threadIdx.x & 31) {
#pragma unroll
        for (int i = 0; i < kRegistersO; ++i) o[i] = 0.f;
        if constexpr (C::kRunningMax) softmax.running_max[0] = softmax.running_max[1] = -1e30f;
        if (C::kMean) {
            for (int c = 0; c < 8; ++c) store_shared_v2(tile_sums_address(4 * c), 0.f, 0.f);
        }
    }

    static __device__ __forceinline__ int stage(int tile) { return tile / C::kStepTiles % C::kStages; }
    __device__ __forceinline__ void wait_step(u32 barriers, int tile) const {
        mbarrier_wait(barriers + 8 * stage(tile), tile / (C::kStepTiles * C::kStages) & 1);
    }
    __device__ __forceinline__ void release_step(u32 barriers, int tile) const {
        mbarrier_arrive(barriers + 8 * stage(tile));
    }
    // Where the thread keeps the row sums of one of four tiles.
    __device__ __forceinline__ u32 tile_sums_address(int tile) const {
        return C::kTileSums + tile / 4 % 8 * C::kTileSumsChunk + threadIdx.x * 8;
    }
    __device__ __forceinline__ int row() const { return warpgroup * 64 + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2); }

    __device__ __forceinline__ void load_queries() {
        mbarrier_wait(C::kQFull, 0);
        const int first = (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
#pragma unroll
        for (int k = 0; C::kQueriesInRegisters && k < C::kHeadDim / 32; ++k) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int at = swizzled<C::kHeadDim>(first + 8 * (j & 1), 32 * k + 16 * (j >> 1)) + 4 * (lane & 3);
                q[k][j] = __float_as_uint(load_shared(C::kQ + warpgroup * C::kQTile + at));
            }
        }
        if constexpr (C::kPacked) {
            for (int r = 0; r < 2; ++r) softmax.row_scale[r] = q_scale(r) * (kPackedUnit * params.score_scale);
        }
    }

    __device__ __forceinline__ void issue_scores(int tile, int (&s)[128]) {
        const u64 k = matrix_descriptor<C::kHeadDim>(C::kK + stage(tile) * C::kKStage);
        const u64 queries = matrix_descriptor<C::kHeadDim>(C::kQ + warpgroup * C::kQTile);
#pragma unroll
        for (int i = 0; !C::kPacked && i < 128; ++i) s[i] = kMagicBits;
        wgmma_fence();
        C::kQueriesInRegisters ? wgmma_s8<!C::kPacked>(s, q[0], k) : wgmma_s8<!C::kPacked>(s, queries, k);
#pragma unroll
        for (int i = 1; i < C::kHeadDim / 32; ++i) {
            C::kQueriesInRegisters ? wgmma_s8<true>(s, q[i], k + 2 * i) : wgmma_s8<true>(s, queries + 2 * i, k + 2 * i);
        }
        wgmma_commit();
    }

    // Scores have landed: hand the stages back and prepare the softmax of the step.
    template <bool kMasks>
    __device__ __forceinline__ void take_scores(int tile, int (&s)[128]) {
        wgmma_landed(s);
        if (C::kTakesTurns) load_slopes<kMasks>(tile);
        release_step(C::kKEmpty, tile);
        const int valid = params.seqlen_k - tile * C::kBlockN;
        if constexpr (C::kPacked) {
            softmax.pack(s);
            if (kMasks) softmax.mask(s, valid);
        } else {
            if (kMasks) mask_scores(s, valid);
        }
        softmax.set_offsets(s);
    }

    // What T will weigh, which codes do not need.
    __device__ __forceinline__ void weigh(bool first) {
        softmax.weigh(first);
        if (softmax.runs_away()) move_reference();
    }

    template <bool kMasks>
    __device__ __forceinline__ void load_slopes(int tile) {
        const u32 k_scales = C::kKScale + stage(tile) * C::kKScaleStage;
        if constexpr (C::kPacked) {
            softmax.set_slope(load_shared(k_scales));
        } else {
            const u32 own = k_scales + 4 * (lane & 3);
#pragma unroll
            for (int i = 0; i < 2; ++i) k_scale[i] = load_shared(own + i * C::kKScaleTile) * scale();
            set_slopes<kMasks>();
        }
    }

    __device__ __forceinline__ float scale() const { return params.score_scale * C::kStepsPerOctave; }
    __device__ __forceinline__ float q_scale(int r) const { return load_shared(C::kQScale + 4 * row() + 32 * r); }

    template <bool kMasks>
    __device__ __forceinline__ void set_slopes() {
        const float scales[2] = {q_scale(0), q_scale(1)};
#pragma unroll
        for (int i = 0; i < 2; ++i) softmax.template set_slope<kMasks>(i, scales, k_scale[i]);
    }

    // Exponentials follow when it is this warpgroup's turn. ptxas moves arithmetic to before a barrier, but not what
    // depends on a load behind it: so slopes are made anew from the scales of Q.
    template <bool kMasks>
    __device__ __forceinline__ void take_turn() {
        named_barrier_sync<C::kConsumers>(1 + warpgroup);
        set_slopes<kMasks>();
    }

    // Probabilities of the step.
    template <bool kMasks>
    __device__ __forceinline__ void encode(int tile, const int (&s)[128], u32 (&p)[2][16]) {
        if constexpr (C::kPacked) {
            softmax.encode(s, p);
            if (kMasks) softmax.mask_codes(p, params.seqlen_k - tile * C::kBlockN);
        } else {
            softmax.encode(0, s, p[0]);
            softmax.encode(1, s + 64, p[1]);
        }
    }

    __device__ __forceinline__ void pass_turn() const { named_barrier_arrive<C::kConsumers>(2 - warpgroup); }

    // T = P V over both tiles.
    __device__ __forceinline__ void issue_values(int tile, const u32 (&p)[2][16], Product (&t)[kRegistersT]) {
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const u64 v = matrix_descriptor<128>(C::kV + stage(tile) * C::kVStage + i / 4 * C::kVRows) + 2 * (i % 4);
            if constexpr (C::kPacked) {
                i == 0 ? wgmma_e4m3_f16<false>(t, p[0], v) : wgmma_e4m3_f16<true>(t, p[i / 4] + 4 * (i % 4), v);
            } else if constexpr (C::kInt8Values) {
                i == 0 ? wgmma_u8s8<false>(t, p[0], v) : wgmma_u8s8<true>(t, p[i / 4] + 4 * (i % 4), v);
            } else {
                i == 0 ? wgmma_e4m3<false>(t, p[0], v) : wgmma_e4m3<true>(t, p[i / 4] + 4 * (i % 4), v);
            }
        }
        wgmma_commit();
    }

    // Two neighbouring columns of T, the first of the thread in block `block` of 8, in its row r.
    static __device__ __forceinline__ float2 columns(const Product (&t)[kRegistersT], int block, int r) {
        if constexpr (C::kPacked) {
            return unpack_f16x2(t[2 * block + r]);
        } else {
            return {(float)t[4 * block + 2 * r], (float)t[4 * block + 2 * r + 1]};
        }
    }

    // O += weight * T, and the same for the row sums.
    __device__ __forceinline__ void merge(int tile, Product (&t)[kRegistersT]) {
        wgmma_landed(t);
        const u32 scales = C::kVScale + stage(tile) * C::kVScaleStage + 8 * (lane & 3);
#pragma unroll
        for (int i = 0; i < kRegistersO; i += 4) {
            float2 scale{1.f, 1.f};
            if (C::kInt8Values) scale = load_shared_v2(scales + 8 * i);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float2 x = columns(t, i / 4, r);
                o[i + 2 * r] = fmaf(x.x, softmax.weight[r] * scale.x, o[i + 2 * r]);
                o[i + 2 * r + 1] = fmaf(x.y, softmax.weight[r] * scale.y, o[i + 2 * r + 1]);
            }
        }
        release_step(C::kVEmpty, tile);
        float sum[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if constexpr (C::kExpCast) {
                sum[r] = columns(t, kRegistersO / 4, r).x;  // the columns of ones give each lane the tile of its parity
            } else {
                sum[r] = sum_of_own_tile(softmax.sum[0][r], softmax.sum[1][r]);
            }
            sum[r] *= softmax.weight[r];
            row_sum[r] += sum[r];
        }
        // Lane q of a quad keeps the sums of tiles 4c + q, as the A fragment of restore_means wants them.
        if (C::kMean && ((tile ^ lane) & 2) == 0) store_shared_v2(tile_sums_address(tile), sum[0], sum[1]);
    }

    // Row sums over the quad: even lanes get the first tile's, odd lanes the second's.
    __device__ __forceinline__ float sum_of_own_tile(float first, float second) const {
        const bool odd = lane & 1;
        float own = odd ? second : first;
        own += __shfl_xor_sync(kFullWarp, odd ? first : second, 1);
        return own + __shfl_xor_sync(kFullWarp, own, 2);
    }

    // O += R M after the last tile of a group of 32: R their weighted row sums, M their block means (Eq. 6), both TF32.
    // R never leaves its thread: shared memory only saves registers. What an earlier group left there meets zeros of M.
    __device__ __forceinline__ void restore_means(int tile) {
        u32 r[16];
#pragma unroll
        for (int c = 0; c < 8; ++c) {
            const float2 sums = load_shared_v2(tile_sums_address(4 * c));
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
        mbarrier_arrive(C::kMeansEmpty);
#pragma unroll
        for (int i = 0; i < kRegistersO / 4; ++i) {
            float2 units{1.f, 1.f};  // merge() has already applied the scales of INT8 blocks
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
        softmax.move_reference(factor);
#pragma unroll
        for (int r = 0; r < 2; ++r) row_sum[r] *= factor[r];
#pragma unroll
        for (int i = 0; i < kRegistersO; ++i) o[i] *= factor[i >> 1 & 1];
        if (C::kMean) scale_tile_sums(factor);
    }

    // Word by word: a register more would spill.
    __device__ __forceinline__ void scale_tile_sums(const float (&factor)[2]) const {
#pragma unroll 1
        for (int i = 0; i < 16; ++i) {
            const u32 at = tile_sums_address(4 * (i >> 1)) + 4 * (i & 1);
            store_shared(at, __float_as_uint(load_shared(at) * (i & 1 ? factor[1] : factor[0])));
        }
    }

    // O / row_sum in natural units, rounded and written; rows from seqlen_q on are not.
    __device__ __forceinline__ void store(int q_tile, int head, const float* v_scale) {
        const i64 base = head / params.heads * params.out_stride_b + head % params.heads * params.out_stride_h;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float inverse = 1.f / (row_sum[r] + __shfl_xor_sync(kFullWarp, row_sum[r], 1));
            const int query = q_tile * C::kBlockM + row() + 8 * r;
            if (query >= params.seqlen_q) continue;
            u16* const out = (u16*)params.out + base + query * params.out_stride_n + 2 * (lane & 3);
#pragma unroll
            for (int i = 0; i < kRegistersO / 4; ++i) {
                float2 scale{1.f, 1.f};
                if (!C::kInt8Values) scale = *(const float2*)(v_scale + 8 * i + 2 * (lane & 3));
                const float x = o[4 * i + 2 * r] * inverse * scale_or_one(scale.x);
                const float y = o[4 * i + 2 * r + 1] * inverse * scale_or_one(scale.y);
                *(u32*)(out + 8 * i) = params.out_is_fp16 ? pack_f16x2(x, y) : pack_bf16x2(x, y);
            }
        }
    }
};
