// The product of multiply.cu on Hopper: each warp group (four warps) computes 64 x 128 with asynchronous
// wgmma, both operands in shared memory. A persistent block computes one 128 x 128 tile after another and
// loads the operands of the next tile meanwhile (cp.async). Tensor cores truncate when they accumulate, so
// the sums over 32 values of K are added in float32, while the next ones are computed (double-buffered
// accumulators).
#ifndef TRANSPOSED
#define TRANSPOSED 0
#define STAGES 6
#endif
#include "products/arguments.cuh"
#include "products/source.cuh"
#include "runtime/wgmma.cuh"

constexpr int TILE = 128, PLANE = 2 * TILE * DEPTH, STEP = 4 * PLANE;
// A step is loaded AHEAD steps before its products: two stages stay reserved for the products of the two
// previous steps, which may still be running.
constexpr int AHEAD = STAGES - 2, ROUND = 4;
constexpr int EXACT_MULTIPLY_BYTES = STAGES * STEP + 1024;  // 1,024 more, to align the stages to 1,024 bytes

// Return the byte offset of 8 values in a plane: wgmma's 64-byte swizzle, or transposed the 128-byte swizzle.
DEV u32 find_place(int line, int eight) {
  return TRANSPOSED ? 4096 * (eight >> 3) + 128 * line + 16 * ((eight ^ line) & 7)
                    : 64 * line + 16 * (eight ^ (line >> 1 & 3));
}
typedef Source<TILE, find_place> Factor;

// Position of a tile in the result, and its range of K; the number of steps is rounded up to ROUND.
struct Tile {
  i64 m;
  int n, piece, from, to;
  DEV Tile(const Product& a, int tile) {
    const int across = (a.N + TILE - 1) / TILE, down = (int)((a.M + TILE - 1) / TILE);
    piece = tile / (across * down);
    m = (i64)TILE * (tile / across % down);
    n = TILE * (tile % across);
    from = piece * a.depth;
    to = from + a.depth < a.K ? from + a.depth : a.K;
  }
  DEV int count_steps() const { return (to - from + ROUND * DEPTH - 1) / (ROUND * DEPTH) * ROUND; }
};

// Load the operands of all steps of this block's tiles, in order.
struct Fetcher {
  int tile, left, rest, stage;  // left, rest: steps and values of K left in the tile
  Factor a, b;
  DEV Fetcher(const Product& p, int first, const Tile& t)
      : tile(first), left(t.count_steps()), rest(t.to - t.from), stage(0), a(p.a, t.m, p.M, t.from, p.wide_a),
        b(p.b, t.n, p.N, t.from, p.wide_b) {}
  DEV void fetch(const Product& p, u32 memory, int tiles) {
    if (left == 0) {
      tile += blocks();
      if (tile < tiles) {
        const Tile t(p, tile);
        left = t.count_steps();
        rest = t.to - t.from;
        a = Factor(p.a, t.m, p.M, t.from, p.wide_a);
        b = Factor(p.b, t.n, p.N, t.from, p.wide_b);
      }
    }
    if (tile < tiles) {
      const u32 at = memory + stage * STEP;
      a.fetch(at, p.plane_a, p.wide_a, rest);
      b.fetch(at + 2 * PLANE, p.plane_b, p.wide_b, rest);
      left--;
      rest -= DEPTH;
    }
    cp_async_commit();
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
};

KERNEL(exact_multiply, Product, THREADS) {
  const int lane = thread() & 31, warp = thread() >> 5;
  const u32 memory = (shared_memory() + 1023u) & ~1023u;
  const int tiles =
      (a.N + TILE - 1) / TILE * (int)((a.M + TILE - 1) / TILE) * ((a.K + a.depth - 1) / a.depth);
  auto describe = [&](u32 at, int half) {  // descriptor of 16 values of K in a plane
    return TRANSPOSED ? describe_matrix(at + 2048 * half, SWIZZLE_128, 1024, 4096)
                      : describe_matrix(at + 32 * half, SWIZZLE_64, 512, 16);
  };
  float sum[64], even[64], odd[64];
  auto begin_step = [&](float (&part)[64], int stage) {
    const u32 other = memory + stage * STEP + 2 * PLANE, own = other - 2 * PLANE + 4096 * (warp >> 2);
    multiply_fp16<TRANSPOSED, 0>(part, describe(own + PLANE, 0), describe(other, 0));  // low x high
    multiply_fp16<TRANSPOSED, 1>(part, describe(own, 0), describe(other + PLANE, 0));
    multiply_fp16<TRANSPOSED, 1>(part, describe(own + PLANE, 1), describe(other, 1));
    multiply_fp16<TRANSPOSED, 1>(part, describe(own, 1), describe(other + PLANE, 1));
    multiply_fp16<TRANSPOSED, 1>(part, describe(own, 0), describe(other, 0));
    multiply_fp16<TRANSPOSED, 1>(part, describe(own, 1), describe(other, 1));
    commit_products();
  };
  auto add = [&](float (&part)[64], float unit) {
    fence_sums(part);
#pragma unroll
    for (int i = 0; i < 64; i++) sum[i] = TRANSPOSED ? sum[i] + unit * part[i] : sum[i] + part[i];
  };
  Fetcher next(a, block(), Tile(a, block()));
#pragma unroll
  for (int i = 0; i < AHEAD; i++) next.fetch(a, memory, tiles);
  int stage = 0;
#pragma unroll 1
  for (int tile = block(); tile < tiles; tile += blocks()) {
    const Tile own(a, tile);
    const int steps = own.count_steps();
    auto find_unit = [&](int step) {
      const int k = own.from / DEPTH + step;
      return TRANSPOSED && DEPTH * step < own.to - own.from
                 ? get_constant(a.a_unit + k) * get_constant(a.b_unit + k)
                 : 1.f;
    };
    // Start the products of a step once all threads have loaded it.
    auto begin = [&](float (&part)[64]) {
      cp_async_wait<AHEAD - 1>();
      fence_proxy_async();
      wait_block();  // all threads have finished the products of the stage to be loaded next
      begin_products();
      begin_step(part, stage);
      stage = stage == STAGES - 1 ? 0 : stage + 1;
    };
    // Add the results of a step while the products of the next step run.
    auto finish = [&](float (&part)[64], float unit) {
      await_products<1>();
      add(part, unit);
      next.fetch(a, memory, tiles);
    };
#pragma unroll
    for (int i = 0; i < 64; i++) sum[i] = 0.f;
#pragma unroll 1
    for (int step = 0; step < steps; step += ROUND) {
      float units[ROUND];
#pragma unroll
      for (int i = 0; i < ROUND; i++) units[i] = find_unit(step + i);
      begin(even);
      next.fetch(a, memory, tiles);
#pragma unroll
      for (int i = 1; i < ROUND; i++) {
        begin(i % 2 ? odd : even);
        finish(i % 2 ? even : odd, units[i - 1]);
      }
      await_products<0>();
      add(odd, units[ROUND - 1]);
    }
    float* c = a.c + own.piece * a.M * a.N;
#pragma unroll
    for (int j = 0; j < 16; j++)
#pragma unroll
      for (int k = 0; k < 2; k++)
        store_sums(a, c, own.m + 16 * warp + (lane >> 2) + 8 * k, own.n + 8 * j + 2 * (lane & 3),
                   sum[4 * j + 2 * k], sum[4 * j + 2 * k + 1]);
  }
  cp_async_wait<0>();
}
