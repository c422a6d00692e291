// Parameter structs of the preparation kernels; vc_attention/ops.py packs them. BH = B * H, nT = number of 128-row
// tiles.
#pragma once

#include "common/types.cuh"

// q, k or v as ComfyUI hands it over: [B, H, N, D], 16-bit elements, any strides (in elements).
struct View {
    const u16* data;
    i64 stride_batch, stride_head, stride_token, stride_channel;
    int heads;
    int vector;  // 1: channels are contiguous and every row starts on 16 bytes
};

struct SampleSumsParams {
    View x;
    float* sums;     // [BH, sampled, D] sum of every sampled block
    float* squares;  // [BH, sampled, D] and of its squares
    int seqlen, block_stride;
};

struct ChannelStatsParams {
    const float* k_sums;     // [BH, sampled_k, D]
    const float* k_squares;  // [BH, sampled_k, D]
    const float* q_squares;  // [BH, sampled_q, D], or null: channels are not balanced
    float* k_mean;           // [BH, D]
    float* factor;           // [BH, 2, D] what multiplies Q, and what multiplies K: powers of two
    int sampled_q, sampled_k;
    float rows_q, rows_k;  // tokens in the sampled blocks
};

struct PrepareQParams {
    View q;
    const float* factor;  // [BH, 2, D]
    u8* codes;            // [BH, nT, 128, D] tile images
    float* scale;         // [BH, nT * 128]
    int seqlen;
};

struct PrepareKParams {
    View k;
    const int* perm;      // [BH, seqlen] or null: sequence order
    const float* mean;    // [BH, D]
    const float* factor;  // [BH, 2, D]
    u8* codes;            // [BH, nT, 128, D] tile images
    float* scale;         // [BH, nT, 4]
    int* order;           // [BH, seqlen] perm with the keys of each tile sorted, or null: keep perm's order
    int seqlen;
    int lane_keys;  // 4 for values of 8 bits, 8 for NVFP4: csrc/README.md, key slots
};

struct PrepareKStepParams {
    View k;
    const int* perm;      // [BH, seqlen] or null: sequence order
    const float* mean;    // [BH, D]
    const float* factor;  // [BH, 2, D]
    u8* codes;            // [BH, nT, 128, D] tile images
    float* scale;         // [BH, nT, 4], the same in all tiles of a step
    int seqlen;
};

struct PrepareVParams {
    View v;
    const int* perm;    // [BH, seqlen] or null: sequence order
    u32* amax;          // [BH, D] bits of the residual's magnitude, zeroed by the host; not for INT8
    u8* codes;          // [BH, nT, D, 128] tile images, [BH, nT, D, 64] for NVFP4
    u8* micro;          // [BH, nT, D, 8], NVFP4 only
    float* scale;       // [BH, D], [BH, nT, D] for INT8
    float* block_mean;  // [BH, nT, D] before correction; not for INT8
    float* mean;        // [BH, ceil(nT / 32), D, 32] images of corrected means, TF32; unused when means are off
    int seqlen;
    int means;         // 0: block means are off
    int shared_tiles;  // 1 or 2 neighbouring tiles that share an INT8 scale
    float value_max;   // what the amax of a scale's residuals becomes; not for NVFP4
};

struct QCenterParams {
    const float* sums;  // [BH, sampled, D] as vc_sample_sums leaves them
    float* center;      // [BH, 2, D] mean of a head's queries, and rotated
    float* amax;        // [BH] largest magnitude of the latter
    int sampled;
    float rows;  // tokens in the sampled blocks
};

struct PrepareQNvfp4Params {
    View q;
    const float* center;  // [BH, 2, D]
    float* amax;          // [BH]; vc_q_amax raises it to that of the queries
    u8* codes;            // [BH, nT, 2, 128, D / 2] tile images
    u8* micro;            // [BH, nT, 2, 128, D / 16]
    float* scale;         // [BH, nT * 128]
    int seqlen;
};

struct PrepareKNvfp4Params {
    View k;
    const int* perm;        // [BH, seqlen] or null: sequence order
    const float* mean;      // [BH, D]
    const float* q_center;  // [BH, 2, D]
    const float* q_amax;    // [BH]
    u8* codes;              // [BH, nT, 136, D / 2] tile images
    u8* micro;              // [BH, nT, 136, D / 16]
    float* scale;           // [BH, nT, 4]
    float* bias;            // [BH, nT, 128]
    int seqlen;
};

struct KMeansMomentsParams {
    View v;
    float* sums;  // [BH, ceil(rows / 128)] sum of squares of 128 training tokens
    int rows, token_stride;
};

struct KMeansInitParams {
    View v;
    const float* sums;
    float* step;    // [BH]
    u8* centroids;  // [BH, C, D] int8
    int rows, token_stride, clusters, head_dim;
};

struct KMeansAssignParams {
    View v;
    const float* step;    // [BH]
    const u8* centroids;  // [BH, C, D] int8
    const int* rank;      // [BH, C], or null: labels are cluster indices
    u16* labels;          // [BH, rows] cluster index, or its rank
    int* histogram;       // [BH, ceil(rows / 768), C] tokens of every label
    int rows, token_stride, clusters;
};

struct KMeansUpdateParams {
    View v;
    const float* step;   // [BH]
    const int* perm;     // [BH, rows] training tokens by cluster
    const int* offsets;  // [BH, chunks, C] as vc_sort_offsets leaves them
    u8* centroids;       // [BH, C, D] int8, replaced
    int rows, token_stride, clusters;
};

struct KMeansChainParams {
    const u8* centroids;  // [BH, C, D] int8
    int* rank;            // [BH, C]
    int clusters;
};

struct SortParams {
    const u16* labels;  // [BH, seqlen]; seqlen counts the labelled tokens
    int* offsets;       // [BH, chunks, C]: the histogram, then where a chunk's first token of a label goes
    int* perm;          // [BH, seqlen]
    int seqlen, clusters;
};
