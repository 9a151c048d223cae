// Sums over the lanes of a warp, and transposed stores of accumulators to shared memory.
#pragma once
#include "runtime/device.cuh"

// Sum N values over groups of WIDTH lanes, 32 or 16; all lanes get the sums. Two mma with a matrix of ones
// have half the latency of five shuffles. tf32 keeps 19 bits of a value, so a second operand holds the
// remainder.
template <int WIDTH, int N>
DEV void sum_lanes(float (&v)[N], int lane) {
  const u32 one = to_bits(1.f), chosen = WIDTH == 32 || (lane < 16) == ((lane & 3) < 2) ? one : 0u;
  float c[N][4];
#pragma unroll
  for (int j = 0; j < N; j++) {
    const u32 high = to_bits(v[j]) & 0xffffe000u;
    mma_tf32_from_zero(c[j], one, one, one, one, high, to_bits(v[j] - to_float(high)));
  }
  // a lane now has the sums over lanes 8 pair .. 8 pair + 3 and over the next four lanes
#pragma unroll
  for (int j = 0; j < N; j++) {
    const float eight = c[j][0] + c[j][1];
    const u32 high = to_bits(eight) & 0xffffe000u;
    mma_tf32_from_zero(c[j], chosen, chosen, chosen, chosen, high, to_bits(eight - to_float(high)));
    v[j] = c[j][0];
  }
}
// Store this lane's fragment of C, transposed to [column][row], in shared memory. `at`: address of its first
// element; `line`: floats from column to column.
DEV void put_transposed(u32 at, const float (&c)[4], int line) {
  put_shared(at, c[0]);
  put_shared(at + 4 * line, c[1]);
  put_shared(at + 32, c[2]);
  put_shared(at + 4 * line + 32, c[3]);
}
