// For tests on sm_90: INT8 scores, exponentials rounded to 255 levels, INT8 values, copied as before sm_90.
#include "mma/attention.cuh"

VC_MMA_ATTENTION(vc_attention_mma_d128_u8_async_emulated_tile_mean, 128, kInt8, kU8, true, Copies::kAsync, NativeNvfp4)
VC_MMA_ATTENTION(vc_attention_mma_d128_u8_async_emulated_tile_plain, 128, kInt8, kU8, false, Copies::kAsync,
                 NativeNvfp4)
VC_MMA_ATTENTION(vc_attention_mma_d64_u8_async_emulated_tile_mean, 64, kInt8, kU8, true, Copies::kAsync, NativeNvfp4)
VC_MMA_ATTENTION(vc_attention_mma_d64_u8_async_emulated_tile_plain, 64, kInt8, kU8, false, Copies::kAsync, NativeNvfp4)
