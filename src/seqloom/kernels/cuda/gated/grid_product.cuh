// A warp's share of the gates' weights, and their products with what packets bring.
// Tiles in the order of their use, 0 .. ALL - 1: forward all gates of some columns, reverse all columns of a
// gate.
#pragma once
#include "gated/grid.cuh"
#include "runtime/tf32.cuh"

constexpr int WARP_TILES = GATES * TALL * DEEP, IN_REGISTERS = WARP_TILES - IN_SHARED;
DEV constexpr int count_shared_before(int j) { return j * IN_SHARED / WARP_TILES; }
DEV constexpr int find_tile(int gate, int k, int tall) {
  return BACK ? (gate * DEEP + k) * TALL + tall : (k * GATES + gate) * TALL + tall;
}

struct Weights {
  u32 in_registers[IN_REGISTERS ? IN_REGISTERS : 1][4], at;
  DEV Weights(const Element* W, const Block& b) {
    at = b.memory + AT_WEIGHTS + b.warp * IN_SHARED * 512 + 16 * b.lane;
#pragma unroll
    for (int k = 0; k < DEEP; k++)
#pragma unroll
      for (int gate = 0; gate < GATES; gate++)
#pragma unroll
        for (int tall = 0; tall < TALL; tall++) {
          const int r = b.base + 16 * tall + b.row,
                    c = SOURCE_UNITS * b.source(k / WIDE) + 8 / SIZE * (k % WIDE),
                    j = find_tile(gate, k, tall), shared = count_shared_before(j);
          float v[4] = {};
          if (c < H) {  // two words, of rows r and r + 8
            const Element* p = W + ((i64)gate * H + r) * H + c;
            if (r < H) get_global(v[0], v[2], (const float*)p);
            if (r + 8 < H) get_global(v[1], v[3], (const float*)(p + 8 * H));
          }
          u32 w[4];
#pragma unroll
          for (int n = 0; n < 4; n++) w[n] = TYPE == FP32 && TF32 ? to_tf32(v[n]) : to_bits(v[n]);
          if (count_shared_before(j + 1) > shared)
            put_shared(at + 512 * shared, w);
          else
#pragma unroll
            for (int n = 0; n < 4; n++) in_registers[j - shared][n] = w[n];
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
// Compute for step i: forward U_k h for every gate, reverse the sum of all U_k^T du_k. The parts go to shared
// memory; `side_work` runs before they are overwritten. MESSAGES_AT_ONCE: messages that fit into registers.
constexpr int MESSAGES = UNIT_VALUES * NTILES * ROUNDS, MESSAGES_AT_ONCE = MESSAGES < 4 ? MESSAGES : 2;
template <class F>
DEV void compute_products(const Weights& W, int i, const Block& b, F side_work) {
  float c[GATES][TALL][4];
  u32 v[MESSAGES_AT_ONCE][WIDE][2];
#pragma unroll
  for (int m = 0; m < MESSAGES; m++) {
    const int round = m % ROUNDS, message = m / ROUNDS % UNIT_VALUES, tile = m / ROUNDS / UNIT_VALUES;
    if (m % MESSAGES_AT_ONCE == 0) {
      if (m + MESSAGES_AT_ONCE <= MESSAGES)
        b.take(v, i, m);
      else {
        u32 one[1][WIDE][2];
        b.take(one, i, m);
#pragma unroll
        for (int k = 0; k < 2 * WIDE; k++) v[0][k / 2][k % 2] = one[0][k / 2][k % 2];
      }
    }
    const u32(&t)[WIDE][2] = v[m % MESSAGES_AT_ONCE];
    constexpr int FIRST_GATES = BACK ? 1 : GATES;  // that see a message
#if FORMAT == 2 && !TF32
    constexpr int TOGETHER = (BACK ? 4 : 2) / TALL, N = FIRST_GATES * TALL * TOGETHER;
#pragma unroll
    for (int k = 0; k < WIDE; k += TOGETHER) {
      Parts<4> a[N];
      Parts<2> r[TOGETHER];
      float part[N][4];  // mma truncates its sums, so they are added up outside of it
#pragma unroll
      for (int i = 0; i < TOGETHER; i++) r[i].set(t[k + i], true);
#pragma unroll
      for (int i = 0; i < N; i++) {
        const int gate = BACK ? message : i / TOGETHER % FIRST_GATES, tall = i / TOGETHER / FIRST_GATES;
        u32 w[4];
        W.get(w, find_tile(gate, WIDE * round + k + i % TOGETHER, tall));
        a[i].set(w, false);
      }
      multiply_exactly(part, a, r);
#pragma unroll
      for (int i = 0; i < N; i++) {
        const int gate = BACK ? message : i / TOGETHER % FIRST_GATES, tall = i / TOGETHER / FIRST_GATES;
        float (&sum)[4] = c[gate][tall];
#pragma unroll
        for (int j = 0; j < 4; j++)
          sum[j] = k == 0 && round == 0 && i % TOGETHER == 0 ? part[i][j] : sum[j] + part[i][j];
      }
    }
#else
#pragma unroll
    for (int k = 0; k < WIDE; k++)
#pragma unroll
      for (int gate = BACK ? message : 0; gate < (BACK ? message + 1 : GATES); gate++)
#pragma unroll
        for (int tall = 0; tall < TALL; tall++) {
          u32 w[4];
          float (&sum)[4] = c[gate][tall];  // sums that do not wait for each other
          if (k == 0 && round == 0) sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
          W.get(w, find_tile(gate, WIDE * round + k, tall));
#if FORMAT == 2
          mma_tf32(sum, w[0], w[1], w[2], w[3], t[k][0], t[k][1]);
#else
          mma<TYPE>(sum, w[0], w[1], w[2], w[3], t[k][0], t[k][1]);
#endif
        }
#endif
    if (round + 1 < ROUNDS || message + 1 < UNIT_VALUES) continue;
    if (tile == 0) {
      side_work();
      wait_block();
    }  // all have read the parts of the previous step
    if (BACK)
#pragma unroll
      for (int gate = 1; gate < GATES; gate++)
#pragma unroll
        for (int j = 0; j < 4 * TALL; j++) c[0][j / 4][j % 4] += c[gate][j / 4][j % 4];
#pragma unroll
    for (int which = 0; which < UNIT_PRODUCTS; which++) b.put_part(c[which], which, tile);
  }
}
