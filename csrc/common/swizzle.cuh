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

// Which quarter of each 4 L neighbouring keys a key is in: the lane of a quad that owns it. L is 4 or 8.
__device__ inline int lane_of_key(int key, int lane_keys) {
    return key >> (lane_keys == 8 ? 3 : 2) & 3;
}

// Image row that holds key `key` of a tile: the inverse of slot(4L g + 8i + 2t + e) = 4L g + L t + 2i + e.
__device__ inline int image_row_of_key(int key, int lane_keys) {
    return (key & -4 * lane_keys) + (key >> 1 & (lane_keys / 2 - 1)) * 8 + lane_of_key(key, lane_keys) * 2 + (key & 1);
}
