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
  DEV void set(const u32* v, bool keep) {
#pragma unroll
    for (int i = 0; i < N; i++) split(big[i], small[i], v[i], keep);
  }
};
// c[i] = A[i / (N / NA)] B[i % NB], with all of float32 but small * small. Every mma waits for the one before
// it in its sum, so those of several products take turns.
template <int N, int NA, int NB>
DEV void multiply_exactly(float (&c)[N][4], const Parts<4> (&a)[NA], const Parts<2> (&b)[NB]) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    const u32(&w)[4] = a[i / (N / NA)].small;
    mma_tf32_from_zero(c[i], w[0], w[1], w[2], w[3], b[i % NB].big[0], b[i % NB].big[1]);
  }
#pragma unroll
  for (int i = 0; i < N; i++) {
    const u32(&w)[4] = a[i / (N / NA)].big;
    mma_tf32(c[i], w[0], w[1], w[2], w[3], b[i % NB].small[0], b[i % NB].small[1]);
  }
#pragma unroll
  for (int i = 0; i < N; i++) {
    const u32(&w)[4] = a[i / (N / NA)].big;
    mma_tf32(c[i], w[0], w[1], w[2], w[3], b[i % NB].big[0], b[i % NB].big[1]);
  }
}
