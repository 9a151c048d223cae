// A warp's share of the gates' weights, and their products with what packets bring.
// Tiles in the order of their use, 0 .. ALL - 1: forward all gates of some columns, reverse all columns of a
// gate.
#pragma once
#include "gated/grid.cuh"

constexpr int WARP_TILES = GATES * WARP_TALL * DEEP, IN_REGISTERS = WARP_TILES - IN_SHARED;
DEV constexpr int count_shared_before(int j) { return j * IN_SHARED / WARP_TILES; }
DEV constexpr int find_tile(int gate, int k, int tall) {
  return BACK ? (gate * DEEP + k) * WARP_TALL + tall : (k * GATES + gate) * WARP_TALL + tall;
}

// Of exact float32, tiles 2k and 2k + 1 of a row of tiles are the halves of 16 columns, four of each source.
struct Weights {
  u32 in_registers[IN_REGISTERS ? IN_REGISTERS : 1][4], at;
  float unit;  // of all weights of the warp, in halves
  DEV Weights(const Element* W, const Block& b) {
    at = b.memory + AT_WEIGHTS + b.warp * IN_SHARED * 512 + 16 * b.lane;
    if constexpr (IN_HALVES)
      load_halves(W, b);
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
  DEV void load_halves(const Element* W, const Block& b) {
    auto load = [&](float (&v)[4], int gate, int k, int r) {  // columns 4k .. of a row
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
          split_halves(high[0], low[0], scale * v[0], scale * v[1]);
          split_halves(high[1], low[1], scale * w[0], scale * w[1]);
          split_halves(high[2], low[2], scale * v[2], scale * v[3]);
          split_halves(high[3], low[3], scale * w[2], scale * w[3]);
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
          if (c < H) {  // two words, of rows r and r + 8
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
// Compute for step i and the rows of a team: forward U_k h for every gate, reverse the sum of all U_k^T du_k.
// The parts go to shared memory; `side_work` runs before they are overwritten, `look_around` after the first
// of several messages. If teams have parts of their own, the barrier behind those of one team tells that all
// have read those of the other.
// MESSAGES_AT_ONCE: messages that fit into registers. Teams take one at a time and look for the next one
// before they multiply; `ahead` is the first of the next turn, or what the turn before found of this one's.
constexpr int MESSAGES = UNIT_VALUES * TURN_TILES * ROUNDS, MESSAGES_AT_ONCE = TEAMS > 1      ? 1
                                                                               : MESSAGES < 4 ? MESSAGES
                                                                                              : 2;
struct Ahead {
  Block::Mail<1> mail[2];
};
template <class F, class G>
DEV void compute_products(const Weights& W, int i, const Block& b, int team, Ahead& ahead, F side_work,
                          G look_around) {
  float c[GATES][WARP_TALL][4];
  u32 v[MESSAGES_AT_ONCE][WIDE][2];
  float units[MESSAGES_AT_ONCE];
#pragma unroll
  for (int m = 0; m < MESSAGES; m++) {
    const int round = m % ROUNDS, message = m / ROUNDS % UNIT_VALUES, tile = m / ROUNDS / UNIT_VALUES;
    if constexpr (TEAMS > 1) {
      u32 one[1][WIDE][2];
      float unit[1];
      if (m + 1 < MESSAGES) b.look_for_mail(ahead.mail[(m + 1) % 2], i, m + 1, team);
      b.take(one, unit, ahead.mail[m % 2], i, m, team);
      units[0] = unit[0];
#pragma unroll
      for (int k = 0; k < 2 * WIDE; k++) v[0][k / 2][k % 2] = one[0][k / 2][k % 2];
    } else if (m % MESSAGES_AT_ONCE == 0) {
      if (m + MESSAGES_AT_ONCE <= MESSAGES) {
        Block::Mail<MESSAGES_AT_ONCE> mail;
        b.take(v, units, mail, i, m, team);
      } else {
        u32 one[1][WIDE][2];
        float unit[1];
        Block::Mail<1> mail;
        b.take(one, unit, mail, i, m, team);
        units[0] = unit[0];
#pragma unroll
        for (int k = 0; k < 2 * WIDE; k++) v[0][k / 2][k % 2] = one[0][k / 2][k % 2];
      }
    }
    if (m == 1) look_around();
    const u32(&t)[WIDE][2] = v[m % MESSAGES_AT_ONCE];
    constexpr int FIRST_GATES = BACK ? 1 : GATES;  // that see a message
#if FORMAT == 2 && !TF32
    // sums that do not wait for each other; each adds up EACH tiles of 16 columns
    constexpr int TOGETHER = (BACK ? 4 : 2) / WARP_TALL, EACH = TOGETHER == 4 ? 1 : 2,
                  N = FIRST_GATES * WARP_TALL * TOGETHER;
    const float unit = units[m % MESSAGES_AT_ONCE], larger = max_of_lanes<4>(unit);  // of the row
    const u32 ratio = compare_units(unit, larger);
    const float factor[2] = {W.unit * shuffle(larger, 8 * b.pair), W.unit * shuffle(larger, 8 * b.pair + 4)};
#pragma unroll
    for (int k = 0; k < WIDE / 2; k += TOGETHER * EACH) {
      float part[N][4];  // mma truncates its sums, so they are added up outside of it
#pragma unroll
      for (int j = 0; j < EACH; j++) {
        u32 high[TOGETHER][2], low[TOGETHER][2];
#pragma unroll
        for (int i = 0; i < 2 * TOGETHER; i++) {
          const u32(&both)[2] = t[2 * (k + i / 2 * EACH + j) + i % 2];
          high[i / 2][i % 2] = fma_pairs<FP16>(both[0], ratio, 0u);
          low[i / 2][i % 2] = fma_pairs<FP16>(both[1], ratio, 0u);
        }
        u32 w[N][4];
#pragma unroll
        for (int half = 1; half >= 0; half--) {
#pragma unroll
          for (int i = 0; i < N; i++) {
            const int gate = BACK ? message : i / TOGETHER % FIRST_GATES, tall = i / TOGETHER / FIRST_GATES;
            const int column = WIDE * round + 2 * (k + i % TOGETHER * EACH + j);
            W.get(w[i], find_tile(gate, column + half, tall));
            const u32(&h)[2] = high[i % TOGETHER];
            if (half && j == 0)
              mma_from_zero<FP16>(part[i], w[i][0], w[i][1], w[i][2], w[i][3], h[0], h[1]);
            else
              mma<FP16>(part[i], w[i][0], w[i][1], w[i][2], w[i][3], h[0], h[1]);
          }
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
          const u32(&l)[2] = low[i % TOGETHER];
          mma<FP16>(part[i], w[i][0], w[i][1], w[i][2], w[i][3], l[0], l[1]);
        }
      }
#pragma unroll
      for (int i = 0; i < N; i++) {
        const int gate = BACK ? message : i / TOGETHER % FIRST_GATES, tall = i / TOGETHER / FIRST_GATES;
        float (&sum)[4] = c[gate][tall];
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const float more = factor[j % 2] * part[i][j];
          sum[j] = k == 0 && round == 0 && i % TOGETHER == 0 ? more : sum[j] + more;
        }
      }
    }
#else
#pragma unroll
    for (int k = 0; k < WIDE; k++)
#pragma unroll
      for (int gate = BACK ? message : 0; gate < (BACK ? message + 1 : GATES); gate++)
#pragma unroll
        for (int tall = 0; tall < WARP_TALL; tall++) {
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
    if (TEAMS > 1) b.look_for_mail(ahead.mail[0], i + (team + 1) / TEAMS, 0, (team + 1) % TEAMS);
    if (tile == 0) {
      side_work();
      if (TEAMS == 1 || PART_ROWS < ROWS) wait_block();
    }  // all have read the parts of the previous step
    if (BACK)
#pragma unroll
      for (int gate = 1; gate < GATES; gate++)
#pragma unroll
        for (int j = 0; j < 4 * WARP_TALL; j++) c[0][j / 4][j % 4] += c[gate][j / 4][j % 4];
#pragma unroll
    for (int which = 0; which < UNIT_PRODUCTS; which++) b.put_part(c[which], which, team * TURN_TILES + tile);
  }
}
