// Global memory, one instruction each.
#pragma once

#include "common/types.cuh"

// 16 bytes through the read-only path; `p` is 16-byte aligned and nobody writes there during the kernel.
__device__ inline uint4 load_nc_v4(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

// 16 bytes of shared memory. Volatile: a second read of the same address is a second load, not a register kept
// meanwhile.
__device__ inline float4 load_shared_v4(const float* p) {
    float4 v;
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"((u32)__cvta_generic_to_shared(p)));
    return v;
}
