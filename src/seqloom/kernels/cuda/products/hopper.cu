// The same as multiply.cu on Hopper: four warps multiply 64 x 128 together, from shared memory, in the
// background. A block makes a tile of 128 x 128. Tensor cores truncate their sums, so those of 32 numbers are
// added up outside of them, while the next ones are computed.
#ifndef TURNED
#define TURNED 0
#define STAGES 3
#endif
#include "products/arguments.cuh"
#include "products/source.cuh"
#include "runtime/wgmma.cuh"

constexpr int TILE = 128, PLANE = 2 * TILE * DEPTH, STEP = 4 * PLANE;
constexpr int EXACT_MULTIPLY_BYTES = STAGES * 2 * STEP + 1024;  // the first address is a multiple of 1,024

// Return where 8 numbers lie in a plane: wgmma's layouts of lines of 64 and 128 bytes.
DEV u32 find_place(int line, int eight) {
  return TURNED ? 4096 * (eight >> 3) + 128 * line + 16 * ((eight ^ line) & 7)
                : 64 * line + 16 * (eight ^ (line >> 1 & 3));
}

KERNEL(exact_multiply, Product, THREADS) {
  const int lane = thread() & 31, warp = thread() >> 5;
  const u32 memory = (shared_memory() + 1023u) & ~1023u;
  const int across = (a.N + TILE - 1) / TILE, down = (int)((a.M + TILE - 1) / TILE);
  const int piece = block() / (across * down);
  const i64 m = (i64)TILE * (block() / across % down);
  const int n = TILE * (block() % across), from = piece * a.depth;
  const int to = from + a.depth < a.K ? from + a.depth : a.K,
            pairs = (to - from + 2 * DEPTH - 1) / (2 * DEPTH);
  Source<TILE, find_place> left(a.a, m, a.M, from, a.wide_a), right(a.b, n, a.N, from, a.wide_b);
  auto fetch = [&](int pair) {  // two steps
#pragma unroll
    for (int step = 2 * pair; step < 2 * pair + 2 && pair < pairs; step++) {
      const u32 at = memory + step % (2 * STAGES) * STEP;
      left.fetch(at, a.plane_a, a.wide_a, to - from - DEPTH * step);
      right.fetch(at + 2 * PLANE, a.plane_b, a.wide_b, to - from - DEPTH * step);
    }
    fetch_commit();
  };
  auto find_unit = [&](int step) {
    const int k = from / DEPTH + step;
    return TURNED && DEPTH * step < to - from ? get_constant(a.a_unit + k) * get_constant(a.b_unit + k) : 1.f;
  };
  auto describe = [&](u32 at, int half) {  // 16 columns of a plane
    return TURNED ? describe_matrix(at + 2048 * half, SWIZZLE_128, 1024, 4096)
                  : describe_matrix(at + 32 * half, SWIZZLE_64, 512, 16);
  };
  float sum[64] = {}, even[64], odd[64];
  auto begin_step = [&](float (&part)[64], int step) {
    const u32 other = memory + step % (2 * STAGES) * STEP + 2 * PLANE,
              own = other - 2 * PLANE + 4096 * (warp >> 2);
    multiply_fp16<TURNED, 0>(part, describe(own + PLANE, 0), describe(other, 0));  // low, high
    multiply_fp16<TURNED, 1>(part, describe(own, 0), describe(other + PLANE, 0));
    multiply_fp16<TURNED, 1>(part, describe(own + PLANE, 1), describe(other, 1));
    multiply_fp16<TURNED, 1>(part, describe(own, 1), describe(other + PLANE, 1));
    multiply_fp16<TURNED, 1>(part, describe(own, 0), describe(other, 0));
    multiply_fp16<TURNED, 1>(part, describe(own, 1), describe(other, 1));
    commit_products();
  };
  auto add = [&](float (&part)[64], float unit) {
    hold_sums(part);
#pragma unroll
    for (int i = 0; i < 64; i++) sum[i] = TURNED ? sum[i] + unit * part[i] : sum[i] + part[i];
  };
#pragma unroll
  for (int pair = 0; pair < STAGES - 1; pair++) fetch(pair);
#pragma unroll 1
  for (int pair = 0; pair < pairs; pair++) {
    const float units[2] = {find_unit(2 * pair), find_unit(2 * pair + 1)};
    fetch_wait<STAGES - 2>();
    show_fetched();
    wait_block();  // all have fetched their part, and multiplied the stage that is fetched next
    begin_products();
    begin_step(even, 2 * pair);
    begin_step(odd, 2 * pair + 1);
    fetch(pair + STAGES - 1);
    await_products<1>();
    add(even, units[0]);
    await_products<0>();
    add(odd, units[1]);
  }
  float* c = a.c + piece * a.M * a.N;
#pragma unroll
  for (int j = 0; j < 16; j++)
#pragma unroll
    for (int k = 0; k < 2; k++)
      store_sums(a, c, m + 16 * warp + (lane >> 2) + 8 * k, n + 8 * j + 2 * (lane & 3), sum[4 * j + 2 * k],
                 sum[4 * j + 2 * k + 1]);
}
