// Forward pass of AttnRNN with tiles of many rows: a group of blocks runs all steps of its rows. Equations as
// in step.cuh.
#if WGMMA
#include "attn_rnn/tiles_wgmma.cuh"
#else
#include "attn_rnn/tiles_mma.cuh"
#endif

constexpr int STATE = 0, ATTENDED = 1, OUTPUT = 2;                      // indices of the messages
constexpr int BIAS_Q = 0, BIAS_O = 1, BIAS_G = 2, SCALE = 3, BIAS = 4;  // indices of the parameter vectors
constexpr int TILES_FORWARD_BYTES = TILES_BYTES;

struct TilesForward : Forward {
  const u8* packed;    // the weights, packed by tiles_pack.cu
  const float* units;  // in float32: 1 / scale of every 32 rows of q, o and g
};

CLUSTER_KERNEL(attn_rnn_tiles_forward, TilesForward, THREADS, PAIR) {
  Tiles b(a);
  const int row = b.first + b.row;
  const int of_q = b.unit / 32, of_o = H / 32 + of_q, of_g = 2 * (H / 32) + of_q;
  const Factor of_state = find_factor(a.packed, a.units, 0, of_q, of_g, b),
               of_attended = find_factor(a.packed, a.units, 2 * UNITS, of_o, of_o, b),
               of_output = find_factor(a.packed, a.units, 3 * UNITS, of_g, of_g, b);
  float h[EACH], x[EACH], keep[EACH], mask[EACH];
  b.put_constants(BIAS_Q, a.w.bias_q, true);
  b.put_constants(BIAS_O, a.w.bias_o, true);
  b.put_constants(BIAS_G, a.w.bias_g, true);
  b.put_constants(SCALE, a.w.scale, NORM);
  b.put_constants(BIAS, a.w.bias, NORM);
  const i64 at = b.active ? (i64)row * H + b.unit : 0;
#pragma unroll
  for (int e = 0; e < EACH; e++) h[e] = b.active ? a.h0[at + e] : 0.f;
  load_pairs(mask, a.mask + at, MASK && b.active);
  int length, end;
  b.read_lengths(length, end, a.lengths, a.T);
  const Element *xs = a.x + (b.active ? (i64)row * a.x_row + b.unit : 0),
                *keeps = a.keep + (KEEP && b.active ? (i64)row * a.T * H + b.unit : 0);
  Element* y = a.y + (b.active ? (i64)row * a.y_row + b.unit : 0);
  auto begin = [&](int t) {  // apply reset and mask, and send the state for step t
    float seen[EACH];
    const bool is_reset = RESET && b.active && t < length && a.reset[(i64)row * a.T + t];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      if (is_reset) h[e] = a.start[at + e];
      seen[e] = MASK ? h[e] * mask[e] : h[e];
    }
    b.put_numbers(STATE, seen);
    b.announce();
  };
  if (end > 0) {
    b.load_resident(of_state, of_attended, of_output);
    b.prepare<2 * UNITS>(of_state);
    begin(0);
  }
  load_units(x, xs, b.active && length > 0);
#pragma unroll 1
  for (int t = 0; t < end; t++) {
    if constexpr (KEEP) load_pairs(keep, keeps + (i64)t * H, b.active && t < length);
    float gate[EACH], o[EACH], z[EACH], aC[EACH];
    b.await_all();
    b.multiply<2 * UNITS>(STATE, of_state);
    {
      float q[EACH], p[3] = {}, s[3], w[4], bq[EACH];
      b.get_constants(bq, BIAS_Q);
      b.get_sum<2 * UNITS>(q, of_state.unit[0]);
      b.get_sum<2 * UNITS>(gate, of_state.unit[1], UNITS);
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        q[e] += bq[e];
        p[0] += q[e] * h[e];
        p[1] += q[e] * x[e];
        p[2] += q[e] * (h[e] * x[e]);
      }
      b.put_scores(p, t + 1);
      b.prepare<UNITS>(of_attended);
      b.get_scores(s, t + 1);
      compute_attention(w, s[0], s[1], s[2]);
#pragma unroll
      for (int e = 0; e < EACH; e++)
        aC[e] = (w[0] + w[2]) * h[e] + ((w[1] + w[2]) * x[e] + w[3] * (h[e] * x[e]));
    }
    b.put_numbers(ATTENDED, aC);
    b.announce();
    load_units(x, xs + (i64)(t + 1) * a.x_step, b.active && t + 1 < length);
    b.await_all();
    b.multiply<UNITS>(ATTENDED, of_attended);
    b.get_sum<UNITS>(o, of_attended.unit[0]);
    float sum = 0.f, square = 0.f, bo[EACH];
    b.get_constants(bo, BIAS_O);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      o[e] = gelu(o[e] + bo[e]);
      z[e] = o[e] + h[e];
      sum += z[e];
    }
    b.put_numbers(OUTPUT, o);
    if constexpr (NORM) {
      // Squared deviations from this block's mean: a difference of large sums would lose digits.
      sum = b.sum_row(sum);
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        const float difference = z[e] - sum * (1.0f / UNITS);
        square += difference * difference;
      }
      b.put_moments(sum, b.sum_row(square));
    }
    b.announce();
    b.prepare<UNITS>(of_output);
    b.await_all();
    float sums[BLOCKS / SHARE], squares[BLOCKS / SHARE], mean = 0.f, r = 1.f;
    if constexpr (NORM) b.get_moments(sums, squares);
    b.multiply<UNITS>(OUTPUT, of_output);
    if constexpr (NORM) {
#pragma unroll
      for (int i = 0; i < BLOCKS / SHARE; i++) mean += sums[i];
      mean = b.sum_row(mean) * (1.0f / REAL_H);
      float all = 0.f;
#pragma unroll
      for (int i = 0; i < BLOCKS / SHARE; i++) {
        const float difference = sums[i] * (1.0f / UNITS) - mean;
        all += squares[i] + UNITS * (difference * difference);
      }
      r = 1.f / sqrtf((b.sum_row(all) - PADDING * mean * mean) * (1.0f / REAL_H) + 1e-5f);
    }
    {
      float more[EACH], bg[EACH], scale[EACH], bias[EACH];
      b.get_constants(bg, BIAS_G);
      b.get_constants(scale, SCALE);
      b.get_constants(bias, BIAS);
      b.get_sum<UNITS>(more, of_output.unit[0]);
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        const float n = NORM ? (z[e] - mean) * r * scale[e] + bias[e] : o[e];
        float after = h[e] + sigmoid(gate[e] + more[e] + bg[e]) * (n - h[e]);
        if constexpr (KEEP) after += keep[e] * (h[e] - after);
        h[e] = t < length ? after : h[e];
      }
    }
    float out[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) out[e] = h[e];
    if (t + 1 < end) {
      begin(t + 1);
      b.prepare<2 * UNITS>(of_state);
    }
    if (b.active && t < length) store_units(y + (i64)t * a.y_step, out);
  }
  b.end();
  if (b.active)
#pragma unroll
    for (int e = 0; e < EACH; e++) a.last[at + e] = h[e];
}
