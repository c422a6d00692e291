// INT8 scores, exponentials rounded to E4M3, E4M3 values.
#include "sm90/attention.cuh"

VC_ATTENTION(vc_attention_sm90_d128_exact_tile_mean, 128, kExact, false, true)
VC_ATTENTION(vc_attention_sm90_d128_exact_tile_plain, 128, kExact, false, false)
VC_ATTENTION(vc_attention_sm90_d128_exact_running_mean, 128, kExact, true, true)
VC_ATTENTION(vc_attention_sm90_d128_exact_running_plain, 128, kExact, true, false)
VC_ATTENTION(vc_attention_sm90_d64_exact_tile_mean, 64, kExact, false, true)
VC_ATTENTION(vc_attention_sm90_d64_exact_tile_plain, 64, kExact, false, false)
VC_ATTENTION(vc_attention_sm90_d64_exact_running_mean, 64, kExact, true, true)
VC_ATTENTION(vc_attention_sm90_d64_exact_running_plain, 64, kExact, true, false)
