// Multiply float32 matrices that split.cu has split into fp16 hi/lo parts of 11 bits: three fp16 products for
// each float32 product. TRANSPOSED 0: c = a b^T + bias, a (M, K), b (N, K). TRANSPOSED 1 (transposed): c =
// a^T b, a (K, M), b (K, N), in split-K slices. A block computes a tile of 128 x (32 WIDE). mma truncates
// when it accumulates, so the sums over 16 values of K are added in float32.
#ifndef TRANSPOSED
#define TRANSPOSED 0
#define BLOCKS_AT_ONCE 2
#define STAGES 3
#define WIDE 4
#endif
#include "products/arguments.cuh"
#include "products/source.cuh"

constexpr int TALL = 4;  // a warp computes TALL x WIDE tiles of 16 x 8; a block has 2 x 4 warps
constexpr int TILE_M = 32 * TALL, TILE_N = 32 * WIDE;
constexpr int PLANE_A = 2 * TILE_M * DEPTH, PLANE_B = 2 * TILE_N * DEPTH, STAGE = 2 * PLANE_A + 2 * PLANE_B;
constexpr int EXACT_MULTIPLY_BYTES = STAGES * STAGE;

// Return the byte offset of 8 values in a plane, swizzled to avoid bank conflicts.
template <int TILE>
DEV u32 find_place(int line, int eight) {
  return TRANSPOSED ? 2 * TILE * line + 16 * (eight ^ (line & 7))
                    : 64 * line + 16 * (eight ^ (line >> 1 & 3));
}

KERNEL(exact_multiply, Product, THREADS) {
  const int lane = thread() & 31, warp = thread() >> 5;
  const u32 memory = shared_memory();
  const int across = (a.N + TILE_N - 1) / TILE_N, down = (int)((a.M + TILE_M - 1) / TILE_M);
  const int piece = block() / (across * down);
  const i64 m = (i64)TILE_M * (block() / across % down);
  const int n = TILE_N * (block() % across), from = piece * a.depth;
  const int to = from + a.depth < a.K ? from + a.depth : a.K, steps = (to - from + DEPTH - 1) / DEPTH;
  const int own_m = 16 * TALL * (warp & 1), own_n = 8 * WIDE * (warp >> 1);
  Source<TILE_M, find_place<TILE_M>> left(a.a, m, a.M, from, a.wide_a);
  Source<TILE_N, find_place<TILE_N>> right(a.b, n, a.N, from, a.wide_b);
  auto fetch = [&](int step) {
    const u32 stage = memory + step % STAGES * STAGE;
    if (step < steps) {
      left.fetch(stage, a.plane_a, a.wide_a, to - from - DEPTH * step);
      right.fetch(stage + 2 * PLANE_A, a.plane_b, a.wide_b, to - from - DEPTH * step);
    }
    cp_async_commit();
  };
  auto find_unit = [&](int step) {
    const int k = (from + DEPTH * step) / DEPTH;
    return TRANSPOSED && step < steps ? get_constant(a.a_unit + k) * get_constant(a.b_unit + k) : 1.f;
  };
  float sum[TALL][WIDE][4] = {};
#pragma unroll
  for (int step = 0; step < STAGES - 1; step++) fetch(step);
  float next = find_unit(0);
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    const u32 stage = memory + step % STAGES * STAGE;
    const float unit = next;
    next = find_unit(step + 1);
    cp_async_wait<STAGES - 2>();
    wait_block();  // all threads have loaded this stage, and finished reading the one to be loaded next
    fetch(step + STAGES - 1);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      u32 b[2][WIDE][2];  // high, low
#pragma unroll
      for (int k = 0; k < 2; k++)
#pragma unroll
        for (int j = 0; j < WIDE; j += 2) {
          u32(&p)[2] = b[k][j], (&q)[2] = b[k][j + 1];
          const int column = own_n + 8 * j;
          if constexpr (TRANSPOSED)
            load4_transposed(p[0], p[1], q[0], q[1],
                             stage + 2 * PLANE_A + k * PLANE_B +
                                 find_place<TILE_N>(16 * half + 8 * (lane >> 3 & 1) + (lane & 7),
                                                    column / 8 + (lane >> 4)));
          else
            load4(p[0], p[1], q[0], q[1],
                  stage + 2 * PLANE_A + k * PLANE_B +
                      find_place<TILE_N>(column + 8 * (lane >> 4) + (lane & 7), 2 * half + (lane >> 3 & 1)));
        }
      u32 own[2][2][4];  // double-buffered tiles of A: high, low
      auto load_tile = [&](u32(&w)[2][4], int i) {
        const int row = own_m + 16 * i;
        const u32 at = stage + (TRANSPOSED ? find_place<TILE_M>(16 * half + 8 * (lane >> 4) + (lane & 7),
                                                                row / 8 + (lane >> 3 & 1))
                                           : find_place<TILE_M>(row + (lane & 15), 2 * half + (lane >> 4)));
#pragma unroll
        for (int k = 1; k >= 0; k--)
          if constexpr (TRANSPOSED)
            load4_transposed(w[k][0], w[k][1], w[k][2], w[k][3], at + k * PLANE_A);
          else
            load4(w[k][0], w[k][1], w[k][2], w[k][3], at + k * PLANE_A);
      };
      if constexpr (BLOCKS_AT_ONCE == 1) load_tile(own[0], 0);
#pragma unroll
      for (int i = 0; i < TALL; i++) {
        if constexpr (BLOCKS_AT_ONCE > 1)
          load_tile(own[i % 2], i);  // the warps of the multiprocessor's other block hide the latency
        else if (i + 1 < TALL)
          load_tile(own[(i + 1) % 2], i + 1);
        const u32(&h)[4] = own[i % 2][0], (&l)[4] = own[i % 2][1];
        float part[WIDE][4];
#pragma unroll
        for (int j = 0; j < WIDE; j++)
          mma_from_zero<FP16>(part[j], l[0], l[1], l[2], l[3], b[0][j][0], b[0][j][1]);
#pragma unroll
        for (int j = 0; j < WIDE; j++) mma<FP16>(part[j], h[0], h[1], h[2], h[3], b[1][j][0], b[1][j][1]);
#pragma unroll
        for (int j = 0; j < WIDE; j++) mma<FP16>(part[j], h[0], h[1], h[2], h[3], b[0][j][0], b[0][j][1]);
#pragma unroll
        for (int j = 0; j < 4 * WIDE; j++) {
          float& s = sum[i][j / 4][j % 4];
          s = TRANSPOSED ? s + unit * part[j / 4][j % 4] : s + part[j / 4][j % 4];
        }
      }
    }
  }
  float* c = a.c + piece * a.M * a.N;
#pragma unroll
  for (int i = 0; i < TALL; i++)
#pragma unroll
    for (int j = 0; j < WIDE; j++)
#pragma unroll
      for (int k = 0; k < 2; k++)
        store_sums(a, c, m + own_m + 16 * i + (lane >> 2) + 8 * k, n + own_n + 8 * j + 2 * (lane & 3),
                   sum[i][j][2 * k], sum[i][j][2 * k + 1]);
}
