// Arguments of the kernels that multiply hi/lo-split matrices, and the store of two numbers of a result.
#pragma once
#include "runtime/device.cuh"

#ifndef TURNED  // Python gives it with -D; the value here serves editors
#define TURNED 0
#endif

struct Product {
  const u16 *a, *b;              // high, then low
  const float *a_unit, *b_unit;  // one for each 32 rows of a and b as they lie in memory
  const float* bias;             // (N,), or null
  float* c;                      // (pieces, M, N)
  i64 plane_a, plane_b;          // numbers from high to low
  i64 M;
  int N, K, wide_a, wide_b,
      depth;  // K and N, with TURNED M and N, are multiples of 8; depth, of a piece, is one of 32
};

// Store two sums beside each other in c, a piece of the result; elements outside are not stored.
DEV void store_sums(const Product& a, float* c, i64 row, int column, float v, float w) {
  if (row >= a.M || column >= a.N) return;
  if constexpr (!TURNED) {
    const float p = get_constant(a.a_unit + row / 32), q = get_constant(a.b_unit + column / 32);
    v = v * p * q;
    w = w * p * q;
    if (a.bias) {
      v += get_constant(a.bias + column);
      w += get_constant(a.bias + column + 1);
    }
  }
  put_global(c + row * a.N + column, v, w);
}
