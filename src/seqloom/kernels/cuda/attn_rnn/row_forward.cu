// AttnRNN forward with one row of the batch per block. Equations as in step.cuh.
#include "attn_rnn/row_math.cuh"

// Indices of the vectors in shared memory.
constexpr int SEEN = 0, STATE = MASK ? 1 : 0, CONTEXT_SUM = 2, OUT = 3, SUM = 4;
constexpr int SLOT = SIZE * H * (1 + KEEP);
constexpr int AT_SPILL = AT_RING + STAGES * SLOT;
constexpr int AT_WEIGHTS = AT_SPILL + 16 * THREADS;
constexpr int ROW_FORWARD_BYTES = AT_WEIGHTS + 4 * WEIGHT_BYTES;

KERNEL(attn_rnn_row_forward, Forward, THREADS) {
  const Lane l(true);
  const i64 row = block(), at = row * H + l.unit;
  const int length = a.lengths ? (int)a.lengths[row] : a.T;
  // The sums of two lanes are added, so each starts with half of the bias.
  const float bq = 0.5f * get_one(a.w.bias_q + l.unit), bo = 0.5f * get_one(a.w.bias_o + l.unit),
              bg = 0.5f * get_one(a.w.bias_g + l.unit);
  const u32 weights = l.memory + AT_WEIGHTS;
  l.clear();
  Weight Wq, Wo, Wh, Wc;
  Wq.load(a.w.q, H, l, weights);
  Wo.load(a.w.o, H, l, weights + WEIGHT_BYTES);
  Wc.load(a.w.g + H, 2 * H, l, weights + 2 * WEIGHT_BYTES);
  Wh.load(a.w.g, 2 * H, l, weights + 3 * WEIGHT_BYTES);
  const float scale = NORM ? get_one(a.w.scale + l.unit) : 1.f,
              bias = NORM ? get_one(a.w.bias + l.unit) : 0.f, mask = MASK ? get_one(a.mask + at) : 1.f;
  const bool is_real = PADDING == 0 || l.unit % D < REAL_D;
  float h = a.h0[at], mean = 0.f, r = 1.f;
  const int plane = l.thread / LINE;
  const Element* from = KEEP && plane ? a.keep + row * a.T * H : a.x + row * a.x_row;
  const Source source{(const u8*)from + 16 * (l.thread % LINE), SIZE * (KEEP && plane ? H : a.x_step),
                      l.memory + AT_RING + 16 * l.thread, plane <= KEEP};
  const u32 spill = l.memory + AT_SPILL + 16 * l.thread;
  Element* y = a.y + row * a.y_row + l.unit;
  const u8* reset = a.reset + row * a.T;
  float start_mean = 0.f;
  auto find_mean = [&](float v) {  // return the mean of an initial state
    float found = 0.f, quad[4];
    l.put(SUM, v);
    wait_block();
    get_shared(quad, find_quad(l, SUM));
    find_moments(found, r, quad, l);
    wait_block();
    return found;
  };
  auto begin = [&](bool is_reset) {  // apply reset and mask, and store the state for the next step
    if constexpr (RESET)
      if (is_reset) {
        h = a.start[at];
        mean = start_mean;
      }
    if constexpr (MASK)
      l.put(SEEN, h * mask, STATE, h);
    else
      l.put(SEEN, h);
  };
#pragma unroll
  for (int t = 0; t < STAGES - 1; t++) {
    source.fetch(t, SLOT, t < length);
    cp_async_commit();
  }
  cp_async_wait<STAGES - 2>();
  wait_block();
  if constexpr (NORM) {
    mean = find_mean(h);
    if constexpr (RESET) start_mean = find_mean(a.start[at]);
  }
  begin(RESET && length > 0 && reset[0]);
  wait_block();
#pragma unroll 1
  for (int t = 0; t < length; t++) {
    const u32 ring = AT_RING + (t & STAGES - 1) * SLOT;
    float v[DEEP][4], q[4] = {bq}, gate[4] = {bg}, c[4] = {bo}, past[4], x[4], s[3];
    l.get(v, SEEN);
    l.get_four(past, STATE * VECTOR);
    l.get_elements(x, ring);
    multiply(q, Wq, v);
    source.fetch(t + STAGES - 1, SLOT, t + STAGES - 1 < length);
    cp_async_commit();
    l.sum_heads(s, q, past, x, find_score_scale());
    multiply(gate, Wh, v);
    // W_gh h is computed here, off the critical path.
    put_shared(spill, gate);
    l.put(CONTEXT_SUM, attend(h, x[0], s));
    wait_block();
    l.get(v, CONTEXT_SUM);
    const bool is_reset = RESET && t + 1 < length && reset[t + 1];
    multiply(c, Wo, v);
    const float o = gelu(l.scatter(c)), z = o + h;
    if constexpr (NORM)
      l.put(OUT, o, SUM, is_real ? z : mean);
    else
      l.put(OUT, o);
    wait_block();
    l.get(v, OUT);
    get_shared(gate, spill);
    multiply(gate, Wc, v);
    if constexpr (NORM) {
      float quad[4];
      get_shared(quad, find_quad(l, SUM));
      find_moments(mean, r, quad, l);
    }
    const float n = NORM ? (z - mean) * r * scale + bias : o, g = sigmoid(l.scatter(gate));
    float after = h + g * (n - h);
    if constexpr (KEEP) after += l.get_element(ring + SIZE * H) * (h - after);
    h = after;
    begin(is_reset);
    if (!l.odd) put_one(y + t * a.y_step, after);
    cp_async_wait<STAGES - 2>();
    wait_block();
  }
  if (!l.odd && a.last) a.last[at] = h;
  if (!l.odd && a.end) put_one(a.end + at, h);
}
