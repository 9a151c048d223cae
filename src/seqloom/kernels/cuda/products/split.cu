// Split a float32 matrix into fp16 hi/lo parts for multiply.cu; the values of 32 rows share one scale.
#include "runtime/hi_lo.cuh"

constexpr int ROWS = 32, WARPS = 8, EACH = ROWS / WARPS, EXACT_SPLIT_BYTES = 4 * WARPS;

struct Split {
  const float* from;  // (rows / inner, inner, columns), strided; columns are contiguous
  u16* to;            // (2, rows, columns): high and low planes
  float* unit;        // (ceil(rows / 32),): factor of high + low
  i64 rows, inner, outer_stride, inner_stride;
  int columns;  // a multiple of 8
};

KERNEL(exact_split, Split, 32 * WARPS) {
  const int lane = thread() & 31, warp = thread() >> 5;
  const u32 memory = shared_memory();
  const float* from[EACH];
  i64 row[EACH];
#pragma unroll
  for (int j = 0; j < EACH; j++) {
    row[j] = (i64)ROWS * block() + warp + WARPS * j;
    const i64 r = row[j] < a.rows ? row[j] : 0;
    from[j] = a.from + r / a.inner * a.outer_stride + r % a.inner * a.inner_stride;
  }
  float largest = 0.f;
  for (int c = 8 * lane; c < a.columns; c += 8 * 32) {
    float v[EACH][2][4];  // all loads are issued before their first use
#pragma unroll
    for (int j = 0; j < EACH; j++)
#pragma unroll
      for (int k = 0; k < 2; k++) get_global(v[j][k], from[j] + c + 4 * k);
#pragma unroll
    for (int j = 0; j < EACH; j++)
#pragma unroll
      for (int k = 0; k < 4; k++)
        largest = maximum(largest, find_size(v[j][k / 2][k % 2 * 2], v[j][k / 2][k % 2 * 2 + 1]));
  }
  largest = max_of_lanes<32>(largest);
  if (lane == 0) put_shared(memory + 4 * warp, largest);
  wait_block();
#pragma unroll
  for (int w = 0; w < WARPS; w++) largest = maximum(largest, get_shared(memory + 4 * w));
  float unit;
  const float scale = find_scale(largest, unit);
  if (thread() == 0) a.unit[block()] = unit;
  for (int c = 8 * lane; c < a.columns; c += 8 * 32) {
    float v[EACH][2][4];
#pragma unroll
    for (int j = 0; j < EACH; j++)
#pragma unroll
      for (int k = 0; k < 2; k++) get_global(v[j][k], from[j] + c + 4 * k);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      if (row[j] >= a.rows) continue;
      u32 high[4], low[4];
#pragma unroll
      for (int k = 0; k < 4; k++)
        split_hi_lo(high[k], low[k], scale * v[j][k / 2][k % 2 * 2], scale * v[j][k / 2][k % 2 * 2 + 1]);
      put_global(a.to + row[j] * a.columns + c, high);
      put_global(a.to + (a.rows + row[j]) * a.columns + c, low);
    }
  }
}
