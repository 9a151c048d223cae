// AttnRNN forward with two blocks per row of the batch. Equations as in step.cuh.
#include "attn_rnn/row_math.cuh"
#include "attn_rnn/row_pair.cuh"

// Vectors in shared memory. SEEN: the state as an operand of the products; AFTER: the output of the step (the
// second block has both). With a mask STATE differs from SEEN, and with a reset AFTER does.
constexpr int SEEN = 0, AFTER = 1, STATE = MASK ? 1 : 0, CONTEXT_SUM = 2, OUT = 3, SUM = 4;
constexpr int SLOT = 4 * H * (1 + KEEP);  // the input of a step, in float32
constexpr int AT_PARTNER = AT_RING + 2 * SLOT, ROW_PAIR_FORWARD_BYTES = AT_PARTNER + PAIR_BYTES;

// Send 16 bytes of elements, converted to float.
DEV void send_elements(u32 to, u32 barrier, const float (&v)[4]) {
  if constexpr (TYPE == FP32)
    send(to, barrier, v);
  else
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float w[4];
      unpack<TYPE>(w[0], w[1], to_bits(v[2 * i]));
      unpack<TYPE>(w[2], w[3], to_bits(v[2 * i + 1]));
      send(to + 16 * i, barrier, w);
    }
}

CLUSTER_KERNEL(attn_rnn_row_pair_forward, Forward, THREADS, 2) {
  const Lane l(false);
  const i64 row = block() / 2, at = row * H + l.unit;
  const int length = a.lengths ? (int)a.lengths[row] : a.T;
  l.clear();
  const Partner partner(l, AT_PARTNER, length > 0 ? SLOT : 0, VECTOR_BYTES);
  if (partner.is_second) {
    const int plane = l.thread / LINE;
    const bool has_source = plane <= KEEP;
    const u8* from =
        (const u8*)(KEEP && plane ? a.keep + row * a.T * H : a.x + row * a.x_row) + 16 * (l.thread % LINE);
    const i64 stride = SIZE * (KEEP && plane ? H : a.x_step);
    const u32 ring = partner.map(l.memory + AT_RING + 64 / SIZE * l.thread);
    float x[4] = {};
    Element* y = a.y + row * a.y_row + l.unit;
    auto load = [&](int t) {
      if (has_source && t < length) get_global(x, (const float*)(from + t * stride));
    };
    auto push = [&](int t) {
      if (has_source && t < length) send_elements(ring + (t & 1) * SLOT, partner.other_barrier, x);
    };
    auto read = [&] { return get_shared(l.four[0] + AFTER * VECTOR); };
    auto store = [&](int i, float after) {
      if (i > 0 && !l.odd) put_one(y + (i - 1) * a.y_step, after);
    };
    const float bias = 0.5f * get_one(a.w.bias_g + l.unit);  // half, since the sums of two lanes are added
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
  auto find_mean = [&](float v) {  // return the mean of an initial state
    float found = 0.f, z[4];
    l.put(SUM, v);
    wait_block();
    get_shared(z, quad);
    find_moments(found, r, z, l);
    wait_block();
    return found;
  };
  auto begin = [&](float after, bool is_reset) {  // apply reset and mask, store and send
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
    send(others, partner.other_barrier, l.odd ? after : seen);
  };
  if constexpr (NORM) {
    if constexpr (RESET) start_mean = find_mean(a.start[at]);
    mean = find_mean(h);
  }
  partner.take_message(0);
  begin(h, RESET && length > 0 && reset[0]);
  wait_block();
#pragma unroll 1
  for (int t = 0; t < length; t++) {
    const u32 ring = AT_RING + (t & 1) * SLOT;
    float v[DEEP][4], q[4] = {bq}, gate[4] = {}, c[4] = {bo}, past[4], x[4], s[3], quad_of_sum[4];
    l.get(v, SEEN);
    l.get_four(past, STATE * VECTOR);
    l.get_four(x, ring);
    partner.expect_next(4 * H + (t + 1 < length ? SLOT : 0));
    multiply(q, Wq, v);
    l.sum_heads<true>(s, q, past, x, find_score_scale());
    l.put(CONTEXT_SUM, attend(h, x[0], s));
    wait_block();
    l.get(v, CONTEXT_SUM);
    const bool is_reset = RESET && t + 1 < length && reset[t + 1];
    multiply(c, Wo, v);
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
    if constexpr (KEEP) after += get_shared(l.four[0] + ring + 4 * H) * (h - after);
    h = after;
    begin(after, is_reset);
    wait_block();
  }
  if (!l.odd && a.last) a.last[at] = h;
  if (!l.odd && a.end) put_one(a.end + at, h);
}
