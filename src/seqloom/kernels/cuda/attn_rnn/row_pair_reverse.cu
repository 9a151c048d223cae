// Backward pass of AttnRNN over a chunk of steps with two blocks per row of the batch, from recomputed
// planes. Letters as in block_reverse.cu.
#include "attn_rnn/row_pair.cuh"
#include "attn_rnn/row_reverse.cuh"

// Bytes of a message: planes, attention, 1 / deviation, and whether the step begins with a reset.
constexpr int SLOT = PLANE_BYTES + 16 * HEADS + 16;
constexpr int AT_PARTNER = AT_RING + 2 * SLOT, ROW_PAIR_REVERSE_BYTES = AT_PARTNER + PAIR_BYTES;

// Run the second block, which loads the values of each step.
DEV void help(const Reverse& a, const Lane& l, const Partner& partner, i64 row, int end) {
  const i64 steps = row * a.steps - a.from;
  const PlaneSource planes(a, l, row, steps);
  const u32 ring = partner.map(l.memory + AT_RING + 16 * l.thread),
            more = partner.map(l.memory + AT_RING + PLANE_BYTES + 16 * l.thread);
  const int count = end - a.from;
  float v[4] = {}, w[4] = {};
  auto load = [&](int i) {
    const int t = end - 1 - i;
    if (i >= count) return;
    if (planes.plane < PLANES) get_global(v, (const float*)(planes.from + t * planes.stride));
    if (l.thread < HEADS) get_global(w, a.attention + (steps + t) * HEADS * 4 + 4 * l.thread);
    if (l.thread == HEADS) {
      w[0] = NORM ? a.deviation[steps + t] : 1.f;
      w[1] = RESET && a.reset[row * a.T + t] ? 1.f : 0.f;
    }
  };
  auto push = [&](int i) {
    if (i >= count) return;
    if (planes.plane < PLANES) send(ring + (i & 1) * SLOT, partner.other_barrier, v);
    if (l.thread <= HEADS) send(more + (i & 1) * SLOT, partner.other_barrier, w);
  };
  partner.help(a.w.g, H, 0.f, count, count, load, push, [] { return 0.f; }, [](int, float) {});
}

CLUSTER_KERNEL(attn_rnn_row_pair_reverse, Reverse, THREADS, 2) {
  const Lane l(true);
  const bool odd = l.odd, has_quad = l.lane < H / 4;
  const i64 row = block() / 2, at = row * H + l.unit;
  const int length = a.lengths ? (int)a.lengths[row] : a.T, last = a.from + a.steps,
            end = length < last ? length : last, count = end - a.from;
  l.clear();
  const Partner partner(l, AT_PARTNER, count > 0 ? SLOT : 0, count > 0 ? VECTOR_BYTES : 0);
  if (partner.is_second) {
    if (count > 0) help(a, l, partner, row, end);
    return;
  }
  Weight Wo, Wc, Wq;
  Wo.load(a.w.o, H, l, 0);
  Wc.load(a.w.g + H * H, H, l, 0);
  Wq.load(a.w.q, H, l, 0);
  const float scale = NORM ? get_one(a.w.scale + l.unit) : 1.f,
              bias = NORM ? get_one(a.w.bias + l.unit) : 0.f, mask = MASK ? get_one(a.mask + at) : 1.f;
  const float root = 1.f / sqrtf((float)REAL_D);
  float dh = a.dh[at], dstart = 0.f;
  const Gradients d(a, l, row);
  d.clear(l, end > a.from ? end : a.from, last);
  const u32 quad = hold(l.memory + (has_quad ? 16 * l.lane : 0)), others = partner.map(l.four[0]),
            dx_or_dxn = hold(l.four[0] + (odd ? DXN : DX) * VECTOR),
            attention_at = hold(l.memory + PLANE_BYTES + 16 * (l.unit / D));
  // Values that the start of a step needs, loaded at the end of the previous iteration.
  float dy = 0.f, g = 0.f, n = 0.f, h = 0.f, keep = 0.f;
  auto get_first = [&](u32 ring) {
    dy = l.get_element(ring + find_plane(DY));
    g = l.get_element(ring + find_plane(G));
    n = l.get_element(ring + find_plane(N));
    h = get_shared(l.four[0] + ring);
    if constexpr (KEEP) keep = l.get_element(ring + find_plane(KEEP_PLANE));
  };
  if (count > 0) {
    partner.take_message(0);
    get_first(AT_RING);
  }
  // The state after the step, if known: the previous iteration loaded it as the state before its step.
  float next_state = 0.f;
  bool has_next = false;
#pragma unroll 1
  for (int i = 0; i < count; i++) {
    const i64 offset = (i64)(end - 1 - i) * H;
    const u32 ring = AT_RING + (i & 1) * SLOT;
    const float dafter = dy + dh, rest = KEEP ? dafter * (1.f - keep) : dafter, dn = rest * g;
    // How much the step changed the state: see row_reverse.cu.
    const float share = KEEP ? g * (1.f - keep) : g, recomputed = share * ((NORM ? n * scale + bias : n) - h);
    const float change = TYPE == FP32 && has_next && share > 0.125f ? next_state - h : recomputed,
                dgate = change * (dafter - dafter * g);
    next_state = h;
    float acc = KEEP ? rest - dn + dafter * keep : rest - dn, dx = NORM ? dn * scale : dn;
    l.put(DGATE, dgate);
    if constexpr (NORM) put_shared(dx_or_dxn, odd ? dx * n : dx);
    send(others, partner.other_barrier, dgate);
    wait_block();
    float p[DEEP][4], c[4] = {}, back[4] = {}, s[3], past[4], x[4], extra[4], v[4], w[4];
    l.get(p, DGATE);
    if constexpr (NORM) {
      get_shared(v, quad + DX * VECTOR);
      get_shared(w, quad + DXN * VECTOR);
    }
    get_shared(extra, l.memory + ring + PLANE_BYTES + 16 * HEADS);
    const float slope = l.get_element(ring + find_plane(SLOPE));
    partner.expect_next(4 * H + (i + 1 < count ? SLOT : 0));
    multiply(c, Wc, p);
    const bool is_reset = RESET && extra[1] != 0.f;
    has_next = !is_reset;
    if constexpr (NORM) {
      float mean = has_quad ? (v[0] + v[1]) + (v[2] + v[3]) : 0.f,
            both = has_quad ? (w[0] + w[1]) + (w[2] + w[3]) : 0.f;
#pragma unroll
      for (int bits = 16; bits; bits /= 2) {
        mean += shuffle_xor(mean, bits);
        both += shuffle_xor(both, bits);
      }
      dx = extra[0] * (dx - mean * (1.0f / REAL_H) - n * (both * (1.0f / REAL_H)));
      acc += dx;
    }
    const float ds = (l.scatter(c) + dx) * slope;
    l.put(DS, ds);
    put_one(d.gate + offset, odd ? dn : dgate);
    wait_block();
    l.get(p, DS);
    l.get_four(past, ring);
    l.get_elements(x, ring + find_plane(INPUT));
#pragma unroll
    for (int k = 0; k < 4; k++) c[k] = 0.f;
    multiply(c, Wo, p);
    const float vC = l.scatter(c), q = l.get_element(ring + find_plane(Q));
    float k[4];
    get_shared(k, attention_at + ring);
    if (!odd) put_one(d.sum + offset, ds);
    l.sum_heads(s, c, past, x, 1.f);
    const float two = s[0] + s[1], mid = k[0] * s[0] + k[1] * s[1] + k[2] * two + k[3] * s[2],
                shared = k[2] * (two - mid);
    const float zh = root * (k[0] * (s[0] - mid) + shared), zx = root * (k[1] * (s[1] - mid) + shared),
                zp = root * k[3] * (s[2] - mid);
    const float both = k[3] * vC + zp * q, dq = zh * h + x[0] * (zx + zp * h);
    l.put(DQ, dq);
    acc += (k[0] + k[2]) * vC + zh * q + x[0] * both;
    const float du = (k[1] + k[2]) * vC + zx * q + h * both;
    put_one(d.query + offset, odd ? du : dq);
    const bool has_message = partner.has_message(i + 1);
    wait_block();
    l.get(p, DQ);
    if (!has_message) partner.take_message(i + 1);
    const float product = get_shared(partner.product);
    get_first(AT_RING + (i + 1 & 1) * SLOT);  // unused after the last step
    multiply(back, Wq, p);
    const float dseen = l.scatter(back) + product;
    acc += MASK ? mask * dseen : dseen;
    if constexpr (RESET)
      if (is_reset) {
        dstart += acc;
        acc = 0.f;
      }
    dh = acc;
  }
  if (!odd) {
    a.dh[at] = dh;
    if constexpr (RESET) a.dstart[at] += dstart;
  }
}
