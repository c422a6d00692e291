// Warpgroup products of sm_90a. A thread of a warpgroup with g = lane / 4, t = lane % 4 holds rows 16 warp + g and + 8:
// accumulators d[4i], d[4i + 1] are row g, columns 8i + 2t and + 1; d[4i + 2], d[4i + 3] the same of row g + 8.
// kAccumulate false ignores what d held before.
#pragma once

#include "common/types.cuh"

// Descriptor of a K-major operand in shared memory whose rows of kRowBytes (128 or 64) are swizzled as tile images are.
// `address` is a multiple of 1024; the next 32 bytes along K are 2 further.
template <int kRowBytes>
__device__ __forceinline__ u64 matrix_descriptor(u32 address) {
    constexpr u64 kSwizzle = kRowBytes == 128 ? 1 : 2;
    constexpr u64 kEightRows = 8 * kRowBytes;
    return (u64)((address & 0x3ffff) >> 4) | (1ull << 16) | ((kEightRows >> 4) << 32) | (kSwizzle << 62);
}

// Registers written before this call may be read by wgmma issued after it.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Returns once at most kPending groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The compiler must not move reads of accumulators above the wait that precedes this.
template <int kCount>
__device__ __forceinline__ void wgmma_landed(int (&d)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

template <int kCount>
__device__ __forceinline__ void wgmma_landed(u32 (&d)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

template <int kCount>
__device__ __forceinline__ void wgmma_landed(float (&d)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Operand lists. The accumulators come first, so the remaining operands are numbered from their count on.
#define VC_LIST_32                                                                                         \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define VC_LIST_18 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17"
#define VC_LIST_34 VC_LIST_32 ", %32, %33"
#define VC_LIST_36 VC_LIST_34 ", %34, %35"
#define VC_LIST_64                                                                                 \
    VC_LIST_36                                                                                     \
    ", %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
    "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define VC_LIST_68 VC_LIST_64 ", %64, %65, %66, %67"
#define VC_LIST_128                                                                                                \
    VC_LIST_68                                                                                                     \
    ", %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, "  \
    "%89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, "      \
    "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
    "%126, %127"
#define VC_BIND_4(c, d, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define VC_BIND_16(c, d, i) VC_BIND_4(c, d, i), VC_BIND_4(c, d, i + 4), VC_BIND_4(c, d, i + 8), VC_BIND_4(c, d, i + 12)
#define VC_BIND_32(c, d) VC_BIND_16(c, d, 0), VC_BIND_16(c, d, 16)
#define VC_BIND_2(c, d, i) c(d[i]), c(d[i + 1])
#define VC_BIND_18(c, d) VC_BIND_16(c, d, 0), VC_BIND_2(c, d, 16)
#define VC_BIND_34(c, d) VC_BIND_32(c, d), VC_BIND_2(c, d, 32)
#define VC_BIND_36(c, d) VC_BIND_32(c, d), VC_BIND_4(c, d, 32)
#define VC_BIND_64(c, d) VC_BIND_32(c, d), VC_BIND_16(c, d, 32), VC_BIND_16(c, d, 48)
#define VC_BIND_68(c, d) VC_BIND_64(c, d), VC_BIND_4(c, d, 64)
#define VC_BIND_128(c, d) \
    VC_BIND_64(c, d), VC_BIND_16(c, d, 64), VC_BIND_16(c, d, 80), VC_BIND_16(c, d, 96), VC_BIND_16(c, d, 112)

// Both operands in shared memory; %a, %b, %p: numbers of the operands after the accumulators.
#define VC_WGMMA_SS(name, type, c, count, a, b, p, instruction, tail)                                     \
    template <bool kAccumulate>                                                                           \
    __device__ __forceinline__ void name(type(&d)[count], u64 left, u64 right) {                          \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " p ", 0; wgmma.mma_async.sync.aligned." instruction \
                     " {" VC_LIST_##count "}, " a ", " b ", p" tail "; }"                                 \
                     : VC_BIND_##count(c, d)                                                              \
                     : "l"(left), "l"(right), "n"((int)kAccumulate));                                     \
    }

// A in registers: a[0], a[1] rows g and g + 8 of the first half of K, a[2], a[3] of the second.
#define VC_WGMMA_RS(name, type, size, c, count, a0, a1, a2, a3, b, p, instruction, tail)                  \
    template <bool kAccumulate>                                                                           \
    __device__ __forceinline__ void name(type(&d)[size], const u32* a, u64 right) {                       \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " p ", 0; wgmma.mma_async.sync.aligned." instruction \
                     " {" VC_LIST_##count "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b ", p" tail "; }"      \
                     : VC_BIND_##count(c, d)                                                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right), "n"((int)kAccumulate));    \
    }
#define VC_WGMMA_RS_32(name, type, size, c, instruction, tail) \
    VC_WGMMA_RS(name, type, size, c, 32, "%32", "%33", "%34", "%35", "%36", "%37", instruction, tail)
#define VC_WGMMA_RS_18(name, type, size, c, instruction, tail) \
    VC_WGMMA_RS(name, type, size, c, 18, "%18", "%19", "%20", "%21", "%22", "%23", instruction, tail)
#define VC_WGMMA_RS_34(name, type, size, c, instruction, tail) \
    VC_WGMMA_RS(name, type, size, c, 34, "%34", "%35", "%36", "%37", "%38", "%39", instruction, tail)
#define VC_WGMMA_RS_36(name, type, size, c, instruction, tail) \
    VC_WGMMA_RS(name, type, size, c, 36, "%36", "%37", "%38", "%39", "%40", "%41", instruction, tail)
#define VC_WGMMA_RS_64(name, type, size, c, instruction, tail) \
    VC_WGMMA_RS(name, type, size, c, 64, "%64", "%65", "%66", "%67", "%68", "%69", instruction, tail)
#define VC_WGMMA_RS_68(name, type, size, c, instruction, tail) \
    VC_WGMMA_RS(name, type, size, c, 68, "%68", "%69", "%70", "%71", "%72", "%73", instruction, tail)

VC_WGMMA_SS(wgmma_s8, int, "+r", 64, "%64", "%65", "%66", "m64n128k32.s32.s8.s8", "")

VC_WGMMA_SS(wgmma_s8, int, "+r", 128, "%128", "%129", "%130", "m64n256k32.s32.s8.s8", "")
VC_WGMMA_RS(wgmma_s8, int, 128, "+r", 128, "%128", "%129", "%130", "%131", "%132", "%133", "m64n256k32.s32.s8.s8", "")

VC_WGMMA_RS_32(wgmma_e4m3, float, 32, "+f", "m64n64k32.f32.e4m3.e4m3", ", 1, 1")
VC_WGMMA_RS_36(wgmma_e4m3, float, 36, "+f", "m64n72k32.f32.e4m3.e4m3", ", 1, 1")
VC_WGMMA_RS_64(wgmma_e4m3, float, 64, "+f", "m64n128k32.f32.e4m3.e4m3", ", 1, 1")
VC_WGMMA_RS_68(wgmma_e4m3, float, 68, "+f", "m64n136k32.f32.e4m3.e4m3", ", 1, 1")

VC_WGMMA_RS_18(wgmma_e4m3_f16, u32, 18, "+r", "m64n72k32.f16.e4m3.e4m3", ", 1, 1")
VC_WGMMA_RS_34(wgmma_e4m3_f16, u32, 34, "+r", "m64n136k32.f16.e4m3.e4m3", ", 1, 1")

VC_WGMMA_RS_32(wgmma_u8s8, int, 32, "+r", "m64n64k32.s32.u8.s8", "")
VC_WGMMA_RS_64(wgmma_u8s8, int, 64, "+r", "m64n128k32.s32.u8.s8", "")

VC_WGMMA_RS_32(wgmma_tf32, float, 32, "+f", "m64n64k8.f32.tf32.tf32", ", 1, 1")
VC_WGMMA_RS_64(wgmma_tf32, float, 64, "+f", "m64n128k8.f32.tf32.tf32", ", 1, 1")
