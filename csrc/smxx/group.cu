// Grouping for any arch from sm_80: k-means, chain and sort.
#include "smxx/assign.cuh"
#include "smxx/kmeans.cuh"
#include "smxx/sort.cuh"
#include "smxx/update.cuh"

#define VC_BY_TYPE_AND_DIM(stage, Params, threads, blocks, dtype, T, D) \
    extern "C" __global__ void __launch_bounds__(threads, blocks)       \
        vc_##stage##_##dtype##_d##D(const __grid_constant__ Params p) { \
        stage<T, D>(p);                                                 \
    }

#define VC_BY_TYPE(stage, Params, threads, dtype, T)                                                               \
    extern "C" __global__ void __launch_bounds__(threads) vc_##stage##_##dtype(const __grid_constant__ Params p) { \
        stage<T>(p);                                                                                               \
    }

#define VC_KERNELS(dtype, T)                                                                \
    VC_BY_TYPE_AND_DIM(kmeans_moments, KMeansMomentsParams, kQuadThreads, 4, dtype, T, 128) \
    VC_BY_TYPE_AND_DIM(kmeans_moments, KMeansMomentsParams, kQuadThreads, 4, dtype, T, 64)  \
    VC_BY_TYPE_AND_DIM(kmeans_assign, KMeansAssignParams, kAssignThreads, 2, dtype, T, 128) \
    VC_BY_TYPE_AND_DIM(kmeans_assign, KMeansAssignParams, kAssignThreads, 2, dtype, T, 64)  \
    VC_BY_TYPE_AND_DIM(kmeans_update, KMeansUpdateParams, kUpdateThreads, 8, dtype, T, 128) \
    VC_BY_TYPE_AND_DIM(kmeans_update, KMeansUpdateParams, kUpdateThreads, 8, dtype, T, 64)  \
    VC_BY_TYPE(kmeans_init, KMeansInitParams, 128, dtype, T)

VC_KERNELS(bf16, Bf16)
VC_KERNELS(fp16, Fp16)

extern "C" __global__ void __launch_bounds__(kMaxClusters, 1)
    vc_kmeans_chain_d128(const __grid_constant__ KMeansChainParams p) {
    kmeans_chain<128>(p);
}

extern "C" __global__ void __launch_bounds__(kMaxClusters, 1)
    vc_kmeans_chain_d64(const __grid_constant__ KMeansChainParams p) {
    kmeans_chain<64>(p);
}
