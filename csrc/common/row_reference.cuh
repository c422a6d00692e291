// What the codes of a step count in, and what the sums of all steps do: rows of one thread.
#pragma once

#include "ptx/softmax.cuh"

struct RowReference {
    // A step whose weight would exceed 2^16 moves the row's reference: sums stay far from fp32's limits.
    static constexpr float kMaxLead = 16.f;

    float bias[2];    // O and the row sums are in units of 2^-bias
    float weight[2];  // of the step's codes in that unit
    float lead[2];    // log2 of it

    // The codes of row r's step are in units of 2^octaves.
    __device__ __forceinline__ void refer(int r, float octaves, bool first) {
        if (first) bias[r] = -octaves;
        lead[r] = octaves + bias[r];
        weight[r] = exp2_approx(lead[r]);
    }

    // Whether some row of the warp left its reference so far below that sums could overflow.
    __device__ __forceinline__ bool runs_away() const {
        return __any_sync(kFullWarp, fmaxf(lead[0], lead[1]) > kMaxLead);
    }

    // Rows that did now count in units of the step; what was summed before has to be multiplied by `factor`.
    __device__ __forceinline__ void move_reference(float (&factor)[2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const bool moves = lead[r] > kMaxLead;
            factor[r] = moves ? exp2_approx(-lead[r]) : 1.f;
            bias[r] = moves ? bias[r] - lead[r] : bias[r];
            weight[r] = moves ? 1.f : weight[r];
        }
    }
};
