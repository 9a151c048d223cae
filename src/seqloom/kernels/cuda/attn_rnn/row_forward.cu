// AttnRNN forward with one row of the batch to a block. Equations as in step.cuh.
#include "attn_rnn/row.cuh"

constexpr int SEEN = 0, STATE = MASK ? 1 : 0, CONTEXT_SUM = 2, OUT = 3, SUM = 4;  // vectors
constexpr int SLOT = SIZE * H * (1 + KEEP);
constexpr int AT_SPILL = AT_RING + STAGES * SLOT;
constexpr int AT_WEIGHTS = AT_SPILL + 16 * THREADS;
constexpr int ROW_FORWARD_BYTES = AT_WEIGHTS + 4 * WEIGHT_BYTES;

constexpr float LOG2E = 1.4426950408889634f;

// Find the mean and 1 / deviation of a vector of all units. A difference of large sums would lose digits:
// lanes sum squares around their own mean, and two that combine add the difference of their means.
DEV void find_moments(float& mean, float& r, const Lane& l) {
  // more lanes, where registers are few
  constexpr int SHARES = H == 128 ? 16 : 8, COUNT = (H + 4 * SHARES - 1) / (4 * SHARES), N = 4 * COUNT;
  constexpr int LANE_STRIDE = 32 / SHARES;  // neighbours have the same
  const int share = l.lane / LANE_STRIDE;
  const bool is_shorter = UNEVEN && share >= SHARES / 2;
  constexpr float INVERSE_SHORTER = N > 4 ? 1.0f / (N - 4) : 0.f,
                  MEANS_WEIGHT = UNEVEN ? N * (N - 4) / (2.0f * N - 4) : N / 2;
  float z[COUNT][4], sum = 0.f, square = 0.f;
#pragma unroll
  for (int i = 0; i < COUNT; i++) get_shared(z[i], l.vector(SUM) + 16 * (SHARES * i + share));
#pragma unroll
  for (int i = 0; i < COUNT; i++) sum += (z[i][0] + z[i][1]) + (z[i][2] + z[i][3]);
  const float own_mean = sum * (is_shorter ? INVERSE_SHORTER : 1.0f / N);
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    float d[4];
#pragma unroll
    for (int e = 0; e < 4; e++) d[e] = i == COUNT - 1 && is_shorter ? 0.f : z[i][e] - own_mean;
    square += (d[0] * d[0] + d[1] * d[1]) + (d[2] * d[2] + d[3] * d[3]);
  }
  const float difference = shuffle_xor(own_mean, 16) - own_mean;
  // here and below in an order that gives all lanes the same
  square = (square + shuffle_xor(square, 16)) + MEANS_WEIGHT * difference * difference;
  sum += shuffle_xor(sum, 16);
#pragma unroll
  for (int bits = SHARES / 4; bits; bits /= 2) {
    const float other = shuffle_xor(sum, LANE_STRIDE * bits), d = sum - other;
    square = (square + shuffle_xor(square, LANE_STRIDE * bits)) + bits / (float)H * d * d;
    sum += other;
  }
  mean = sum * (1.0f / REAL_H);
  // around the mean of all H units until here
  if constexpr (PADDING > 0) square -= PADDING / (float)H * sum * mean;
  const float variance = square * (1.0f / REAL_H) + 1e-5f;
  r = inverse_root(variance);
  r += 0.5f * r * (1.f - variance * r * r);  // Newton's step: all of float32's digits
}
// log2 of Phi(-u) for u in [0, 6] as a polynomial of degree 8, fitted to the product u Phi(-u): 7e-9 in gelu.
// Evaluated in pairs to shorten the chain of dependent operations.
DEV float gelu(float v) {
  const float u = minimum(absolute(v), 6.0f), u2 = u * u, u4 = u2 * u2;
  const float p0 = -1.151123285293579f * u - 0.9999988675117493f,
              p2 = -0.05271420255303383f * u - 0.4591154456138611f;
  const float p4 = -0.00032334536081179976f * u + 0.007333389483392239f,
              p6 = 2.5083121727220714e-05f * u - 0.00011446159624028951f;
  const float high = p6 * u2 + p4 - 1.6903887853914057e-06f * u4;
  return maximum(v, 0.f) - absolute(v) * exp2_(high * u4 + (p2 * u2 + p0));
}
// Return the attended context: the softmax of the scores, times its rows. Approximate exponentials lose no
// digit of the result, here or in the gate: where one is far off, it is small. Exact ones have branches,
// across which the compiler does not schedule.
DEV float attend(float h, float x, const float (&s)[3]) {
  const float k = LOG2E / sqrtf((float)REAL_D), t[4] = {k * s[0], k * s[1], k * (s[0] + s[1]), k * s[2]},
              none = -3.0e38f;
  float e[4], low = CONTEXT & 1 ? t[0] : none, high = CONTEXT & 4 ? t[2] : none;
  if (CONTEXT & 2) low = maximum(low, t[1]);
  if (CONTEXT & 8) high = maximum(high, t[3]);
  const float top = maximum(low, high);
#pragma unroll
  for (int j = 0; j < 4; j++) e[j] = CONTEXT >> j & 1 ? exp2_(t[j] - top) : 0.f;
  return inverse((e[0] + e[1]) + (e[2] + e[3])) * ((e[0] + e[2]) * h + ((e[1] + e[2]) * x + e[3] * (h * x)));
}

KERNEL(attn_rnn_row_forward, Forward, THREADS) {
  const Lane l;
  const i64 row = block(), at = row * H + l.unit;
  Weight Wq, Wo, Wh, Wc;
  const u32 weights = l.memory + AT_WEIGHTS;
  Wq.load(a.w.q, H, l, weights);
  Wo.load(a.w.o, H, l, weights + WEIGHT_BYTES);
  Wh.load(a.w.g, 2 * H, l, weights + 2 * WEIGHT_BYTES);
  Wc.load(a.w.g + H, 2 * H, l, weights + 3 * WEIGHT_BYTES);
  // two lanes bring one
  const float bq = 0.5f * get_one(a.w.bias_q + l.unit), bo = 0.5f * get_one(a.w.bias_o + l.unit),
              bg = 0.5f * get_one(a.w.bias_g + l.unit);
  const float scale = NORM ? get_one(a.w.scale + l.unit) : 1.f,
              bias = NORM ? get_one(a.w.bias + l.unit) : 0.f, mask = MASK ? get_one(a.mask + at) : 1.f;
  float h = a.h0[at];
  const int length = a.lengths ? (int)a.lengths[row] : a.T, plane = l.thread / LINE;
  const Element* from = KEEP && plane ? a.keep + row * a.T * H : a.x + row * a.x_row;
  const Source source{(const u8*)from + 16 * (l.thread % LINE), SIZE * (KEEP && plane ? H : a.x_step),
                      l.memory + AT_RING + 16 * l.thread, plane <= KEEP};
  const u32 spill = l.memory + AT_SPILL + 16 * l.thread;
  Element* y = a.y + row * a.y_row + l.unit;
  const u8* reset = a.reset + row * a.T;
  auto begin = [&](bool is_reset) {  // what the products of the next step see of the state
    if constexpr (RESET)
      if (is_reset) h = a.start[at];
    if constexpr (MASK)
      l.put(SEEN, h * mask, STATE, h);
    else
      l.put(SEEN, h);
  };
  l.clear();
#pragma unroll
  for (int t = 0; t < STAGES - 1; t++) {
    source.fetch(t, SLOT, t < length);
    fetch_commit();
  }
  fetch_wait<STAGES - 2>();
  wait_block();
  begin(RESET && length > 0 && reset[0]);
  wait_block();
#pragma unroll 1
  for (int t = 0; t < length; t++) {
    const u32 ring = l.memory + AT_RING + (t & STAGES - 1) * SLOT;
    float v[DEEP][4], q[4] = {bq}, gate[4] = {bg}, c[4] = {bo}, past[4], x[4], s[3];
    l.get(v, SEEN);
    l.get_four(past, l.vector(STATE));
    l.get_elements(x, ring);
    multiply(q, Wq, v);
    source.fetch(t + STAGES - 1, SLOT, t + STAGES - 1 < length);
    fetch_commit();
    l.sum_heads(s, q, past, x);
    multiply(gate, Wh, v);
    // so that it is found here, where there is time for it, and not where it is needed
    put_shared(spill, gate);
    l.put(CONTEXT_SUM, attend(h, x[0], s));
    wait_block();
    l.get(v, CONTEXT_SUM);
    const bool is_reset = RESET && t + 1 < length && reset[t + 1];
    multiply(c, Wo, v);
    const float o = gelu(l.scatter(c)), z = o + h;
    if constexpr (NORM)
      l.put(OUT, o, SUM, z);
    else
      l.put(OUT, o);
    wait_block();
    l.get(v, OUT);
    get_shared(gate, spill);
    multiply(gate, Wc, v);
    float mean = 0.f, r = 1.f;
    if constexpr (NORM) find_moments(mean, r, l);
    const float g = inverse(1.f + exp2_(-LOG2E * l.scatter(gate))),
                n = NORM ? (z - mean) * r * scale + bias : o;
    float after = h + g * (n - h);
    if constexpr (KEEP) after += l.get_element(ring + SIZE * H) * (h - after);
    h = after;
    begin(is_reset);
    if (!l.odd) put_one(y + t * a.y_step, after);
    fetch_wait<STAGES - 2>();
    wait_block();
  }
  if (!l.odd) a.last[at] = h;
}
