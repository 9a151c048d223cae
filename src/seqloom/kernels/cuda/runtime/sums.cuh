// Sums over the lanes of a warp, and parts of a product in shared memory.
#pragma once
#include "runtime/device.cuh"

// Sum N numbers over groups of WIDTH lanes; the sum of number j is then in lane WIDTH / N * j of its group.
template <int WIDTH, int N>
DEV float sum_numbers(float (&v)[N], int lane) {
#pragma unroll
  for (int n = N / 2, bits = WIDTH / 2; bits;
       n /= 2, bits /= 2) {  // half of the numbers to half of the lanes
    const bool upper = (lane & bits) != 0;
    if (n == 0) v[0] += shuffle_xor(v[0], bits);
#pragma unroll
    for (int j = 0; j < n; j++) v[j] = (upper ? v[j + n] : v[j]) + shuffle_xor(upper ? v[j] : v[j + n], bits);
  }
  return v[0];
}
// Write this lane's part of C to floats [column][row] in shared memory, `line` floats from column to column;
// at: the address of its first number.
DEV void put_transposed(u32 at, const float (&c)[4], int line) {
  put_shared(at, c[0]);
  put_shared(at + 4 * line, c[1]);
  put_shared(at + 32, c[2]);
  put_shared(at + 4 * line + 32, c[3]);
}
