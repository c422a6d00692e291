// Fixed-width names (neither compiler needs a header) and the tile every room agrees on.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

constexpr int kTile = 128;  // kBlockM queries or kBlockN keys, see csrc/README.md
constexpr u32 kFullWarp = 0xffffffffu;

__host__ __device__ constexpr int ceil_div(int a, int b) {
    return (a + b - 1) / b;
}
