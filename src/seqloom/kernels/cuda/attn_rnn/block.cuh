// AttnRNN with 8 rows of the batch per block, in bf16 or fp16, with 16 to 128 units. Warp w computes units
// 16w..16w+15 and holds the corresponding rows of all weights in registers. The weights are the A operand of
// mma and the 8 rows of the batch are its n = 8 columns, so 1 to 8 rows cost the same. Activations lie in
// shared memory as [unit][8 rows] of 16 bits: a pair of a lane's C fragment is one word there, and one
// ldmatrix.x4.trans loads the B fragments of two tiles. Sequences are stored as in global memory,
// [row][unit], with 16 bytes of padding per row.
#pragma once
#include "attn_rnn/arguments.cuh"

constexpr int TILES = H / 16, WARPS = H / 16, THREADS = 2 * H;
constexpr u32 ONES = TYPE == BF16 ? 0x3f803f80u : 0x3c003c00u;
constexpr u32 ONES_BF16 = 0x3f803f80u;
constexpr int ROW = 2 * H + 16, SEQUENCE = 8 * ROW;             // bytes
constexpr int BUFFER = 16 * H;                                  // [unit][8 rows]
constexpr bool WHOLE_WARPS = D % 16 == 0;                       // a head spans one or several whole warps
constexpr int SPAN = WHOLE_WARPS ? D / 16 : 1;                  // warps per head
constexpr bool IN_WARP = 16 % D == 0;                           // no head crosses a warp boundary
constexpr int SUMS = WHOLE_WARPS ? WARPS * 128 : WARPS * 1536;  // bytes of scratch for sum_heads
// Floats per step: the attention of each head, then 1 / deviation.
constexpr int AUX = 4 * HEADS + 4;

struct Lane {
  int thread, lane, warp, row, pair, unit[2];
  u32 word[2];  // byte offsets of this lane's pairs in a buffer
  DEV Lane() {
    thread = ::thread();
    lane = thread & 31;
    warp = thread >> 5;
    row = lane >> 2;
    pair = lane & 3;
    unit[0] = 16 * warp + row;
    unit[1] = unit[0] + 8;
    word[0] = unit[0] * 16 + pair * 4;
    word[1] = word[0] + 128;
  }
};

// Load this warp's rows of W as the A operand.
DEV void load_weight(u32 (&w)[TILES][4], const u16* W, int stride, const Lane& l) {
#pragma unroll
  for (int k = 0; k < TILES; k++) {
    const u16* p = W + (i64)l.unit[0] * stride + 16 * k + 2 * l.pair;
    w[k][0] = get_global(p);
    w[k][1] = get_global(p + 8 * stride);
    w[k][2] = get_global(p + 8);
    w[k][3] = get_global(p + 8 * stride + 8);
  }
}
// Load this warp's rows of W transposed as the A operand.
DEV void load_weight_transposed(u32 (&w)[TILES][4], const u16* W, int stride, const Lane& l) {
#pragma unroll
  for (int k = 0; k < TILES; k++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const u16* p = W + (i64)(16 * k + 2 * l.pair + (i & 2 ? 8 : 0)) * stride + l.unit[i & 1];
      w[k][i] = (u32)p[0] | ((u32)p[stride] << 16);
    }
}
DEV void load_vector(float (&v)[2], const u16* from, const Lane& l) {
  float none;
#pragma unroll
  for (int i = 0; i < 2; i++) unpack<TYPE>(v[i], none, (u32)from[l.unit[i]]);
}
// Load a whole buffer as the B operand.
DEV void load_buffer(u32 (&b)[TILES][2], u32 at, const Lane& l) {
#pragma unroll
  for (int k = 0; k + 1 < TILES; k += 2)
    load4_transposed(b[k][0], b[k][1], b[k + 1][0], b[k + 1][1], at + k * 256 + l.lane * 16);
  if constexpr (TILES % 2)
    load2_transposed(b[TILES - 1][0], b[TILES - 1][1], at + (TILES - 1) * 256 + (l.lane & 15) * 16);
}
DEV void store_buffer(u32 at, u32 v, u32 w, const Lane& l) {
  put_shared(at + l.word[0], v);
  put_shared(at + l.word[1], w);
}
// Load this warp's units of 8 rows of a sequence in the layout of C.
DEV void load_sequence(u32 (&v)[2], u32 at, const Lane& l) {
  load2_transposed(v[0], v[1], at + (l.lane & 7) * ROW + (16 * l.warp + (l.lane & 8)) * 2);
}
// Compute the batch rows of this lane's two columns and their lengths, and load their initial state and mask
// in the layout of C; columns past the batch get zeros.
template <class Args>
DEV void load_rows(int (&column)[2], int (&length)[2], float (&h)[4], float (&mask)[4], const float* start,
                   const Args& a, const Lane& l) {
#pragma unroll
  for (int c = 0; c < 2; c++) {
    column[c] = 8 * block() + 2 * l.pair + c;
    length[c] = column[c] >= a.B ? 0 : a.lengths ? (int)a.lengths[column[c]] : a.T;
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const i64 at = (i64)column[i & 1] * H + l.unit[i >> 1];
    const bool active = column[i & 1] < a.B;
    h[i] = active ? start[at] : 0.f;
    if constexpr (MASK) {
      float none;
      mask[i] = 0.f;
      if (active) unpack<TYPE>(mask[i], none, (u32)a.mask[at]);
    }
  }
}
DEV void widen(float (&v)[4], const u32 (&p)[2]) {
  unpack<TYPE>(v[0], v[1], p[0]);
  unpack<TYPE>(v[2], v[3], p[1]);
}
DEV void narrow(u32 (&p)[2], const float (&v)[4]) {
  p[0] = pack<TYPE>(v[0], v[1]);
  p[1] = pack<TYPE>(v[2], v[3]);
}

DEV void transpose_both(u32 (&to)[2], const u32 (&p)[2]) {
  to[0] = transpose(p[0]);
  to[1] = transpose(p[1]);
}

// c = start + W b, with CHAINS independent accumulators so that the mma overlap.
template <int CHAINS>
DEV void multiply(float (&c)[4], const float (&start)[4], const u32 (&w)[TILES][4],
                  const u32 (&b)[TILES][2]) {
  float part[CHAINS][4] = {};
#pragma unroll
  for (int i = 0; i < 4; i++) part[0][i] = start[i];
#pragma unroll
  for (int k = 0; k < TILES; k++)
    mma<TYPE>(part[k % CHAINS], w[k][0], w[k][1], w[k][2], w[k][3], b[k][0], b[k][1]);
#pragma unroll
  for (int i = 0; i < 4; i++)
    c[i] = CHAINS == 4 ? (part[0][i] + part[1][i]) + (part[CHAINS - 2][i] + part[CHAINS - 1][i])
                       : part[0][i] + part[CHAINS - 1][i];
}

// Sum three products over the units of each head. PLACES is the number of results per lane and product: if a
// head spans whole warps, the sums for one of the lane's two columns (`is_second_half` selects it; both units
// of the lane are in one head), else those for all four elements of its C fragment.
constexpr int PLACES = WHOLE_WARPS ? 1 : 4;
DEV bool is_second_half(const Lane& l) { return (l.lane & 16) != 0; }
DEV int find_head(const Lane& l, int place) { return (WHOLE_WARPS ? l.unit[0] : l.unit[place >> 1]) / D; }
DEV int find_column(const Lane& l, int place) {
  return 2 * l.pair + (WHOLE_WARPS ? (is_second_half(l) ? 1 : 0) : (place & 1));
}

DEV void sum_heads(float (&s)[3][PLACES], const float (&p)[3][4], u32 scratch, const Lane& l) {
  if constexpr (WHOLE_WARPS) {
    const bool second = is_second_half(l);
#pragma unroll
    for (int j = 0; j < 3; j++) {
      const float v = p[j][0] + p[j][2], w = p[j][1] + p[j][3];
      s[j][0] = (second ? w : v) + shuffle_xor(second ? v : w, 16);
    }
#pragma unroll
    for (int bit = 8; bit >= 4; bit /= 2)
#pragma unroll
      for (int j = 0; j < 3; j++) s[j][0] += shuffle_xor(s[j][0], bit);
    if constexpr (SPAN > 1) {
      const u32 address = scratch + find_column(l, 0) * 16;
      const int j = l.row & 3, first = l.warp / SPAN * SPAN;
      if (j < 3) put_shared(address + l.warp * 128 + j * 4, j == 0 ? s[0][0] : j == 1 ? s[1][0] : s[2][0]);
      wait_threads(1 + l.warp / SPAN, 32 * SPAN);
      s[0][0] = s[1][0] = s[2][0] = 0.f;
#pragma unroll
      for (int o = 0; o < SPAN; o++) {
        float v[4];
        get_shared(v, address + (first + o) * 128);
#pragma unroll
        for (int k = 0; k < 3; k++) s[k][0] += v[k];
      }
    }
  } else {
    // Sum over units by mma: A[head][unit] is 1 if the unit belongs to the head, else 0. The values are split
    // into bf16 hi + lo, since bf16 alone is not precise enough.
    u32 members[4];
    const int first = 16 * l.warp / D;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int head = first + l.row + (i & 1 ? 8 : 0), unit = 16 * l.warp + 2 * l.pair + (i & 2 ? 8 : 0);
      members[i] = (unit / D == head ? 0x3f80u : 0u) | ((unit + 1) / D == head ? 0x3f800000u : 0u);
    }
#pragma unroll
    for (int j = 0; j < 3; j++) {
      const u32 v = pack<BF16>(p[j][0], p[j][1]), w = pack<BF16>(p[j][2], p[j][3]);
      float a, b, c, d, sum[4] = {};
      unpack<BF16>(a, b, v);
      unpack<BF16>(c, d, w);
      mma<BF16>(sum, members[0], members[1], members[2], members[3], transpose(v), transpose(w));
      mma<BF16>(sum, members[0], members[1], members[2], members[3],
                transpose(pack<BF16>(p[j][0] - a, p[j][1] - b)),
                transpose(pack<BF16>(p[j][2] - c, p[j][3] - d)));
      const u32 address = scratch + l.warp * 1536 + j * 512 + l.row * 32 + l.pair * 8;
      put_shared(address, sum[0], sum[1]);
      put_shared(address + 256, sum[2], sum[3]);
    }
    if constexpr (IN_WARP)
      wait_warp();
    else
      wait_block();
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int head = l.unit[r] / D, from = head * D / 16, to = (head * D + D - 1) / 16;
#pragma unroll
      for (int j = 0; j < 3; j++) {
        s[j][2 * r] = s[j][2 * r + 1] = 0.f;
#pragma unroll
        for (int o = 0; o < (D + 30) / 16; o++)
          if (from + o <= to) {
            float v, w;
            get_shared(
                v, w, scratch + (from + o) * 1536 + j * 512 + (head - 16 * (from + o) / D) * 32 + l.pair * 8);
            s[j][2 * r] += v;
            s[j][2 * r + 1] += w;
          }
      }
    }
    if constexpr (IN_WARP) wait_warp();  // before the next call overwrites the scratch
  }
}
// Expand the PLACES results of a lane to all four elements of its C fragment.
DEV void spread(float (&all)[4], const float (&v)[PLACES], const Lane& l) {
  if constexpr (WHOLE_WARPS) {
    const float other = shuffle_xor(v[0], 16);
    all[0] = all[2] = is_second_half(l) ? other : v[0];
    all[1] = all[3] = is_second_half(l) ? v[0] : other;
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) all[i] = v[i];
  }
}
// sum_heads for a head that spans whole warps, with the sums of both columns in every lane: mma adds values
// that are split into bf16 hi + lo.
DEV void sum_heads_of_both(float (&s)[3][2], const float (&p)[3][4], u32 scratch, const Lane& l) {
#pragma unroll
  for (int j = 0; j < 3; j++) {
    const float v = p[j][0] + p[j][2], w = p[j][1] + p[j][3];
    const u32 high = pack<BF16>(v, w);
    float a, b, sum[4] = {};
    unpack<BF16>(a, b, high);
    mma<BF16>(sum, ONES_BF16, ONES_BF16, ONES_BF16, ONES_BF16, transpose(high),
              transpose(pack<BF16>(v - a, w - b)));
    s[j][0] = sum[0];
    s[j][1] = sum[1];
  }
  if constexpr (SPAN > 1) {
    const u32 address = scratch + 2 * l.pair * 16;
    const int first = l.warp / SPAN * SPAN;
    if (l.row < 3) {
      put_shared(address + l.warp * 128 + l.row * 4, l.row == 0 ? s[0][0] : l.row == 1 ? s[1][0] : s[2][0]);
      put_shared(address + l.warp * 128 + 16 + l.row * 4, l.row == 0   ? s[0][1]
                                                          : l.row == 1 ? s[1][1]
                                                                       : s[2][1]);
    }
    wait_threads(1 + l.warp / SPAN, 32 * SPAN);
#pragma unroll
    for (int c = 0; c < 2; c++) {
      s[0][c] = s[1][c] = s[2][c] = 0.f;
#pragma unroll
      for (int o = 0; o < SPAN; o++) {
        float v[4];
        get_shared(v, address + (first + o) * 128 + 16 * c);
#pragma unroll
        for (int k = 0; k < 3; k++) s[k][c] += v[k];
      }
    }
  }
}
template <int N>
DEV void sum_heads_at(float (&s)[3][N], const float (&p)[3][4], u32 scratch, const Lane& l) {
  if constexpr (N == 2)
    sum_heads_of_both(s, p, scratch, l);
  else
    sum_heads(s, p, scratch, l);
}
