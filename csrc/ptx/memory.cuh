// Global memory, one instruction each.
#pragma once

#include "common/types.cuh"

// 16 bytes through the read-only path; `p` is 16-byte aligned and nobody writes there during the kernel.
__device__ inline uint4 load_nc_v4(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
