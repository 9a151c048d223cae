// Float32 products on tensor cores, each from three tf32 products (19 bits).
#pragma once
#include "runtime/device.cuh"

// Split v into two tf32 values whose sum is v up to the last one or two bits; if v is not finite, `small` is
// NaN. With `keep` the compiler may keep the parts of a loop-invariant v in registers.
DEV void split(u32& big, u32& small, u32 v, bool keep) {
  big = keep ? to_tf32_finite(to_float(v)) : to_tf32_volatile(to_float(v));
  small = to_bits(to_float(v) - to_float(big));
}
// Operand A or B of mma.m16n8k8, split into two tf32 parts.
template <int N>
struct Parts {
  u32 big[N], small[N];
  DEV void set(const u32* v, bool keep) {
#pragma unroll
    for (int i = 0; i < N; i++) split(big[i], small[i], v[i], keep);
  }
};
// Compute c[i] = A[i / (N / NA)] B[i % NB] to float32 precision; small * small is dropped. The mma of
// different accumulators are interleaved, because each waits for the previous one of its accumulator.
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
