// For tests on sm_90: INT8 scores, ExpCast probabilities, E4M3 values, copied as before sm_90.
#include "mma/attention.cuh"

VC_MMA_ATTENTION(vc_attention_mma_d128_expcast_async_emulated_tile_mean, 128, kInt8, kExpCast, true, Copies::kAsync,
                 NativeNvfp4)
VC_MMA_ATTENTION(vc_attention_mma_d128_expcast_async_emulated_tile_plain, 128, kInt8, kExpCast, false, Copies::kAsync,
                 NativeNvfp4)
VC_MMA_ATTENTION(vc_attention_mma_d64_expcast_async_emulated_tile_mean, 64, kInt8, kExpCast, true, Copies::kAsync,
                 NativeNvfp4)
VC_MMA_ATTENTION(vc_attention_mma_d64_expcast_async_emulated_tile_plain, 64, kInt8, kExpCast, false, Copies::kAsync,
                 NativeNvfp4)
