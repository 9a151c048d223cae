// Products with the units divided among blocks: load a warp's part of a weight, and multiply it by a buffer.
#pragma once
#include "attn_rnn/units.cuh"
#include "runtime/hi_lo.cuh"
#include "runtime/tf32.cuh"
#if GRID
#include "attn_rnn/grid.cuh"
#else
#include "attn_rnn/cluster.cuh"
#endif

// Whether float32 products use the fp16 hi/lo split: the first four words of a tile are the high parts, the
// others the low parts. On a cluster, float32 products use a split into two tf32 values (runtime/tf32.cuh).
constexpr bool HI_LO = GRID && TYPE == FP32 && !TF32;

// Scale a weight tile and replace it with its fp16 hi/lo split, if products use it.
DEV void split_tile(u32 (&w)[WORDS], float scale) {
  if constexpr (HI_LO) {
    u32 v[8];
#pragma unroll
    for (int i = 0; i < 4; i++) {  // (row, c), (row + 8, c), (row, c + 1), ..: two columns of each row
      const int at = i % 2 + i / 2 * 4;
      split_hi_lo(v[i], v[i + 4], scale * to_float(w[at]), scale * to_float(w[at + 2]));
    }
#pragma unroll
    for (int i = 0; i < 8; i++) w[i] = v[i];
  }
}
// A warp's part of a weight: the rows of its tiles and the columns of its split-K slice. IN_SHARED of its
// tiles lie in shared memory, where a lane reads only what it wrote itself, the others in registers. Tiles
// are 16 by 16; the TALL tiles with the same columns are consecutive. PRELOAD of the tiles in shared memory
// are loaded into registers before the wait for a product's other operand.
template <int IN_SHARED, int PRELOAD = 0>
struct Weight {
  u32 w[IN_SHARED < DEEP ? DEEP - IN_SHARED : 1][WORDS], preloaded[PRELOAD ? PRELOAD : 1][WORDS], at;
  float unit;  // inverse of the scale of the warp's weights in the hi/lo split
  DEV void load(const Element* W, int stride, const Block& b, int which = 0) {
    at = b.memory + AT_WEIGHTS +
         (b.warp * (WEIGHTS_IN_SHARED * DEEP + TILES_IN_SHARED) + which * DEEP) * WORDS * 128 + 16 * b.lane;
    float scale = 1.f;
    if constexpr (HI_LO) {
      float largest = 0.f;
#pragma unroll 1
      for (int k = 0; k < DEEP; k++) {
        u32 v[WORDS];
        load_tile(v, W, stride, k, b);
#pragma unroll
        for (int i = 0; i < WORDS; i += 2)
          largest = maximum(largest, find_size(to_float(v[i]), to_float(v[i + 1])));
      }
      scale = find_scale(max_of_lanes<32>(largest), unit);
    }
#pragma unroll
    for (int k = 0; k < DEEP; k++) {
      u32 v[WORDS];
      load_tile(v, W, stride, k, b);
      if constexpr (HI_LO) split_tile(v, scale);
#pragma unroll
      for (int i = 0; i < WORDS; i += 4) {
        const u32 four[4] = {v[i], v[i + 1], v[i + 2], v[i + 3]};
        if (k < IN_SHARED)
          put_shared(at + (k * WORDS + i) * 128, four);
        else
#pragma unroll
          for (int j = 0; j < 4; j++) w[k - IN_SHARED][i + j] = four[j];
      }
    }
  }
  DEV void prepare() {
#pragma unroll
    for (int k = 0; k < PRELOAD; k++)
#pragma unroll
      for (int i = 0; i < WORDS; i += 4) {
        u32 four[4];
        get_shared(four, at + (k * WORDS + i) * 128);
#pragma unroll
        for (int j = 0; j < 4; j++) preloaded[k][i + j] = four[j];
      }
  }
  DEV void get(u32 (&v)[4], int k, int i) const {  // the i-th group of four words of tile k
    if (k >= PRELOAD && k < IN_SHARED)
      get_shared(v, at + (k * WORDS + 4 * i) * 128);
    else
#pragma unroll
      for (int j = 0; j < 4; j++) v[j] = k < PRELOAD ? preloaded[k][4 * i + j] : w[k - IN_SHARED][4 * i + j];
  }
};

// Whether there are registers to keep the split weights; otherwise they are split in every step.
constexpr bool KEEP_SPLIT = 2 * 4 * DEEP * WORDS * WARPS <= 8 * 128 && WARPS < 16;
#if GRID && FORMAT == 2 && !TF32
// c += W times the received values, by the fp16 hi/lo split; all values of a row in this warp share one
// scale. mma truncates when it accumulates, so the products of different tiles are added in float32 registers
// instead.
template <int IN_SHARED, int PRELOAD>
DEV void multiply_hi_lo(Sums& c, const Weight<IN_SHARED, PRELOAD>& W, const Block& b) {
  constexpr int WIDE = DEEP / TALL;
  float largest = 0.f, unit;
#pragma unroll
  for (int k = 0; k < WIDE; k++)
#pragma unroll
    for (int i = 0; i < 4; i += 2)
      largest = maximum(largest, find_size(to_float(b.v[k][i]), to_float(b.v[k][i + 1])));
  const float scale = find_scale(max_of_lanes<4>(largest), unit);
  Sums total = {};
#pragma unroll
  for (int k = 0; k < WIDE; k++) {
    u32 high[2], low[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
      split_hi_lo(high[i], low[i], scale * to_float(b.v[k][2 * i]), scale * to_float(b.v[k][2 * i + 1]));
    u32 w[TALL][2][4];
    float sum[TALL][4];
#pragma unroll
    for (int i = 0; i < TALL; i++) {
      W.get(w[i][0], TALL * k + i, 0);
      W.get(w[i][1], TALL * k + i, 1);
    }
#pragma unroll
    for (int part = 0; part < 3; part++)  // inner loop over independent tiles
#pragma unroll
      for (int i = 0; i < TALL; i++) {
        const u32(&v)[2] = part == 1 ? low : high;
        const u32(&a)[4] = w[i][part == 0];
        if (part == 0)
          mma_from_zero<FP16>(sum[i], a[0], a[1], a[2], a[3], v[0], v[1]);
        else
          mma<FP16>(sum[i], a[0], a[1], a[2], a[3], v[0], v[1]);
      }
#pragma unroll
    for (int i = 0; i < 4 * TALL; i++) total[i / 4][i % 4] += sum[i / 4][i % 4];
  }
  // a lane has two columns of C, but the scale of only one column of B: get both by shuffle
  const float units[2] = {W.unit * shuffle(unit, 8 * b.pair), W.unit * shuffle(unit, 8 * b.pair + 4)};
#pragma unroll
  for (int i = 0; i < 4 * TALL; i++) c[i / 4][i % 4] += units[i % 2] * total[i / 4][i % 4];
}
#endif
// c += W times the rows of 8-row group g of a buffer, with two accumulators per tile so that the mma overlap.
template <int IN_SHARED, int PRELOAD>
DEV void multiply(Sums& c, const Weight<IN_SHARED, PRELOAD>& W, int buffer, const Block& b, int g) {
#if GRID && FORMAT == 2 && !TF32
  multiply_hi_lo(c, W, b);
#else
  // Tiles of B: in total, and loaded at once (limited by registers).
  constexpr int WIDE = DEEP / TALL, AHEAD = WARPS < 16 ? WIDE : TYPE == FP32 ? 1 : WIDE < 4 ? WIDE : 4;
  u32 v[AHEAD][SIZE];
  Sums other = {};
#pragma unroll
  for (int k = 0; k < DEEP; k++) {
    const int at = k / TALL % AHEAD, tall = k % TALL;
    if (at == 0 && tall == 0) load_buffer<AHEAD>(v, buffer, g, k / TALL, b);
#pragma unroll
    for (int i = 0; i < WORDS / 4; i++) {
      u32 w[4];
      W.get(w, k, i);
#if FORMAT == 2 && !TF32
      // mma truncates when it accumulates: add in float32 registers instead, which also makes mma independent
      Parts<4> a[1];
      Parts<2> r[1];
      float sum[1][4];
      a[0].set(w, KEEP_SPLIT);
      r[0].set(v[at] + 2 * i, true);
      multiply_exactly(sum, a, r);
#pragma unroll
      for (int j = 0; j < 4; j++) c[tall][j] += sum[0][j];
#else
      float (&sum)[4] = (k / TALL * WORDS / 4 + i) % 2 ? other[tall] : c[tall];
#if FORMAT == 2
      mma_tf32(sum, w[0], w[1], w[2], w[3], v[at][2 * i], v[at][2 * i + 1]);
#else
      mma<TYPE>(sum, w[0], w[1], w[2], w[3], v[at][0], v[at][1]);
#endif
#endif
    }
  }
#pragma unroll
  for (int i = 0; i < 4 * TALL; i++) c[i / 4][i % 4] += other[i / 4][i % 4];
#endif
}
// Load the values of this lane's two units; zeros if it has none.
DEV Pair load_pair(const Element* from, bool active) {
  return active ? to_pair(get_one(from), get_one(from + 1)) : Pair{};
}
