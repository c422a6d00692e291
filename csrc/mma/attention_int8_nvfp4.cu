// INT8 scores, NVFP4 probabilities and values.
#include "mma/attention.cuh"

VC_MMA_ATTENTION(vc_attention_mma_d128_int8_nvfp4_running_mean, 128, kInt8, kNvfp4, true, kBestCopies, NativeNvfp4)
VC_MMA_ATTENTION(vc_attention_mma_d128_int8_nvfp4_running_plain, 128, kInt8, kNvfp4, false, kBestCopies, NativeNvfp4)
VC_MMA_ATTENTION(vc_attention_mma_d64_int8_nvfp4_running_mean, 64, kInt8, kNvfp4, true, kBestCopies, NativeNvfp4)
VC_MMA_ATTENTION(vc_attention_mma_d64_int8_nvfp4_running_plain, 64, kInt8, kNvfp4, false, kBestCopies, NativeNvfp4)
