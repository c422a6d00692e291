// Operand preparation for any arch from sm_80: one kernel per operand, input type and head dim.
#include "smxx/channel_stats.cuh"
#include "smxx/prepare_qk.cuh"
#include "smxx/prepare_v.cuh"

// Blocks an SM of prepare_k: with three, NVRTC spills a register on B200 and B300.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
constexpr int kKeyBlocks = 2;
#else
constexpr int kKeyBlocks = 3;
#endif

#define VC_KERNEL(stage, Params, threads, blocks, dtype, T, D)          \
    extern "C" __global__ void __launch_bounds__(threads, blocks)       \
        vc_##stage##_##dtype##_d##D(const __grid_constant__ Params p) { \
        stage<T, D>(p);                                                 \
    }

#define VC_KERNELS(dtype, T, D)                                                 \
    VC_KERNEL(prepare_q, PrepareQParams, kQuadThreads, 4, dtype, T, D)          \
    VC_KERNEL(sample_sums, SampleSumsParams, 2 * D, 2, dtype, T, D)             \
    VC_KERNEL(prepare_k, PrepareKParams, kQuadThreads, kKeyBlocks, dtype, T, D) \
    VC_KERNEL(prepare_k_step, PrepareKStepParams, kStepThreads, 1, dtype, T, D) \
    VC_KERNEL(v_moments, PrepareVParams, 2 * D, 3, dtype, T, D)                 \
    VC_KERNEL(v_e4m3, PrepareVParams, 2 * D, 3, dtype, T, D)                    \
    VC_KERNEL(v_int8, PrepareVParams, 2 * D, 2, dtype, T, D)

VC_KERNELS(bf16, Bf16, 128)
VC_KERNELS(bf16, Bf16, 64)
VC_KERNELS(fp16, Fp16, 128)
VC_KERNELS(fp16, Fp16, 64)
