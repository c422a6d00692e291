// The block-scaled product of the tensor cores of sm_120a.
#include "mma/selftest.cuh"

extern "C" __global__ void vc_mma_selftest(const __grid_constant__ MmaSelftestParams p) {
    mma_selftest<NativeNvfp4>(p);
}
