// One warp of the mma.sync kernel: 16 query rows against all key tiles.
//
// Per step (one tile, or two that share a reference): S = Q K^T, P = low-bit softmax of S, O += P V. 8-bit products go
// through a fresh accumulator T, of integers or as a rule of halves, and O += weight * T; NVFP4 products are added to O
// by the tensor core.
#pragma once

#include "mma/e4m3_sums.cuh"
#include "mma/fragments.cuh"
#include "mma/parts.cuh"
#include "mma/ring.cuh"
#include "mma/softmax_nvfp4.cuh"

template <class C>
struct Warp {
    static constexpr int kColumnsO = C::kHeadDim / 8;  // products that make O
    static constexpr int kScores = 64 * C::kStepTiles;
    using Softmax_ = typename Select<C::kNvfp4Values, Nvfp4Softmax<C>, Softmax<C>>::Type;
    using Product = typename Select<C::kInt8Values, int[4], E4m3Sums>::Type;
    using Keys = typename Select<C::kCopies == Copies::kBulk, BulkRing<KeyParts<C>>, AsyncRing<KeyParts<C>>>::Type;
    using Values =
        typename Select<C::kCopies == Copies::kBulk, BulkRing<ValueParts<C>>, AsyncRing<ValueParts<C>>>::Type;

    const AttentionParams& params;
    const Keys& keys;
    const Values& values;
    const u32 units;     // shared memory, this lane's columns of the first product
    const u32 row_sum;   // shared memory, this thread's two row sums
    const u32 recent;    // shared memory, row sums of tiles 2t, 2t + 1 of a group of eight, in units of O: [tile][row]
    const u32 magic;     // shared memory, kMagicBits four times
    const u32 centre;    // shared memory, kCentreBits four times
    const u32 q_scales;  // shared memory, of this lane's first row
    const Columns<C::kScoreRow> k_columns;
    const Columns<C::kValueRow> v_columns;
    Softmax_ softmax;
    const Rows<C::kScoreRow> q_rows;
    u32 q_micro[2] = {};  // of each image of NVFP4: scales of the row and step that this lane supplies
    float o[kColumnsO][4];

    __device__ __forceinline__ Warp(const MmaAttentionParams& p, const Keys& keys_, const Values& values_, int q_tile,
                                    int head, u32 shared)
        : params(p.attention),
          keys(keys_),
          values(values_),
          units(shared + C::kUnits + 8 * quad_lane()),
          row_sum(shared + C::kRowSum + 8 * threadIdx.x),
          recent(shared + C::kRecent + 16 * threadIdx.x),
          magic(shared + C::kMagic),
          centre(shared + C::kCentre),
          q_scales(shared + C::kQScale + 64 * (threadIdx.x >> 5) + 4 * row()),
          q_rows(shared + C::kQ) {
        const i64 tile = (i64)head * ceil_div(params.seqlen_q, C::kBlockM) + q_tile;
        if (C::kNvfp4Scores && quad_lane() < 2 * C::kScoreSteps) {
            const i64 query = 2 * tile * C::kBlockM + 16 * (threadIdx.x >> 5) + row() + 8 * (quad_lane() & 1);
            const u32* micro = (const u32*)p.q_micro + query * C::kScoreSteps + (quad_lane() >> 1);
            q_micro[0] = micro[0];
            q_micro[1] = micro[C::kBlockM * C::kScoreSteps];
        }
#pragma unroll
        for (int i = 0; i < 4 * kColumnsO; ++i) o[i / 4][i % 4] = 0.f;
        softmax.running_max[0] = softmax.running_max[1] = -1e30f;
    }

    static __device__ __forceinline__ int row() { return threadIdx.x >> 2 & 7; }
    static __device__ __forceinline__ int quad_lane() { return threadIdx.x & 3; }

    // S of a step, and the slopes that its scales give.
    __device__ __forceinline__ void scores(int step, int (&s)[kScores]) {
        const u32 stage = keys.acquire(step);
        values.fill(step + C::kStages - 1);
        const float q_scale[2] = {load_shared(q_scales), load_shared(q_scales + 32)};
#pragma unroll
        for (int i = 0; i < C::kStepTiles; ++i) {
            if constexpr (C::kNvfp4Scores) {
                multiply_nvfp4_keys(stage, s);
            } else {
                multiply_keys(stage + i * C::kKCodesBytes, s + 64 * i);
                if constexpr (C::kNvfp4Values) softmax.shift[0] = softmax.shift[1] = -kMagic;
            }
            const float k_scale = load_shared(stage + C::kKScale + C::kKScaleBytes * i + 4 * quad_lane()) *
                                  (params.score_scale * C::kStepsPerOctave);
            if constexpr (C::kNvfp4Values) {
                softmax.set_slope(q_scale, k_scale);
            } else {
                softmax.template set_slope<true>(i, q_scale, k_scale);
            }
        }
        keys.release(step);
    }

    // INT8 scores of a tile, on top of kMagicBits.
    __device__ __forceinline__ void multiply_keys(u32 stage, int* s) const {
        // Read from memory: constants would be moved into every accumulator, what may be anything stays where it is.
        int start[4];
        load_shared_v4(magic, start);
#pragma unroll
        for (int k = 0; k < C::kScoreSteps; ++k) {
            u32 q[4];  // read again for every tile: registers are scarcer
            q_rows.load(k, q);
#pragma unroll
            for (int n = 0; n < 16; n += 2) {
                u32 b[4];
                k_columns.load(stage, n, k, b);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    int (&d)[4] = *(int (*)[4])(s + 4 * (n + i));
                    k == 0 ? mma_s8(d, q, b + 2 * i, start) : mma_s8(d, q, b + 2 * i, d);
                }
            }
        }
    }

    // NVFP4 scores of a tile but for what the means of its keys add, which is the same for all of a row.
    __device__ __forceinline__ void multiply_nvfp4_keys(u32 stage, int (&s)[64]) {
        float sum[17][4];
#pragma unroll
        for (int n = 0; n < 16; ++n) {
            const u32 bias = stage + C::kKBias + 32 * n + 8 * quad_lane();
            load_shared_v2(bias, sum[n][0], sum[n][1]);
            load_shared_v2(bias, sum[n][2], sum[n][3]);  // moving two registers would cost two instructions
        }
        u32 scale[5][C::kScoreSteps];
#pragma unroll
        for (int i = 0; i < 5; ++i) load_scales(stage + C::kKMicro, 4 * i, scale[i]);
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[16][j] = 0.f;
#pragma unroll
        for (int k = 0; k < C::kScoreSteps; ++k) {
            u32 q[4], rest[4], b[4];
            q_rows.load(k, q);
            q_rows.load_next_image(k, rest);
#pragma unroll
            for (int n = 0; n < 16; n += 2) {
                k_columns.load(stage, n, k, b);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    C::Nvfp4::mma(sum[n + i], q, b + 2 * i, sum[n + i], q_micro[0], k, scale[n / 4][k], (n + i) % 4);
                }
            }
            k_columns.load(stage, 16, k, b);  // means, and of another eight rows what is not used
            C::Nvfp4::mma(sum[16], q, b, sum[16], q_micro[0], k, scale[4][k], 0);
            C::Nvfp4::mma(sum[16], rest, b, sum[16], q_micro[1], k, scale[4][k], 0);
        }
        softmax.shift[0] = sum[16][0] + sum[16][1];
        softmax.shift[1] = sum[16][2] + sum[16][3];
#pragma unroll
        for (int i = 0; i < 64; ++i) s[i] = __float_as_int(sum[i / 4][i % 4]);
    }

    __device__ __forceinline__ u32 acquire_values(int step) const {
        const u32 stage = values.acquire(step);
        keys.fill(step + C::kStages - C::kLag);
        return stage;
    }

    // O += P V of an NVFP4 tile.
    __device__ __forceinline__ void add_nvfp4_values(int tile, const int (&s)[64]) {
        constexpr u32 kOnes[2] = {0x22222222, 0x22222222}, kUnitScales = 0x38383838;
        u32 p[2][4], p_micro;
        softmax.encode(s, p, p_micro);
        if (softmax.must_rescale()) rescale(softmax.factor);  // here, where no scores are alive
        const u32 stage = acquire_values(tile);
        u32 scale[kColumnsO / 4][2];
#pragma unroll
        for (int i = 0; i < kColumnsO / 4; ++i) load_scales(stage + C::kVScale, 4 * i, scale[i]);
        float sum[4] = {};
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            C::Nvfp4::mma(sum, p[k], kOnes, sum, p_micro, k, kUnitScales, 0);
#pragma unroll
            for (int n = 0; n < kColumnsO; n += 2) {
                u32 b[4];
                v_columns.load(stage, n, k, b);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    C::Nvfp4::mma(o[n + i], p[k], b + 2 * i, o[n + i], p_micro, k, scale[n / 4][k], (n + i) % 4);
                }
            }
        }
        values.release(tile);
        add_row_sums(sum[0], sum[2]);
        remember_row_sums(tile, sum[0], sum[2]);
    }

    // O += weight * P V of a step of two 8-bit tiles.
    __device__ __forceinline__ void add_values(int step, const int (&s)[kScores]) {
        u32 p[2][16];
        softmax.encode(0, s, p[0]);
        softmax.encode(1, s + 64, p[1]);
        if (softmax.runs_away()) {  // here, where no scores are alive
            float factor[2];
            softmax.move_reference(factor);
            rescale(factor);
        }
        if constexpr (!C::kExpCast) add_step_sums(step, softmax.sum[0], softmax.sum[1]);
        const u32 stage = acquire_values(step);
        Product t[kColumnsO], start = {};
        if constexpr (C::kInt8Values) load_shared_v4(centre, start);
        multiply_values<true>(stage, p[0], t, start);
        multiply_values<false>(stage + C::kVCodesBytes, p[1], t, start);
        if constexpr (C::kExpCast) {
            float sum[2][2];
            sum_codes(p[0], sum[0]);
            sum_codes(p[1], sum[1]);
            add_step_sums(step, sum[0], sum[1]);
        }
        merge(t, stage + C::kVScale + 8 * quad_lane());
        values.release(step);
    }

    // T += P V of a tile, or T = P V + start of the first.
    template <bool kFirst>
    __device__ __forceinline__ void multiply_values(u32 stage, const u32 (&p)[16], Product (&t)[kColumnsO],
                                                    const Product& start) const {
#pragma unroll
        for (int k = 0; k < C::kValueSteps; ++k) {
#pragma unroll
            for (int n = 0; n < kColumnsO; n += 2) {
                u32 b[4];
                v_columns.load(stage, n, k, b);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    kFirst&& k == 0 ? multiply(t[n + i], p, b + 2 * i, start)
                                    : multiply(t[n + i], p + 4 * k, b + 2 * i, t[n + i]);
                }
            }
        }
    }

    // Row sums of what E4M3 bytes mean, as products with ones.
    static __device__ __forceinline__ void sum_codes(const u32 (&p)[16], float (&sum)[2]) {
        constexpr u32 kOnes[2] = {0x38383838, 0x38383838};  // 1.0
        E4m3Sums product = {};
#pragma unroll
        for (int k = 0; k < C::kValueSteps; ++k) mma_e4m3(product, p + 4 * k, kOnes, product);
#pragma unroll
        for (int r = 0; r < 2; ++r) sum[r] = columns(product, r).x;
    }

    static __device__ __forceinline__ void multiply(E4m3Sums& t, const u32* p, const u32* v, const E4m3Sums& from) {
        mma_e4m3(t, p, v, from);
    }
    static __device__ __forceinline__ void multiply(int (&t)[4], const u32* p, const u32* v, const int (&from)[4]) {
        mma_u8s8(t, p, v, from);
    }

    // O += weight * T.
    __device__ __forceinline__ void merge(const E4m3Sums (&t)[kColumnsO], u32) {
#pragma unroll
        for (int i = 0; i < 2 * kColumnsO; ++i) {
            const int n = i / 2, r = i % 2;
            const float2 x = columns(t[n], r);
            o[n][2 * r] = fmaf(x.x, softmax.weight[r], o[n][2 * r]);
            o[n][2 * r + 1] = fmaf(x.y, softmax.weight[r], o[n][2 * r + 1]);
        }
    }

    // O += weight * scale * T, T on top of kCentreBits. `scales`: of this lane's columns of the first product.
    __device__ __forceinline__ void merge(const int (&t)[kColumnsO][4], u32 scales) {
        const float lift[2] = {softmax.weight[0] * kLift, softmax.weight[1] * kLift};
#pragma unroll
        for (int n = 0; n < kColumnsO; ++n) {
            const float2 scale = load_shared_v2(scales + 32 * n);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float weighted = fmaf(__int_as_float(t[n][j]), lift[j >> 1], -kCentre * lift[j >> 1]);
                o[n][j] = fmaf(weighted, j & 1 ? scale.y : scale.x, o[n][j]);
            }
        }
    }

    __device__ __forceinline__ void add_step_sums(int step, const float (&first)[2], const float (&second)[2]) {
        const float* weight = softmax.weight;
        const float upper[2] = {first[0] * weight[0], second[0] * weight[0]};
        const float lower[2] = {first[1] * weight[1], second[1] * weight[1]};
        add_row_sums(upper[0] + upper[1], lower[0] + lower[1]);
        remember_row_sums(2 * step, upper[0], lower[0]);
        remember_row_sums(2 * step + 1, upper[1], lower[1]);
    }

    __device__ __forceinline__ void add_row_sums(float upper, float lower) const {
        const float2 sums = load_shared_v2(row_sum);
        store_shared_v2(row_sum, sums.x + upper, sums.y + lower);
    }

    // For restore_means.
    __device__ __forceinline__ void remember_row_sums(int tile, float upper, float lower) const {
        if (C::kMean && (tile >> 1 & 3) == quad_lane()) store_shared_v2(recent + 8 * (tile & 1), upper, lower);
    }

    // O += R M for the eight tiles from `tile` on: R their row sums, M their block means (Eq. 6), both TF32. A lane has
    // the sums of tiles 2t and 2t + 1 and reads the means of the same. What older tiles left in R meets zeros of M.
    __device__ __forceinline__ void restore_means(int tile) {
        int sums[4];
        load_shared_v4(recent, sums);
        u32 r[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) r[j] = sums[j] + 0x1000;  // tensor cores cut off: round
        const i64 images = ceil_div(ceil_div(params.seqlen_k, C::kBlockN), 32);
        const float* image = params.v_mean + (blockIdx.y * images + tile / 32) * C::kHeadDim * 32;
        image += 32 * row() + ((tile % 32 / 4 + (quad_lane() >> 1)) ^ row()) * 4 + 2 * (quad_lane() & 1);
#pragma unroll
        for (int n = 0; n < kColumnsO; ++n) {
            const float2 means = *(const float2*)(image + 8 * 32 * n);
            const u32 b[2] = {__float_as_uint(means.x), __float_as_uint(means.y)};
            float m[4] = {};
            mma_tf32(m, r, b, m);
            float2 unit{C::kUnit, C::kUnit};  // merge() has already applied the scales of INT8 tiles
            if (!C::kInt8Values) unit = load_shared_v2(units + 32 * n);
#pragma unroll
            for (int j = 0; j < 4; ++j) o[n][j] = fmaf(m[j], j & 1 ? unit.y : unit.x, o[n][j]);
        }
    }

    // Everything summed so far, in a new unit.
    __device__ __forceinline__ void rescale(const float (&factor)[2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int n = 0; n < kColumnsO; ++n) {
                o[n][2 * r] *= factor[r];
                o[n][2 * r + 1] *= factor[r];
            }
        }
        scale_sums(row_sum, factor);
        if (C::kMean) scale_sums(recent, factor);
        if (C::kMean) scale_sums(recent + 8, factor);
    }

    static __device__ __forceinline__ void scale_sums(u32 address, const float (&factor)[2]) {
        const float2 sums = load_shared_v2(address);
        store_shared_v2(address, sums.x * factor[0], sums.y * factor[1]);
    }

    // O / row_sum in natural units, rounded and written; rows from seqlen_q on are not.
    __device__ __forceinline__ void store(int q_tile, int head, const float* v_scale) const {
        const i64 base = head / params.heads * params.out_stride_b + head % params.heads * params.out_stride_h;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float inverse = 1.f / C::kUnit / load_shared(row_sum + 4 * r);
            const int query = q_tile * C::kBlockM + 16 * (threadIdx.x >> 5) + row() + 8 * r;
            if (query >= params.seqlen_q) continue;
            u16* const out = (u16*)params.out + base + query * params.out_stride_n + 2 * quad_lane();
#pragma unroll
            for (int n = 0; n < kColumnsO; ++n) {
                float2 scale{1.f, 1.f};
                if (!C::kInt8Values) scale = *(const float2*)(v_scale + 8 * n + 2 * quad_lane());
                const float x = o[n][2 * r] * inverse * scale_or_one(scale.x);
                const float y = o[n][2 * r + 1] * inverse * scale_or_one(scale.y);
                *(u32*)(out + 8 * n) = params.out_is_fp16 ? pack_f16x2(x, y) : pack_bf16x2(x, y);
            }
        }
    }
};
