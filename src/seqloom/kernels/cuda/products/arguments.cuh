// The arguments of the kernels that multiply halves.
#pragma once
#include "runtime/device.cuh"

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
