// INT8 scores, ExpCast probabilities, E4M3 values.
#include "sm90/attention.cuh"

VC_ATTENTION(vc_attention_sm90_d128_expcast_tile_mean, 128, kExpCast, false, true)
VC_ATTENTION(vc_attention_sm90_d128_expcast_tile_plain, 128, kExpCast, false, false)
VC_ATTENTION(vc_attention_sm90_d128_expcast_running_mean, 128, kExpCast, true, true)
VC_ATTENTION(vc_attention_sm90_d128_expcast_running_plain, 128, kExpCast, true, false)
VC_ATTENTION(vc_attention_sm90_d64_expcast_tile_mean, 64, kExpCast, false, true)
VC_ATTENTION(vc_attention_sm90_d64_expcast_tile_plain, 64, kExpCast, false, false)
VC_ATTENTION(vc_attention_sm90_d64_expcast_running_mean, 64, kExpCast, true, true)
VC_ATTENTION(vc_attention_sm90_d64_expcast_running_plain, 64, kExpCast, true, false)
