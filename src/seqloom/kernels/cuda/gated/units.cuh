// Loads of weights and lengths before the first time step.
#pragma once
#include "gated/setting.cuh"
#if GRID
#include "gated/grid_product.cuh"
#else
#include "gated/cluster_product.cuh"
#endif

DEV constexpr int most(int a, int b) { return a > b ? a : b; }
// Load the values of this lane's two units from each of N vectors of length H; zeros if `from` is null.
template <int N>
DEV void load_units(float (&v)[2][N], const Element* from, int unit, bool active) {
#pragma unroll
  for (int k = 0; k < N; k++)
#pragma unroll
    for (int e = 0; e < 2; e++) v[e][k] = active && from ? get_one(from + k * H + unit + e) : 0.f;
}
// Values of this lane's two units from N vectors; a normalised cell keeps them packed to save registers.
template <int N, bool PACKED = NORM>
struct Units {
  float plain[2][PACKED ? 1 : N];
  Pair packed[PACKED ? N : 1];
  DEV Units(const Element* from, int unit, bool active) {
    if constexpr (PACKED)
#pragma unroll
      for (int k = 0; k < N; k++) packed[k] = active && from ? get_pair(from + k * H + unit) : Pair{};
    else
      load_units(plain, from, unit, active);
  }
  DEV void get(float (&v)[2], int k) const {
    if constexpr (PACKED)
      from_pair(v[0], v[1], packed[k]);
    else {
      v[0] = plain[0][k];
      v[1] = plain[1][k];
    }
  }
};
// Return the start of the weights of this block's head; a head has `numbers` elements.
template <class Args>
DEV const Element* find_head(const Element* all, i64 numbers, const Args& a, const Block& b) {
  return all && a.head_rows ? all + b.first / a.head_rows * numbers : all;
}
// Find the length of this warp's row, and in `end` the longest of the group: the steps this block runs.
DEV void find_lengths(int& length, int& end, const i64* lengths, int B, int T, const Block& b) {
  length = end = 0;
  for (int i = 0; i < b.group_rows; i++)
    if (b.first + i < B) {
      const int n = lengths ? (int)lengths[b.first + i] : T;
      end = n > end ? n : end;
      if ((b.has_row || b.helps) && i == b.column) length = n;
    }
  if (b.base >= H) end = 0;  // a block without units
}
