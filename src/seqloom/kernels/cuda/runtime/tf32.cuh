// Products of float32 on tensor cores, which multiply numbers of 19 bits (tf32).
#pragma once
#include "runtime/device.cuh"

// Split v into two numbers of 19 bits whose sum is v but for the last one or two bits; if v is not finite,
// the second is NaN. With `keep` the compiler may keep the parts of what does not change.
DEV void split(u32& big, u32& small, u32 v, bool keep) {
  big = keep ? to_tf32_finite(to_float(v)) : to_tf32_volatile(to_float(v));
  small = to_bits(to_float(v) - to_float(big));
}
// An operand A or B of mma.m16n8k8, split.
template <int N>
struct Parts {
  u32 big[N], small[N];
  DEV Parts(const u32* v, bool keep) {
#pragma unroll
    for (int i = 0; i < N; i++) split(big[i], small[i], v[i], keep);
  }
};
// c += A B, with all of float32 but small * small. mma truncates its sums, so they are added up outside of
// it, where none waits for another.
DEV void multiply_exactly(float (&c)[4], const Parts<4>& a, const Parts<2>& b) {
  float sum[4];
  mma_tf32_from_zero(sum, a.small[0], a.small[1], a.small[2], a.small[3], b.big[0], b.big[1]);
  mma_tf32(sum, a.big[0], a.big[1], a.big[2], a.big[3], b.small[0], b.small[1]);
  mma_tf32(sum, a.big[0], a.big[1], a.big[2], a.big[3], b.big[0], b.big[1]);
#pragma unroll
  for (int j = 0; j < 4; j++) c[j] += sum[j];
}
