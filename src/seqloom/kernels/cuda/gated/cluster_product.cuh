// A warp's tiles of the gates' weights, and their products with one side of the operand buffer.
#pragma once
#include "gated/cluster.cuh"
#include "runtime/tf32.cuh"

// K tiles of B that are held in registers at a time.
constexpr int REGISTER_TILES = 8 / NTILES / (BACK ? 2 : 1) / (SIZE / 2),
              AHEAD = DEEP < REGISTER_TILES ? DEEP : REGISTER_TILES;

// A warp's weight tiles are numbered 0 .. WARP_TILES - 1 in the order of their use. Most are held in
// registers; the others are spread evenly over this order, so that loads from the cache have time to arrive.
constexpr int WARP_TILES = GATES * DEEP;
constexpr int UNCACHED_TILES = WARP_TILES - FROM_CACHE;
constexpr int IN_REGISTERS = UNCACHED_TILES - IN_SHARED;
constexpr int UNDERWAY = 128 / SIZE / WARPS, RING = FROM_CACHE < UNDERWAY ? FROM_CACHE : UNDERWAY;
// Float32: whether registers suffice to keep the weights' tf32 parts; otherwise they are split in every step.
constexpr bool KEEP_SPLIT = IN_REGISTERS == WARP_TILES && WARPS <= 8 && 2 * WORDS * WARP_TILES <= 96;
DEV constexpr int count_cached_before(int j) { return j * FROM_CACHE / WARP_TILES; }
// Return the index of the f-th tile that is loaded from the cache.
DEV constexpr int find_cached_tile(int f) {
  return FROM_CACHE ? ((f + 1) * WARP_TILES + FROM_CACHE - 1) / (FROM_CACHE ? FROM_CACHE : 1) - 1 : 0;
}
DEV constexpr int count_shared_before(int i) { return i * IN_SHARED / (UNCACHED_TILES ? UNCACHED_TILES : 1); }

struct Weights {
  u32 in_registers[IN_REGISTERS ? IN_REGISTERS : 1][WORDS], at;
  const Element* from;  // (GATES, TILES, TILES, 32, 8): fragments of A, in the order of lanes
  bool active;          // whether this warp has units
  int first;            // first K tile of this warp's slice
  DEV Weights(const Element* W, const Block& b) {
    const int r = b.rank * EACH + b.tile;
    active = r < TILES;
    first = b.slice * DEEP;
    from = W + ((i64)(active ? r : 0) * TILES + first) * 256 + 8 * b.lane;
    at = b.memory + AT_WEIGHTS + b.warp * IN_SHARED * 128 * WORDS + 16 * b.lane;
#pragma unroll
    for (int j = 0; j < WARP_TILES; j++) {
      const int i = j - count_cached_before(j),
                k = count_shared_before(i);  // i: index without cached tiles; k: shared tiles before it
      if (count_cached_before(j + 1) > count_cached_before(j)) continue;
      u32 w[WORDS];
      load(w, j);
      if (count_shared_before(i + 1) > k)
#pragma unroll
        for (int n = 0; n < WORDS; n += 4) {
          const u32 four[4] = {w[n], w[n + 1], w[n + 2], w[n + 3]};
          put_shared(at + 128 * (WORDS * k + n), four);
        }
      else
#pragma unroll
        for (int n = 0; n < WORDS; n++) in_registers[i - k][n] = w[n];
    }
  }
  DEV void load(u32 (&w)[WORDS], int j) const {
#pragma unroll
    for (int n = 0; n < WORDS; n++) w[n] = 0u;
    if (active && first + j / GATES < TILES) {
      const Element* tile = from + ((i64)(j % GATES) * TILES * TILES + j / GATES) * 256;
#if FORMAT == 2
#pragma unroll
      for (int n = 0; n < WORDS; n += 4) {
        float four[4];
        get_global(four, tile + n);
#pragma unroll
        for (int i = 0; i < 4; i++) w[n + i] = TF32 ? to_tf32(four[i]) : to_bits(four[i]);
      }
#else
      get_global(w, tile);
#endif
    }
  }
  // Start the first loads from the cache, before the wait for the operand.
  DEV void begin(u32 (&ring)[RING ? RING : 1][WORDS]) const {
#pragma unroll
    for (int f = 0; f < RING; f++) load(ring[f], find_cached_tile(f));
  }
  DEV void get(u32 (&w)[WORDS], u32 (&ring)[RING ? RING : 1][WORDS], int j) const {
    const int f = count_cached_before(j), i = j - f, k = count_shared_before(i);
    if (count_cached_before(j + 1) > f) {
      u32(&slot)[WORDS] = ring[f % (RING ? RING : 1)];
#pragma unroll
      for (int n = 0; n < WORDS; n++) w[n] = slot[n];
      if (f + RING < FROM_CACHE) load(slot, find_cached_tile(f + RING));
    } else if (count_shared_before(i + 1) > k)
#pragma unroll
      for (int n = 0; n < WORDS; n += 4) {
        u32 four[4];
        get_shared(four, at + 128 * (WORDS * k + n));
#pragma unroll
        for (int m = 0; m < 4; m++) w[n + m] = four[m];
      }
    else
#pragma unroll
      for (int n = 0; n < WORDS; n++) w[n] = in_registers[i - k][n];
  }
};
// Load K tiles k .. k + COUNT - 1 of eight rows, one value per unit, as operand B.
template <int COUNT>
DEV void load_rows(u32 (&t)[COUNT][SIZE], u32 side, int k, const Block& b) {
#if FORMAT == 2  // K is permuted as in A: a lane holds 4 pair .. 4 pair + 3
#pragma unroll
  for (int j = 0; j < COUNT && k + j < DEEP; j++)
    get_shared(t[j], side + b.row * ROW + 64 * (b.slice * DEEP + k + j) + 16 * b.pair);
#else
  const u32 at = side + (b.lane & 7) * ROW + 32 * (b.slice * DEEP + k);
#pragma unroll
  for (int j = 0; j < COUNT && k + j < DEEP; j += 2)
    if (j + 1 < COUNT && k + j + 1 < DEEP)
      load4(t[j][0], t[j][1], t[j + 1 < COUNT ? j + 1 : j][0], t[j + 1 < COUNT ? j + 1 : j][1],
            at + 32 * j + (b.lane >> 3) * 16);
    else
      load2(t[j][0], t[j][1], at + 32 * j + (b.lane >> 3 & 1) * 16);
#endif
}
// Compute the products of step i: forward U_k h for every gate k, backward the sum over k of U_k^T du_k.
DEV void multiply(float (&c)[UNIT_PRODUCTS][NTILES][4], const Weights& W, u32 (&ring)[RING ? RING : 1][WORDS],
                  int i, const Block& b) {
  const u32 at = b.memory + (i & 1) * SIDE;
  float sum[GATES][NTILES][4] = {};
  u32 v[UNIT_VALUES][NTILES][AHEAD][SIZE];
#pragma unroll
  for (int k = 0; k < DEEP; k++) {
    if (k % AHEAD == 0)
#pragma unroll
      for (int s = 0; s < UNIT_VALUES; s++)
#pragma unroll
        for (int n = 0; n < NTILES; n++) load_rows(v[s][n], at + s * BUFFER + 8 * n * ROW, k, b);
    u32 w[GATES][WORDS];
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) W.get(w[gate], ring, k * GATES + gate);
#if FORMAT == 2 && !TF32
#pragma unroll
    for (int j = 0; j < 2; j++) {  // two k8 steps of a tile of 16
      constexpr int N = GATES * NTILES;
      Parts<4> a[GATES];
      Parts<2> r[UNIT_VALUES * NTILES];
      float part[N][4];  // mma truncates when it accumulates, so add up in float32
#pragma unroll
      for (int gate = 0; gate < GATES; gate++) a[gate].set(w[gate] + 4 * j, KEEP_SPLIT);
#pragma unroll
      for (int s = 0; s < UNIT_VALUES * NTILES; s++)
        r[s].set(v[s / NTILES][s % NTILES][k % AHEAD] + 2 * j, true);
      multiply_exactly(part, a, r);
#pragma unroll
      for (int i = 0; i < 4 * N; i++) sum[i / 4 / NTILES][i / 4 % NTILES][i % 4] += part[i / 4][i % 4];
    }
#else
#pragma unroll
    for (int j = 0; j < WORDS / 4; j++)
#pragma unroll
      for (int gate = 0; gate < GATES; gate++)  // independent accumulators
#pragma unroll
        for (int n = 0; n < NTILES; n++) {
          const u32(&t)[SIZE] = v[BACK ? gate : 0][n][k % AHEAD];
          const u32* four = w[gate] + 4 * j;
#if FORMAT == 2
          mma_tf32(sum[gate][n], four[0], four[1], four[2], four[3], t[2 * j], t[2 * j + 1]);
#else
          mma<TYPE>(sum[gate][n], four[0], four[1], four[2], four[3], t[0], t[1]);
#endif
        }
#endif
  }
#pragma unroll
  for (int gate = 0; gate < GATES; gate++)
#pragma unroll
    for (int j = 0; j < 4 * NTILES; j++) {
      float& to = c[BACK ? 0 : gate][j / 4][j % 4];
      to = BACK && gate ? to + sum[gate][j / 4][j % 4] : sum[gate][j / 4][j % 4];
    }
}
// Compute the products of step i and write this warp's slice to shared memory; `side_work` can overlap the
// product.
template <class F, class G>
DEV void compute_products(const Weights& W, int i, const Block& b, F side_work, G look_around) {
  float c[UNIT_PRODUCTS][NTILES][4];
  u32 ring[RING ? RING : 1][WORDS];
  W.begin(ring);
  b.take(i);
  multiply(c, W, ring, i, b);
  side_work();
  b.put_parts(c);
}
