// The smallest pipeline of bulk copies as the Hopper kernels have it: a warp reads a buffer, meets at __syncwarp, and
// one lane arrives for all before the next copy. That is ordered; racecheck calls it a race, and the same pipeline
// clean when every lane arrives for itself. Whether it follows this decides whether it can judge those kernels.
#include <cstdio>

#include "ptx/async.cuh"

constexpr int kRounds = 8;
constexpr u32 kFull = 1024, kEmpty = 1032, kBuffer = 2048;  // dynamic shared memory begins at 1024

__global__ void probe(const float* in, float* out) {
    if (threadIdx.x == 0) {
        mbarrier_init(kFull, 1);
        mbarrier_init(kEmpty, 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (threadIdx.x == 32) {
        for (int i = 0; i < kRounds; ++i) {
            mbarrier_wait(kEmpty, (i & 1) ^ 1);
            mbarrier_expect(kFull, 128);
            bulk_copy(kBuffer, in + 32 * i, 128, kFull);
        }
    } else if (threadIdx.x < 32) {
        float sum = 0.f;
        for (int i = 0; i < kRounds; ++i) {
            mbarrier_wait(kFull, i & 1);
            sum += load_shared(kBuffer + 4 * threadIdx.x);
            mbarrier_arrive_warp(kEmpty);
        }
        out[threadIdx.x] = sum;
    }
}

int main() {
    float host[32 * kRounds], *in, *out;
    for (int i = 0; i < 32 * kRounds; ++i) host[i] = 1.f;
    cudaMalloc(&in, sizeof(host));
    cudaMalloc(&out, 128);
    cudaMemcpy(in, host, sizeof(host), cudaMemcpyHostToDevice);
    probe<<<1, 64, 2048>>>(in, out);
    cudaMemcpy(host, out, 128, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 32; ++i) {
        if (host[i] != kRounds) return 1;
    }
    return cudaGetLastError() != cudaSuccess;
}
