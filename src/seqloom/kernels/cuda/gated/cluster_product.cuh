// A warp's share of the gates' weights, and its products with a side of the buffers.
#pragma once
#include "gated/cluster.cuh"

// Tiles of B that fit into registers.
constexpr int REGISTER_TILES = 8 / NTILES / (BACK ? 2 : 1),
              AHEAD = DEEP < REGISTER_TILES ? DEEP : REGISTER_TILES;

// A warp's tiles of weights in the order of their use, 0 .. ALL - 1. Most lie in registers; those that do not
// are spread evenly, so that loads from the cache have time to arrive.
constexpr int WARP_TILES = GATES * DEEP;
constexpr int UNCACHED_TILES = WARP_TILES - FROM_CACHE;
constexpr int IN_REGISTERS = UNCACHED_TILES - IN_SHARED;
constexpr int RING = FROM_CACHE < 64 / WARPS ? FROM_CACHE : 64 / WARPS;
DEV constexpr int count_cached_before(int j) { return j * FROM_CACHE / WARP_TILES; }
// The f-th tile that comes from the cache.
DEV constexpr int find_cached_tile(int f) {
  return FROM_CACHE ? ((f + 1) * WARP_TILES + FROM_CACHE - 1) / (FROM_CACHE ? FROM_CACHE : 1) - 1 : 0;
}
DEV constexpr int count_shared_before(int i) { return i * IN_SHARED / (UNCACHED_TILES ? UNCACHED_TILES : 1); }

struct Weights {
  u32 in_registers[IN_REGISTERS ? IN_REGISTERS : 1][4], at;
  const Element* from;  // (GATES, TILES, TILES, 32, 8): tiles of A, as lanes take them
  bool active;          // whether this warp has units
  int first;            // tile of the sum
  DEV Weights(const Element* W, const Block& b) {
    const int r = b.rank * EACH + b.tile;
    active = r < TILES;
    first = b.slice * DEEP;
    from = W + ((i64)(active ? r : 0) * TILES + first) * 256 + 8 * b.lane;
    at = b.memory + AT_WEIGHTS + b.warp * IN_SHARED * 512 + 16 * b.lane;
#pragma unroll
    for (int j = 0; j < WARP_TILES; j++) {
      const int i = j - count_cached_before(j),
                k = count_shared_before(i);  // of those that do not come from the cache
      if (count_cached_before(j + 1) > count_cached_before(j)) continue;
      u32 w[4];
      load(w, j);
      if (count_shared_before(i + 1) > k)
        put_shared(at + 512 * k, w);
      else
#pragma unroll
        for (int n = 0; n < 4; n++) in_registers[i - k][n] = w[n];
    }
  }
  DEV void load(u32 (&w)[4], int j) const {
    w[0] = w[1] = w[2] = w[3] = 0u;
    if (active && first + j / GATES < TILES)
      get_global(w, from + ((i64)(j % GATES) * TILES * TILES + j / GATES) * 256);
  }
  // Start the first loads from the cache before waiting for anything.
  DEV void begin(u32 (&ring)[RING ? RING : 1][4]) const {
#pragma unroll
    for (int f = 0; f < RING; f++) load(ring[f], find_cached_tile(f));
  }
  DEV void get(u32 (&w)[4], u32 (&ring)[RING ? RING : 1][4], int j) const {
    const int f = count_cached_before(j), i = j - f, k = count_shared_before(i);
    if (count_cached_before(j + 1) > f) {
      u32(&slot)[4] = ring[f % (RING ? RING : 1)];
#pragma unroll
      for (int n = 0; n < 4; n++) w[n] = slot[n];
      if (f + RING < FROM_CACHE) load(slot, find_cached_tile(f + RING));
    } else if (count_shared_before(i + 1) > k)
      get_shared(w, at + 512 * k);
    else
#pragma unroll
      for (int n = 0; n < 4; n++) w[n] = in_registers[i - k][n];
  }
};
// Compute for step i: forward U_k h for every gate, reverse the sum of all U_k^T du_k.
DEV void multiply(float (&c)[UNIT_PRODUCTS][NTILES][4], const Weights& W, u32 (&ring)[RING ? RING : 1][4],
                  int i, const Block& b) {
  const u32 at = b.memory + (i & 1) * SIDE + (b.lane & 7) * ROW + 32 * b.slice * DEEP;
  float sum[GATES][NTILES][4] = {};
  u32 v[UNIT_VALUES][NTILES][AHEAD][2];
#pragma unroll
  for (int k = 0; k < DEEP; k++) {
    if (k % AHEAD == 0)
#pragma unroll
      for (int s = 0; s < UNIT_VALUES; s++)
#pragma unroll
        for (int n = 0; n < NTILES; n++)
#pragma unroll
          for (int j = 0; j < AHEAD && k + j < DEEP; j += 2) {
            const u32 from = at + s * BUFFER + 8 * n * ROW + 32 * (k + j);
            u32(&t)[AHEAD][2] = v[s][n];
            if (j + 1 < AHEAD && k + j + 1 < DEEP)
              load4(t[j][0], t[j][1], t[j + 1 < AHEAD ? j + 1 : j][0], t[j + 1 < AHEAD ? j + 1 : j][1],
                    from + (b.lane >> 3) * 16);
            else
              load2(t[j][0], t[j][1], from + (b.lane >> 3 & 1) * 16);
          }
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) {  // sums that do not wait for each other
      u32 w[4];
      W.get(w, ring, k * GATES + gate);
#pragma unroll
      for (int n = 0; n < NTILES; n++) {
        const u32(&t)[2] = v[BACK ? gate : 0][n][k % AHEAD];
        mma<TYPE>(sum[gate][n], w[0], w[1], w[2], w[3], t[0], t[1]);
      }
    }
  }
#pragma unroll
  for (int gate = 0; gate < GATES; gate++)
#pragma unroll
    for (int j = 0; j < 4 * NTILES; j++) {
      float& to = c[BACK ? 0 : gate][j / 4][j % 4];
      to = BACK && gate ? to + sum[gate][j / 4][j % 4] : sum[gate][j / 4][j % 4];
    }
}
// Compute the products of step i and put their parts into shared memory; `side_work` runs beside them.
template <class F>
DEV void compute_products(const Weights& W, int i, const Block& b, F side_work) {
  float c[UNIT_PRODUCTS][NTILES][4];
  u32 ring[RING ? RING : 1][4];
  W.begin(ring);
  b.take(i);
  multiply(c, W, ring, i, b);
  side_work();
  b.put_parts(c);
}
