// For tests on sm_90: INT8 scores, NVFP4 probabilities and values, with halves in place of NVFP4 tensor cores.
#include "mma/attention.cuh"

VC_MMA_ATTENTION(vc_attention_mma_d128_int8_nvfp4_emulated_running_mean, 128, kInt8, kNvfp4, true, kBestCopies,
                 EmulatedNvfp4)
VC_MMA_ATTENTION(vc_attention_mma_d128_int8_nvfp4_emulated_running_plain, 128, kInt8, kNvfp4, false, kBestCopies,
                 EmulatedNvfp4)
VC_MMA_ATTENTION(vc_attention_mma_d64_int8_nvfp4_emulated_running_mean, 64, kInt8, kNvfp4, true, kBestCopies,
                 EmulatedNvfp4)
VC_MMA_ATTENTION(vc_attention_mma_d64_int8_nvfp4_emulated_running_plain, 64, kInt8, kNvfp4, false, kBestCopies,
                 EmulatedNvfp4)
