// Arguments of the kernels that multiply hi/lo-split matrices, and the store of two results.
#pragma once
#include "runtime/device.cuh"

#ifndef TRANSPOSED  // set by Python with -D; this default is for editors
#define TRANSPOSED 0
#endif

struct Product {
  const u16 *a, *b;              // high plane, then low plane
  const float *a_unit, *b_unit;  // one inverse scale per 32 rows of a and b in memory
  const float* bias;             // (N,), or null
  float* c;                      // (split-K slices, M, N)
  i64 plane_a, plane_b;          // elements from the high plane to the low plane
  i64 M;
  int N, K, wide_a, wide_b,
      depth;  // multiples of 8: K and N, or transposed M and N. depth: K per split-K slice, a multiple of 32
};

// Store two adjacent sums in c, a split-K slice of the result; skip elements outside the matrix.
DEV void store_sums(const Product& a, float* c, i64 row, int column, float v, float w) {
  if (row >= a.M || column >= a.N) return;
  if constexpr (!TRANSPOSED) {
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
