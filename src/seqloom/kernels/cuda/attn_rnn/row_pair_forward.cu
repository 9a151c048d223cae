// AttnRNN forward with one row of the batch to two blocks. Equations as in step.cuh.
#include "attn_rnn/row_math.cuh"
#include "attn_rnn/row_pair.cuh"

// Vectors: what the products see of the state and the output of the step, in the second block both. The state
// differs from what is seen with a mask, the output with a reset.
constexpr int SEEN = 0, AFTER = 1, STATE = MASK ? 1 : 0, CONTEXT_SUM = 2, OUT = 3, SUM = 4;
constexpr int BOTH = 2, INPUT = 2;  // of EARLY: h * x in the first block, x in the second, which takes two
// The input of a step, and of EARLY each lane's parts of W_o x: bytes that are sent, and that it takes.
constexpr bool HAS_X = EARLY && CONTEXT & 6, HAS_BOTH = EARLY && CONTEXT & 8;
constexpr int SENT = SIZE * H * (1 + KEEP) + (HAS_X ? 16 * THREADS : 0);
constexpr int AT_PARTS = ELEMENTS * (1 + KEEP);
constexpr int SLOT = AT_PARTS + (HAS_X ? 16 * THREADS : 0);
constexpr int AT_PARTNER = AT_RING + 2 * SLOT, ROW_PAIR_FORWARD_BYTES = AT_PARTNER + PAIR_BYTES;

CLUSTER_KERNEL(attn_rnn_row_pair_forward, Forward, THREADS, 2) {
  const Lane l;
  const i64 row = block() / 2, at = row * H + l.unit;
  const int length = a.lengths ? (int)a.lengths[row] : a.T;
  l.clear();
  const Partner partner(l, AT_PARTNER, length > 0 ? SENT : 0, VECTOR_BYTES);
  if (partner.is_second) {
    const int plane = l.thread / LINE, chunk = l.thread % LINE;
    const bool has_source = plane <= KEEP;
    const u8* from = (const u8*)(KEEP && plane ? a.keep + row * a.T * H : a.x + row * a.x_row) + 16 * chunk;
    const i64 stride = SIZE * (KEEP && plane ? H : a.x_step);
    const u32 ring = partner.map(l.memory + AT_RING + plane * ELEMENTS + place_chunk<TYPE>(chunk)),
              parts_at = partner.map(l.memory + AT_RING + AT_PARTS + 16 * l.thread);
    float x[4] = {}, next[4] = {}, parts[4];
    Element* y = a.y + row * a.y_row + l.unit;
    Weight Wo;
    if constexpr (HAS_X) Wo.load(a.w.o, H, l, 0);
    auto load_one = [&](float (&to)[4], int t) {
      if (has_source && t < length) get_global(to, (const float*)(from + t * stride));
    };
    auto load = [&](int t) {
      if constexpr (HAS_X) {
        if (t == 0) load_one(next, 0);
#pragma unroll
        for (int e = 0; e < 4; e++) {
          x[e] = next[e];
          parts[e] = 0.f;
        }
        load_one(next, t + 1);
        if (plane == 0) put_chunk<TYPE>(x, l.vector(INPUT + (t & 1)), chunk);
        wait_block();
        float v[DEEP][4];
        l.get(v, INPUT + (t & 1));
        multiply(parts, Wo, v);
      } else
        load_one(x, t);
    };
    auto push = [&](int t) {
      if (t >= length) return;
      if (has_source) send(ring + (t & 1) * SLOT, partner.other_barrier, x);
      if constexpr (HAS_X) send(parts_at + (t & 1) * SLOT, partner.other_barrier, parts);
    };
    auto read = [&] { return get_shared(l.four[0] + AFTER * VECTOR); };
    auto store = [&](int i, float after) {
      if (i > 0 && !l.odd) put_one(y + (i - 1) * a.y_step, after);
    };
    const float bias = 0.5f * get_one(a.w.bias_g + l.unit);  // two lanes bring one
    partner.help(a.w.g, 2 * H, bias, length, length + 1, load, push, read, store);
    return;
  }
  Weight Wq, Wo, Wc;
  Wq.load(a.w.q, H, l, 0);
  Wo.load(a.w.o, H, l, 0);
  Wc.load(a.w.g + H, 2 * H, l, 0);
  const float bq = 0.5f * get_one(a.w.bias_q + l.unit), bo = 0.5f * get_one(a.w.bias_o + l.unit);
  const float scale = NORM ? get_one(a.w.scale + l.unit) : 1.f,
              bias = NORM ? get_one(a.w.bias + l.unit) : 0.f, mask = MASK ? get_one(a.mask + at) : 1.f;
  const bool is_real = PADDING == 0 || l.unit % D < REAL_D;
  const u32 quad = hold(find_quad(l, SUM)),
            out_or_sum = hold(l.four[0] + (NORM && l.odd ? SUM : OUT) * VECTOR),
            others = partner.map(l.four[0] + (l.odd ? AFTER : SEEN) * VECTOR);
  const u8* reset = a.reset + row * a.T;
  float h = a.h0[at], mean = 0.f, r = 1.f, start_mean = 0.f;
  auto find_mean = [&](float v) {  // of a vector, once
    float found = 0.f, z[4];
    l.put(SUM, v);
    wait_block();
    get_shared(z, quad);
    find_moments(found, r, z, l);
    wait_block();
    return found;
  };
  // What step t sees of the state.
  auto begin = [&](float after, bool is_reset, int t) {
    if constexpr (RESET)
      if (is_reset) {
        h = a.start[at];
        mean = start_mean;
      }
    const float seen = MASK ? h * mask : h;
    if constexpr (MASK)
      l.put(SEEN, seen, STATE, h);
    else
      l.put(SEEN, h);
    if constexpr (HAS_BOTH) l.put(BOTH, h * l.get_element(AT_RING + (t & 1) * SLOT));
    send(others, partner.other_barrier, l.odd ? after : seen);
  };
  if constexpr (NORM) {
    if constexpr (RESET) start_mean = find_mean(a.start[at]);
    mean = find_mean(h);
  }
  partner.take_message(0);
  begin(h, RESET && length > 0 && reset[0], 0);
  wait_block();
#pragma unroll 1
  for (int t = 0; t < length; t++) {
    const u32 ring = AT_RING + (t & 1) * SLOT;
    float v[DEEP][4], q[4] = {bq}, gate[4] = {}, c[4] = {bo}, past[4], x[4], s[3], quad_of_sum[4];
    l.get(v, SEEN);
    l.get_four(past, STATE * VECTOR);
    l.get_elements(x, ring);
    partner.expect_next(4 * H + (t + 1 < length ? SENT : 0));
    multiply(q, Wq, v);
    const bool is_reset = RESET && t + 1 < length && reset[t + 1];
    if constexpr (EARLY) {
      float of_h[4] = {}, of_x[4] = {}, of_both[4] = {}, e[4];
      if constexpr (MASK) l.get(v, STATE);
      multiply(of_h, Wo, v);
      if constexpr (HAS_BOTH) {
        l.get(v, BOTH);
        multiply(of_both, Wo, v);
      }
      if constexpr (HAS_X) get_shared(of_x, l.memory + ring + AT_PARTS + 16 * l.thread);
      l.sum_heads(s, q, past, x, find_score_scale());
      const float one = find_attention(e, s), h_share = one * (e[0] + e[2]), x_share = one * (e[1] + e[2]),
                  both_share = one * e[3];
#pragma unroll
      for (int k = 0; k < 4; k++) c[k] += h_share * of_h[k] + (x_share * of_x[k] + both_share * of_both[k]);
    } else {
      l.sum_heads(s, q, past, x, find_score_scale());
      l.put(CONTEXT_SUM, attend(h, x[0], s));
      wait_block();
      l.get(v, CONTEXT_SUM);
      multiply(c, Wo, v);
    }
    const float sum = l.scatter(c);
    const bool has_message = partner.has_message(t + 1);
    const float o = gelu(sum), z = o + h;
    put_shared(out_or_sum, NORM && l.odd ? (is_real ? z : mean) : o);
    wait_block();
    l.get(v, OUT);
    if constexpr (NORM) get_shared(quad_of_sum, quad);
    if (!has_message) partner.take_message(t + 1);
    const float past_gate = get_shared(partner.product);
    multiply(gate, Wc, v);
    if constexpr (NORM) find_moments(mean, r, quad_of_sum, l);
    const float n = NORM ? (z - mean) * r * scale + bias : o, g = sigmoid(l.scatter(gate) + past_gate);
    float after = h + g * (n - h);
    if constexpr (KEEP) after += l.get_element(ring + ELEMENTS) * (h - after);
    h = after;
    begin(after, is_reset, t + 1);
    wait_block();
  }
  if (!l.odd) a.last[at] = h;
}
