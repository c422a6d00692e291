// NVFP4 scores, probabilities and values.
#include "mma/attention.cuh"

VC_MMA_ATTENTION(vc_attention_mma_d128_nvfp4_running_mean, 128, kNvfp4, kNvfp4, true, kBestCopies, NativeNvfp4)
VC_MMA_ATTENTION(vc_attention_mma_d128_nvfp4_running_plain, 128, kNvfp4, kNvfp4, false, kBestCopies, NativeNvfp4)
VC_MMA_ATTENTION(vc_attention_mma_d64_nvfp4_running_mean, 64, kNvfp4, kNvfp4, true, kBestCopies, NativeNvfp4)
VC_MMA_ATTENTION(vc_attention_mma_d64_nvfp4_running_plain, 64, kNvfp4, kNvfp4, false, kBestCopies, NativeNvfp4)
