// A warp's share of the gates' weights, and their products with what packets bring.
// Tiles in the order of their use, 0 .. ALL - 1: forward all gates of some columns, reverse all columns of a
// gate.
#pragma once
#include "gated/grid.cuh"

constexpr int ALL = GATES * TALL * DEEP, HELD = ALL - KEPT;
DEV constexpr int kept_before(int j) { return j * KEPT / ALL; }
DEV constexpr int tile_of(int gate, int k, int tall) {
  return BACK ? (gate * DEEP + k) * TALL + tall : (k * GATES + gate) * TALL + tall;
}

struct Weights {
  u32 held[HELD ? HELD : 1][4], at;
  DEV Weights(const Element* W, const Block& b) {
    at = b.memory + AT_WEIGHTS + b.warp * KEPT * 512 + 16 * b.lane;
#pragma unroll
    for (int k = 0; k < DEEP; k++)
#pragma unroll
      for (int gate = 0; gate < GATES; gate++)
#pragma unroll
        for (int tall = 0; tall < TALL; tall++) {
          const int r = b.base + 16 * tall + b.row, c = UNITS * b.source() + 4 * k,
                    j = tile_of(gate, k, tall), kept = kept_before(j);
          float v[4] = {};
          if (c < H) {  // two words of four units, of rows r and r + 8
            const Element* p = W + ((i64)gate * H + r) * H + c;
            if (r < H) get_global(v[0], v[2], (const float*)p);
            if (r + 8 < H) get_global(v[1], v[3], (const float*)(p + 8 * H));
          }
          const u32 w[4] = {bits(v[0]), bits(v[1]), bits(v[2]), bits(v[3])};
          if (kept_before(j + 1) > kept)
            put_shared(at + 512 * kept, w);
          else
#pragma unroll
            for (int n = 0; n < 4; n++) held[j - kept][n] = w[n];
        }
  }
  DEV void get(u32 (&w)[4], int j) const {
    const int kept = kept_before(j);
    if (kept_before(j + 1) > kept)
      get_shared(w, at + 512 * kept);
    else
#pragma unroll
      for (int n = 0; n < 4; n++) w[n] = held[j - kept][n];
  }
};
// Compute for step i: forward U_k h for every gate, reverse the sum of all U_k^T du_k. The parts go to shared
// memory; `meanwhile` runs before they are overwritten. AT_ONCE: messages that fit into registers.
constexpr int AT_ONCE = SENT * NTILES < 3 ? SENT * NTILES : SENT == 3 && NTILES == 1 ? 3 : 2;
template <class F>
DEV void products(const Weights& W, int i, const Block& b, F meanwhile) {
  float c[GATES][TALL][4];
  u32 v[AT_ONCE][DEEP][2];
#pragma unroll
  for (int m = 0; m < SENT * NTILES; m++) {
    const int message = m % SENT, tile = m / SENT;
    if (m % AT_ONCE == 0) {
      if (m + AT_ONCE <= SENT * NTILES)
        b.take(v, i, m);
      else {
        u32 one[1][DEEP][2];
        b.take(one, i, m);
#pragma unroll
        for (int k = 0; k < 2 * DEEP; k++) v[0][k / 2][k % 2] = one[0][k / 2][k % 2];
      }
    }
    const u32(&t)[DEEP][2] = v[m % AT_ONCE];
#pragma unroll
    for (int k = 0; k < DEEP; k++)
#pragma unroll
      for (int gate = BACK ? message : 0; gate < (BACK ? message + 1 : GATES); gate++)
#pragma unroll
        for (int tall = 0; tall < TALL; tall++) {
          u32 w[4];
          float (&sum)[4] = c[gate][tall];  // sums that do not wait for each other
          if (k == 0) sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
          W.get(w, tile_of(gate, k, tall));
          mma<TYPE>(sum, w[0], w[1], w[2], w[3], t[k][0], t[k][1]);
        }
    if (message + 1 < SENT) continue;
    if (tile == 0) {
      meanwhile();
      wait_block();
    }  // all have read the parts of the previous step
    if (BACK)
#pragma unroll
      for (int gate = 1; gate < GATES; gate++)
#pragma unroll
        for (int j = 0; j < 4 * TALL; j++) c[0][j / 4][j % 4] += c[gate][j / 4][j % 4];
#pragma unroll
    for (int made = 0; made < MADE; made++) b.put_part(c[made], made, tile);
  }
}
