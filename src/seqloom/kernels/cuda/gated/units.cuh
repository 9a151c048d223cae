// What the kernels of gated cells read before the first step.
#pragma once
#include "gated/setting.cuh"
#if GRID
#include "gated/grid_product.cuh"
#else
#include "gated/cluster_product.cuh"
#endif

DEV constexpr int most(int a, int b) { return a > b ? a : b; }
// Load two numbers, of this lane's units, from each of N planes; zeros if there are none.
template <int N>
DEV void load_units(float (&v)[2][N], const Element* from, int unit, bool active) {
#pragma unroll
  for (int k = 0; k < N; k++)
#pragma unroll
    for (int e = 0; e < 2; e++) v[e][k] = active && from ? get_one(from + k * H + unit + e) : 0.f;
}
// Return where the weights of this block's rows begin: of each head there are so many numbers.
template <class Args>
DEV const Element* find_head(const Element* all, i64 numbers, const Args& a, const Block& b) {
  return all && a.head_rows ? all + b.first / a.head_rows * numbers : all;
}
// Find the length of this warp's row, and the longest of the group: the steps of this block.
DEV void find_lengths(int& length, int& end, const i64* lengths, int B, int T, const Block& b) {
  length = end = 0;
  for (int i = 0; i < b.group_rows; i++)
    if (b.first + i < B) {
      const int n = lengths ? (int)lengths[b.first + i] : T;
      end = n > end ? n : end;
      if (b.has_row && i == b.column) length = n;
    }
  if (b.base >= H) end = 0;  // a block without units
}
