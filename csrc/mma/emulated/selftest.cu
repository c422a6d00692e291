// For tests: the self-test with halves in place of NVFP4 tensor cores.
#include "mma/selftest.cuh"

extern "C" __global__ void vc_mma_selftest(const __grid_constant__ MmaSelftestParams p) {
    mma_selftest<EmulatedNvfp4>(p);
}
