// Tile images: where a byte of a tile goes (csrc/README.md, vc_attention/layout.py).
#pragma once

#include "common/types.cuh"

// Byte offset in a tile image of byte `byte` of row `row`; rows are kRowBytes = 128, 64 or 32 wide, 16-byte chunks
// move together.
template <int kRowBytes>
__device__ inline int swizzled(int row, int byte) {
    int flip = kRowBytes == 128 ? row & 7 : kRowBytes == 64 ? (row >> 1) & 3 : (row >> 2) & 1;
    return row * kRowBytes + (((byte >> 4) ^ flip) << 4) + (byte & 15);
}

// Image row that holds key `key` of a tile: the inverse of slot(16g + 8i + 2t + e) = 16g + 4t + 2i + e.
__device__ inline int image_row_of_key(int key) {
    return (key & ~15) + ((key >> 1) & 1) * 8 + ((key >> 2) & 3) * 2 + (key & 1);
}
