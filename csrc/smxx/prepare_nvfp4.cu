// NVFP4 operands for any arch from sm_80: one kernel per stage, input type and head dim.
#include "smxx/prepare_qk_nvfp4.cuh"
#include "smxx/prepare_v_nvfp4.cuh"

#define VC_KERNEL(stage, Params, threads, blocks, dtype, T, D)          \
    extern "C" __global__ void __launch_bounds__(threads, blocks)       \
        vc_##stage##_##dtype##_d##D(const __grid_constant__ Params p) { \
        stage<T, D>(p);                                                 \
    }

#define VC_KERNELS(dtype, T, D)                                                   \
    VC_KERNEL(q_amax, PrepareQNvfp4Params, kQuadThreads, 6, dtype, T, D)          \
    VC_KERNEL(prepare_q_nvfp4, PrepareQNvfp4Params, kQuadThreads, 5, dtype, T, D) \
    VC_KERNEL(prepare_k_nvfp4, PrepareKNvfp4Params, kKeyThreads, 3, dtype, T, D)  \
    VC_KERNEL(v_nvfp4, PrepareVParams, 2 * D, 3, dtype, T, D)

VC_KERNELS(bf16, Bf16, 128)
VC_KERNELS(bf16, Bf16, 64)
VC_KERNELS(fp16, Fp16, 128)
VC_KERNELS(fp16, Fp16, 64)
