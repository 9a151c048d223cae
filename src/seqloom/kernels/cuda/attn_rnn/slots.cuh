// AttnRNN with SLOTS slots, 2 to 8: the 8 columns of mma are the slots of 8 / SLOTS sequences, side by side;
// the last columns may be unused. Attention between slots takes three products of a tile with itself, in 16
// bits as in the reference loop:
//   {q; q * x}^T h   the scores of query i with h_j and with h_j * x: a lane has query `row`, slots 2pair and
//                    2pair + 1
//   {h, h * x} w     the attended context of query i; w, in the layout of the scores, is already a B operand
//   {v, q} w^T       the gradient of h_j from all queries, with w transposed
// Slots of other sequences have weight 0. Their values are clipped to finite ones, since 0 times inf or NaN
// is NaN.
#pragma once
#include "attn_rnn/block.cuh"

#ifndef SLOTS
#define SLOTS 2
#endif

constexpr int SEQS = 8 / SLOTS, USED_COLUMNS = SEQS * SLOTS;
constexpr float LARGEST = TYPE == BF16 ? 3.3895313892515355e38f : 65504.f;
DEV constexpr int count_tile_heads() {
  int most = 1;
  for (int w = 0; w < WARPS; w++) {
    const int n = (16 * w + 15) / D - 16 * w / D + 1;
    most = n > most ? n : most;
  }
  return most;
}
constexpr int WARP_HEADS = count_tile_heads();  // heads with units in one warp, at most
constexpr bool SPLIT_HEADS = 16 % D != 0;       // a head may lie in several warps
// PART: bytes of one warp's part of a head's scores. SCORES: bytes of the buffer for all parts.
constexpr int PART = 512 + 32, SCORES = SPLIT_HEADS ? WARPS * WARP_HEADS * PART : 0;

// A score or weight of query `row` of a head for each row of the context: h_j, h_j * x, x. The score of
// h_j + x is the sum of two others, and its weight is added to those of h_j and x.
struct Rows {
  float h[2], p[2], x;
};

// Return whether query `row` and this lane's slot c belong to one sequence.
DEV bool is_same_sequence(const Lane& l, int c) { return (2 * l.pair + c) / SLOTS == l.row / SLOTS; }
DEV u32 mask_unit(const Lane& l, int n, int unit) {
  return WARP_HEADS == 1 || unit / D == 16 * l.warp / D + n ? 0xffffffffu : 0u;
}
DEV u32 mask_units(const Lane& l, int n, int unit) {
  return (mask_unit(l, n, unit) & 0xffffu) | (mask_unit(l, n, unit + 1) & 0xffff0000u);
}
// Sum, or take the maximum, over the lanes that share a sequence.
DEV float sum_across(float v) {
  if constexpr (SLOTS > 2) v += shuffle_xor(v, 1);
  if constexpr (SLOTS > 2 && SLOTS != 4) v += shuffle_xor(v, 2);
  return v;
}
DEV float max_across(float v) {
  if constexpr (SLOTS > 2) v = maximum(v, shuffle_xor(v, 1));
  if constexpr (SLOTS > 2 && SLOTS != 4) v = maximum(v, shuffle_xor(v, 2));
  return v;
}
// Return v of query 2pair + c, by a shuffle from a lane with slots of the same sequence.
DEV float read_query(float v, const Lane& l, int c) {
  const int i = 2 * l.pair + c;
  return shuffle(v, 4 * i + i / SLOTS * SLOTS / 2);
}
DEV void narrow_finite(u32 (&p)[2], const float (&v)[4]) {
  float w[4];
#pragma unroll
  for (int i = 0; i < 4; i++) w[i] = SEQS == 1 ? v[i] : minimum(maximum(v[i], -LARGEST), LARGEST);
  narrow(p, w);
}

// Compute this warp's part of the scores; h is given transposed.
DEV void score(Rows (&s)[WARP_HEADS], const float (&q)[4], const float (&x)[4], const u32 (&h)[2],
               const Lane& l) {
  float qx[4];
  u32 v[2], w[2];
#pragma unroll
  for (int i = 0; i < 4; i++) qx[i] = q[i] * x[i];
  narrow(v, q);
  narrow(w, qx);
  transpose_both(v, v);
  transpose_both(w, w);
#pragma unroll
  for (int n = 0; n < WARP_HEADS; n++) {
    const u32 low = mask_units(l, n, 16 * l.warp + 2 * l.pair),
              high = mask_units(l, n, 16 * l.warp + 2 * l.pair + 8);
    float with_h[4] = {}, with_x[4] = {};
    mma<TYPE>(with_h, v[0] & low, w[0] & low, v[1] & high, w[1] & high, h[0], h[1]);
    mma<TYPE>(with_x, v[0] & low, w[0] & low, v[1] & high, w[1] & high, ONES, ONES);
    s[n].h[0] = with_h[0];
    s[n].h[1] = with_h[1];
    s[n].p[0] = with_h[2];
    s[n].p[1] = with_h[3];
    s[n].x = with_x[2];
  }
}
DEV void put_scores(const Rows (&s)[WARP_HEADS], u32 scratch, const Lane& l) {
#pragma unroll
  for (int n = 0; n < WARP_HEADS; n++) {
    const u32 at = scratch + (l.warp * WARP_HEADS + n) * PART;
    const float four[4] = {s[n].h[0], s[n].h[1], s[n].p[0], s[n].p[1]};
    put_shared(at + l.lane * 16, four);
    if (l.pair == 0) put_shared(at + 512 + l.row * 4, s[n].x);
  }
}
// Add up the parts of all warps that have units of a head.
DEV void get_scores(Rows (&s)[WARP_HEADS], u32 scratch, const Lane& l) {
#pragma unroll
  for (int n = 0; n < WARP_HEADS; n++) {
    const int head = 16 * l.warp / D + n, from = head * D / 16, to = (head * D + D - 1) / 16;
    s[n] = {};
#pragma unroll
    for (int o = 0; o < (D + 30) / 16; o++)
      if (head < HEADS && from + o <= to) {
        const u32 at = scratch + ((from + o) * WARP_HEADS + head - 16 * (from + o) / D) * PART;
        float four[4];
        get_shared(four, at + l.lane * 16);
        s[n].h[0] += four[0];
        s[n].h[1] += four[1];
        s[n].p[0] += four[2];
        s[n].p[1] += four[3];
        s[n].x += get_shared(at + 512 + l.row * 4);
      }
  }
}
DEV void wait_head(const Lane& l) {
  if constexpr (WHOLE_WARPS)
    wait_threads(1 + l.warp / SPAN, 32 * SPAN);
  else
    wait_block();
}

// Compute the weights (softmax) from the scores; `both` is the weight of h_j + x.
DEV void attend(Rows& w, float (&both)[2], const Rows& s, const Lane& l) {
  const float k = 1.4426950408889634f * inverse_root((float)D), x = k * s.x;
  float e[3][2], top = -3.0e38f, sum = 0.f, sum_both = 0.f;
#pragma unroll
  for (int c = 0; c < 2; c++) {
    e[0][c] = k * s.h[c];
    e[1][c] = e[0][c] + x;
    e[2][c] = k * s.p[c];
#pragma unroll
    for (int j = 0; j < 3; j++)
      if (CONTEXT >> (j ? j + 1 : 0) & 1) top = maximum(top, is_same_sequence(l, c) ? e[j][c] : top);
  }
  top = max_across(top);
  if constexpr (CONTEXT & 2) top = maximum(top, x);
#pragma unroll
  for (int c = 0; c < 2; c++) {
#pragma unroll
    for (int j = 0; j < 3; j++) {
      e[j][c] = CONTEXT >> (j ? j + 1 : 0) & 1 && is_same_sequence(l, c) ? exp2_(e[j][c] - top) : 0.f;
      sum += e[j][c];
    }
    sum_both += e[1][c];
  }
  const float exp_x = CONTEXT & 2 ? exp2_(x - top) : 0.f, whole = inverse(sum_across(sum) + exp_x);
  w.x = (exp_x + sum_across(sum_both)) * whole;
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const float share = is_same_sequence(l, c) ? whole : 0.f;  // for other sequences the divisor may be 0
    w.h[c] = (e[0][c] + e[1][c]) * share;
    w.p[c] = e[2][c] * share;
    both[c] = e[1][c] * share;
  }
}
// Compute the gradient z of the scores of q. s, the scores of v with the same context rows, is the gradient
// of the weights w.
DEV void attend_back(Rows& z, const Rows& w, const float (&both)[2], const Rows& s, const Lane& l) {
  float mean = 0.f, sum_both = 0.f, h[2], p[2];
#pragma unroll
  for (int c = 0; c < 2; c++) {
    h[c] = is_same_sequence(l, c) ? s.h[c] : 0.f;
    p[c] = is_same_sequence(l, c) ? s.p[c] : 0.f;
    mean += w.h[c] * h[c] + w.p[c] * p[c];
    sum_both += both[c] * h[c];
  }
  const float root = inverse_root((float)D);
  mean = sum_across(mean) + w.x * s.x;
#pragma unroll
  for (int c = 0; c < 2; c++) {
    z.h[c] = is_same_sequence(l, c) ? root * (w.h[c] * (h[c] - mean) + both[c] * s.x) : 0.f;
    z.p[c] = is_same_sequence(l, c) ? root * w.p[c] * (p[c] - mean) : 0.f;
  }
  z.x = root * (sum_across(sum_both) + w.x * (s.x - mean));
}
// c += the weighted sum of the context's rows, at the units of head n.
DEV void mix(float (&c)[4], const Rows& w, const u32 (&h)[2], const u32 (&hx)[2], const float (&x)[4], int n,
             const Lane& l) {
  const u32 first_mask = mask_unit(l, n, l.unit[0]), second_mask = mask_unit(l, n, l.unit[1]);
  mma<TYPE>(c, h[0] & first_mask, h[1] & second_mask, hx[0] & first_mask, hx[1] & second_mask,
            pack<TYPE>(w.h[0], w.h[1]), pack<TYPE>(w.p[0], w.p[1]));
  const float share[2] = {read_query(w.x, l, 0), read_query(w.x, l, 1)};
#pragma unroll
  for (int i = 0; i < 4; i++) c[i] += (i < 2 ? first_mask : second_mask) ? share[i & 1] * x[i] : 0.f;
}
// c_j += the sum over queries i of w_ij v_i + z_ij q_i, at the units of head n.
DEV void mix_back(float (&c)[4], const float (&w)[2], const float (&z)[2], const u32 (&v)[2],
                  const u32 (&q)[2], int n, const Lane& l) {
  const u32 first_mask = mask_unit(l, n, l.unit[0]), second_mask = mask_unit(l, n, l.unit[1]);
  mma<TYPE>(c, v[0] & first_mask, v[1] & second_mask, q[0] & first_mask, q[1] & second_mask,
            transpose(pack<TYPE>(w[0], w[1])), transpose(pack<TYPE>(z[0], z[1])));
}

// Sum over the slots of each sequence, in all of its columns; unused columns must be zero.
DEV void sum_slots(float (&sum)[4], const float (&v)[4], const Lane& l) {
  const bool low = 2 * l.pair < SLOTS, high = 2 * l.pair + 1 < SLOTS;  // in the first sequence
#pragma unroll
  for (int i = 0; i < 4; i += 2)
    if constexpr (SLOTS == 3) {
      const float first = sum_across((low ? v[i] : 0.f) + (high ? v[i + 1] : 0.f)),
                  second = sum_across((low ? 0.f : v[i]) + (high ? 0.f : v[i + 1]));
      sum[i] = low ? first : second;
      sum[i + 1] = high ? first : second;
    } else
      sum[i] = sum[i + 1] = sum_across(v[i] + v[i + 1]);
}
// Find the slots of this lane's two columns (their index in the batch, -1 for unused columns) and their
// lengths, and load their initial state and mask, in the layout of C.
template <class Args>
DEV void load_slots(int (&slot)[2], int (&length)[2], float (&h)[4], float (&mask)[4], const float* start,
                    const Args& a, const Lane& l) {
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const int column = 2 * l.pair + c, index = USED_COLUMNS * block() + column;
    slot[c] = column < USED_COLUMNS && index < a.B * SLOTS ? index : -1;
    length[c] = slot[c] < 0 ? 0 : a.lengths ? (int)a.lengths[index / SLOTS] : a.T;
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int index = slot[i & 1], unit = l.unit[i >> 1];
    h[i] = index < 0 ? 0.f : start[(i64)index * H + unit];
    if constexpr (MASK) {
      float none;
      mask[i] = 0.f;
      if (index >= 0) unpack<TYPE>(mask[i], none, (u32)a.mask[(i64)(index / SLOTS) * H + unit]);
    }
  }
}
// Load this warp's units of a tensor that has one vector per sequence, which its slots share.
DEV void load_common(u32 (&v)[2], u32 at, const Lane& l) {
  const int sequence = (l.lane & 7) / SLOTS;
  load2_transposed(v[0], v[1],
                   at + (sequence < SEQS ? sequence : SEQS - 1) * ROW + (16 * l.warp + (l.lane & 8)) * 2);
}
