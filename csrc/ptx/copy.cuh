// Asynchronous copies of sm_80: each thread its own 16 bytes.
#pragma once

#include "common/types.cuh"

// Both addresses are multiples of 16.
__device__ __forceinline__ void async_copy_16(u32 target, const void* source) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

// Returns once all of this thread's copies have landed.
__device__ __forceinline__ void async_copies_wait() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}
