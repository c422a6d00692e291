// INT8 scores, exponentials rounded to 255 levels, INT8 values.
#include "sm90/attention.cuh"

VC_ATTENTION(vc_attention_sm90_d128_u8_tile_mean, 128, kU8, false, true)
VC_ATTENTION(vc_attention_sm90_d128_u8_tile_plain, 128, kU8, false, false)
VC_ATTENTION(vc_attention_sm90_d64_u8_tile_mean, 64, kU8, false, true)
VC_ATTENTION(vc_attention_sm90_d64_u8_tile_plain, 64, kU8, false, false)
