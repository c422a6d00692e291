// Device self-test: proves that a cubin loads, that parameters arrive where C puts them, and that the GPU computes.
// The parameter struct mixes sizes on purpose; a host that packs it wrongly gives a wrong pattern.

struct SelftestParams {
    unsigned* out;  // [count]
    int count;
    unsigned short multiplier;
    unsigned long long offset;
    float scale;
};

// out[i] = low 32 bits of (i * multiplier + offset), plus scale rounded to an integer
extern "C" __global__ void vc_selftest(const __grid_constant__ SelftestParams p) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.count) {
        unsigned long long value = (unsigned long long)i * p.multiplier + p.offset;
        p.out[i] = (unsigned)value + (unsigned)__float2int_rn(p.scale);
    }
}
