// A warp's tiles of the gates' weights, and their products with the received words.
// Tiles are numbered 0 .. WARP_TILES - 1 in the order of their use: forward by columns, then gates; backward
// by gates, then columns.
#pragma once
#include "gated/grid.cuh"

constexpr int WARP_TILES = GATES * WARP_TALL * DEEP, IN_REGISTERS = WARP_TILES - IN_SHARED;
DEV constexpr int count_shared_before(int j) { return j * IN_SHARED / WARP_TILES; }
DEV constexpr int find_tile(int gate, int k, int tall) {
  return BACK ? (gate * DEEP + k) * WARP_TALL + tall : (k * GATES + gate) * WARP_TALL + tall;
}

// Float32 without TF32: tiles 2k and 2k + 1 of a row of tiles are the high and low parts of 16 columns, four
// from each of the four sources.
struct Weights {
  u32 in_registers[IN_REGISTERS ? IN_REGISTERS : 1][4], at;
  float unit;  // inverse scale of the warp's weights in the hi/lo split
  DEV Weights(const Element* W, const Block& b) {
    at = b.memory + AT_WEIGHTS + b.warp * IN_SHARED * 512 + 16 * b.lane;
    if constexpr (HI_LO)
      load_hi_lo(W, b);
    else
      load(W, b);
  }
  DEV void keep(const u32 (&w)[4], int j) {
    const int shared = count_shared_before(j);
    if (count_shared_before(j + 1) > shared)
      put_shared(at + 512 * shared, w);
    else
#pragma unroll
      for (int n = 0; n < 4; n++) in_registers[j - shared][n] = w[n];
  }
  DEV void load_hi_lo(const Element* W, const Block& b) {
    auto load = [&](float (&v)[4], int gate, int k, int r) {  // k-th four columns of this lane, of row r
      const int c = SOURCE_UNITS * b.source(k / (WIDE / 2)) + 4 * (k % (WIDE / 2));
      v[0] = v[1] = v[2] = v[3] = 0.f;
      if (c < H && r < H) get_global(v, (const float*)W + ((i64)gate * H + r) * H + c);
    };
    float largest = 0.f, v[4], w[4];
#pragma unroll 1
    for (int k = 0; k < DEEP / 2; k++)
#pragma unroll
      for (int i = 0; i < 2 * GATES * WARP_TALL; i++) {
        load(v, i / (2 * WARP_TALL), k, b.base + 16 * b.tall + i % (2 * WARP_TALL) * 8 + b.row);
        largest = maximum(largest, maximum(find_size(v[0], v[1]), find_size(v[2], v[3])));
      }
    const float scale = find_scale(max_of_lanes<32>(largest), unit);
#pragma unroll
    for (int k = 0; k < DEEP / 2; k++)
#pragma unroll
      for (int gate = 0; gate < GATES; gate++)
#pragma unroll
        for (int tall = 0; tall < WARP_TALL; tall++) {
          u32 high[4], low[4];
          load(v, gate, k, b.base + 16 * (b.tall + tall) + b.row);
          load(w, gate, k, b.base + 16 * (b.tall + tall) + b.row + 8);
          split_hi_lo(high[0], low[0], scale * v[0], scale * v[1]);
          split_hi_lo(high[1], low[1], scale * w[0], scale * w[1]);
          split_hi_lo(high[2], low[2], scale * v[2], scale * v[3]);
          split_hi_lo(high[3], low[3], scale * w[2], scale * w[3]);
          keep(high, find_tile(gate, 2 * k, tall));
          keep(low, find_tile(gate, 2 * k + 1, tall));
        }
  }
  DEV void load(const Element* W, const Block& b) {
#pragma unroll
    for (int k = 0; k < DEEP; k++)
#pragma unroll
      for (int gate = 0; gate < GATES; gate++)
#pragma unroll
        for (int tall = 0; tall < WARP_TALL; tall++) {
          const int r = b.base + 16 * (b.tall + tall) + b.row,
                    c = SOURCE_UNITS * b.source(k / WIDE) + 8 / SIZE * (k % WIDE);
          float v[4] = {};
          if (c < H) {  // two words each of rows r and r + 8
            const Element* p = W + ((i64)gate * H + r) * H + c;
            if (r < H) get_global(v[0], v[2], (const float*)p);
            if (r + 8 < H) get_global(v[1], v[3], (const float*)(p + 8 * H));
          }
          u32 w[4];
#pragma unroll
          for (int n = 0; n < 4; n++) w[n] = TYPE == FP32 && TF32 ? to_tf32(v[n]) : to_bits(v[n]);
          keep(w, find_tile(gate, k, tall));
        }
  }
  DEV void get(u32 (&w)[4], int j) const {
    const int shared = count_shared_before(j);
    if (count_shared_before(j + 1) > shared)
      get_shared(w, at + 512 * shared);
    else
#pragma unroll
      for (int n = 0; n < 4; n++) w[n] = in_registers[j - shared][n];
  }
};
// compute_products computes step i: forward U_k h for every gate k, backward the sum over k of U_k^T du_k. It
// writes this warp's split-K slice to shared memory; `side_work` runs before that, `look_around` after the
// first of several messages. A weight tile is read once and multiplied with all NTILES tiles of eight rows.
// MESSAGES_AT_ONCE: messages that fit into registers.
constexpr int MESSAGES = UNIT_VALUES * NTILES * ROUNDS, MESSAGES_AT_ONCE = MESSAGES < 4 ? MESSAGES : 2;
// Independent accumulators per tile of units: one for each gate; backward, columns alternate between them.
constexpr int CHAINS = !BACK ? GATES : NTILES * WARP_TALL < 4 ? 2 : 1;
typedef float Sums[NTILES][CHAINS][WARP_TALL][4];
#if FORMAT == 2 && !TF32
// Add the hi/lo products of one round with one message for each tile of eight rows; backward, of gate
// `message` alone.
DEV void add_products(Sums& c, const Weights& W, u32 (*v)[WIDE][2], const float* units, int message,
                      int round, const Block& b) {
  // GATES_TOGETHER gates x TOGETHER groups of columns accumulate at once, in independent accumulators; each
  // adds EACH tiles of 16 columns
  constexpr int FEW = NTILES * WARP_TALL < 4, GATES_TOGETHER = !BACK && FEW ? GATES : 1,
                WANTED = (BACK ? 4 : 2) / (NTILES * WARP_TALL), TOGETHER = WANTED ? WANTED : 1,
                EACH = TOGETHER == 4 ? 1 : 2, N = GATES_TOGETHER * WARP_TALL * TOGETHER;
  float factor[NTILES][2];
#pragma unroll
  for (int tile = 0; tile < NTILES; tile++) {
    const float unit = units[tile], larger = max_of_lanes<4>(unit);  // largest inverse scale of the row
    const u32 ratio = compare_units(unit, larger);
    factor[tile][0] = W.unit * shuffle(larger, 8 * b.pair);
    factor[tile][1] = W.unit * shuffle(larger, 8 * b.pair + 4);
#pragma unroll
    for (int k = 0; k < 2 * WIDE; k++)
      v[tile][k / 2][k % 2] = fma_pairs<FP16>(v[tile][k / 2][k % 2], ratio, 0u);
  }
#pragma unroll
  for (int k = 0; k < WIDE / 2; k += TOGETHER * EACH)
#pragma unroll
    for (int first = 0; first < (BACK ? 1 : GATES); first += GATES_TOGETHER) {
      float part[NTILES][N][4];  // mma truncates when it accumulates, so add up in float32
#pragma unroll
      for (int j = 0; j < EACH; j++) {
        u32 w[N][4];
#pragma unroll
        for (int which = 0; which < 3; which++)  // weights x state: low x high, high x high, high x low
#pragma unroll
          for (int i = 0; i < N; i++) {
            const int gate = BACK ? message : first + i / TOGETHER % GATES_TOGETHER,
                      tall = i / TOGETHER / GATES_TOGETHER, column = k + i % TOGETHER * EACH + j;
            if (which < 2) W.get(w[i], find_tile(gate, WIDE * round + 2 * column + 1 - which, tall));
#pragma unroll
            for (int tile = 0; tile < NTILES; tile++) {
              const u32 p = v[tile][2 * column][which == 2], q = v[tile][2 * column + 1][which == 2];
              float (&sum)[4] = part[tile][i];
              if (which == 0 && j == 0)
                mma_from_zero<FP16>(sum, w[i][0], w[i][1], w[i][2], w[i][3], p, q);
              else
                mma<FP16>(sum, w[i][0], w[i][1], w[i][2], w[i][3], p, q);
            }
          }
      }
#pragma unroll
      for (int i = 0; i < NTILES * N * 4; i++) {
        const int tile = i / 4 / N, n = i / 4 % N;
        c[tile][BACK ? 0 : first + n / TOGETHER % GATES_TOGETHER][n / TOGETHER / GATES_TOGETHER][i % 4] +=
            factor[tile][i % 2] * part[tile][n][i % 4];
      }
    }
}
#else
DEV void add_products(Sums& c, const Weights& W, u32 (*v)[WIDE][2], const float*, int message, int round,
                      const Block&) {
#pragma unroll
  for (int k = 0; k < WIDE; k++)
#pragma unroll
    for (int gate = BACK ? message : 0; gate < (BACK ? message + 1 : GATES); gate++)
#pragma unroll
      for (int tall = 0; tall < WARP_TALL; tall++) {
        u32 w[4];
        W.get(w, find_tile(gate, WIDE * round + k, tall));
#pragma unroll
        for (int tile = 0; tile < NTILES; tile++) {
          float (&sum)[4] = c[tile][BACK ? k % CHAINS : gate][tall];
#if FORMAT == 2
          mma_tf32(sum, w[0], w[1], w[2], w[3], v[tile][k][0], v[tile][k][1]);
#else
          mma<TYPE>(sum, w[0], w[1], w[2], w[3], v[tile][k][0], v[tile][k][1]);
#endif
        }
      }
}
#endif
template <class F, class G>
DEV void compute_products(const Weights& W, int i, const Block& b, F side_work, G look_around) {
  Sums c = {};
#pragma unroll
  for (int m = 0; m < MESSAGES; m += MESSAGES_AT_ONCE) {
    constexpr int REST = MESSAGES % MESSAGES_AT_ONCE;  // nonzero only if NTILES is 1
    u32 v[MESSAGES_AT_ONCE][WIDE][2];
    float units[MESSAGES_AT_ONCE];
    if (REST == 0 || m + MESSAGES_AT_ONCE <= MESSAGES)
      b.take(v, units, i, m);
    else {
      u32 one[1][WIDE][2];
      float unit[1];
      b.take(one, unit, i, m);
      units[0] = unit[0];
#pragma unroll
      for (int k = 0; k < 2 * WIDE; k++) v[0][k / 2][k % 2] = one[0][k / 2][k % 2];
    }
#pragma unroll
    for (int n = m; n < m + MESSAGES_AT_ONCE && n < MESSAGES; n += NTILES) {
      if (n > 0 && n <= NTILES) look_around();
      add_products(c, W, v + n - m, units + n - m, n / NTILES / ROUNDS, n / NTILES % ROUNDS, b);
    }
  }
  side_work();
  wait_block();  // all warps have read the slices of the previous step
#pragma unroll
  for (int tile = 0; tile < NTILES; tile++) {
    if (BACK && CHAINS > 1)
#pragma unroll
      for (int j = 0; j < 4 * WARP_TALL; j++) c[tile][0][j / 4][j % 4] += c[tile][CHAINS - 1][j / 4][j % 4];
#pragma unroll
    for (int which = 0; which < UNIT_PRODUCTS; which++) b.put_part(c[tile][which], which, tile);
  }
}
