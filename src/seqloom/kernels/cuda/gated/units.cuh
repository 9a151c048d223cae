// What the kernels of gated cells read once.
#pragma once
#include "gated/setting.cuh"
#if GRID
#include "gated/grid_product.cuh"
#else
#include "gated/cluster_product.cuh"
#endif

// Two numbers of this lane's units of each of N planes; zeros where there are none.
template <int N>
DEV void load_units(float (&v)[2][N], const Element* from, int unit, bool there) {
#pragma unroll
  for (int k = 0; k < N; k++)
#pragma unroll
    for (int e = 0; e < 2; e++) v[e][k] = there && from ? get_one(from + k * H + unit + e) : 0.f;
}
// Steps of this warp's row, and of the longest of the group's.
DEV void lengths_of(int& length, int& end, const i64* lengths, int B, int T, const Block& b) {
  length = end = 0;
  for (int i = 0; i < b.each; i++)
    if (b.first + i < B) {
      const int n = lengths ? (int)lengths[b.first + i] : T;
      end = n > end ? n : end;
      if (b.works && i == b.column) length = n;
    }
}
