// Where values live.
#pragma once

#include "common/types.cuh"

// A register holds `x` from here on. What is cheap is otherwise computed anew at every use.
__device__ __forceinline__ void keep_in_register(u32& x) {
    asm volatile("" : "+r"(x));
}
