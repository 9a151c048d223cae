// Backward pass of AttnRNN over a chunk of steps with one row of the batch per block, from recomputed
// planes. Letters as in block_reverse.cu.
#include "attn_rnn/row_reverse.cuh"

constexpr int SLOT = PLANE_BYTES + 16 * HEADS;  // bytes of a step in the ring: planes and attention
constexpr int AT_SPILL = AT_RING + STAGES * SLOT;
constexpr int AT_WEIGHTS = AT_SPILL + 16 * THREADS;
constexpr int ROW_REVERSE_BYTES = AT_WEIGHTS + 4 * WEIGHT_BYTES;

// Values that a lane loads for a step: past and x for its four units, the others for its one unit.
struct StepInputs {
  float past[4], x[4], dy, g, n, slope, q, keep, attention[4];
  DEV void get(const Lane& l, u32 ring) {
    auto get_plane = [&](int plane) { return l.get_element(ring + find_plane(plane)); };
    dy = get_plane(DY);
    g = get_plane(G);
    n = get_plane(N);
    l.get_four(past, ring);
    if constexpr (KEEP) keep = get_plane(KEEP_PLANE);
    slope = get_plane(SLOPE);
    q = get_plane(Q);
    l.get_elements(x, ring + find_plane(INPUT));
    get_shared(attention, l.memory + ring + PLANE_BYTES + 16 * (l.unit / D));
  }
};

// Sum the vectors DX and DXN over all units.
DEV void sum_both(float& v, float& w, const Lane& l) {
  // Use more lanes, and so fewer registers, for large H.
  constexpr int SHARES = DEEP == 4 ? 32 : 8, LANE_STRIDE = 32 / SHARES,
                COUNT = (H + 4 * SHARES - 1) / (4 * SHARES);
  v = w = 0.f;
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    float p[4], q[4];
    const u32 at = 16 * (SHARES * i + l.lane / LANE_STRIDE);
    get_shared(p, l.vector(DX) + at);
    get_shared(q, l.vector(DXN) + at);
    v += (p[0] + p[1]) + (p[2] + p[3]);
    w += (q[0] + q[1]) + (q[2] + q[3]);
  }
#pragma unroll
  for (int bits = 16; bits >= LANE_STRIDE; bits /= 2) {
    v += shuffle_xor(v, bits);
    w += shuffle_xor(w, bits);
  }
}

KERNEL(attn_rnn_row_reverse, Reverse, THREADS) {
  const Lane l(false);
  const bool odd = l.odd;
  const i64 row = block(), at = row * H + l.unit;
  Weight Wo, Wc, Wh, Wq;
  const u32 weights = l.memory + AT_WEIGHTS, spill = l.memory + AT_SPILL + 16 * l.thread;
  Wo.load(a.w.o, H, l, weights);
  Wc.load(a.w.g + H * H, H, l, weights + WEIGHT_BYTES);
  Wh.load(a.w.g, H, l, weights + 2 * WEIGHT_BYTES);
  Wq.load(a.w.q, H, l, weights + 3 * WEIGHT_BYTES);
  const float scale = NORM ? get_one(a.w.scale + l.unit) : 1.f,
              bias = NORM ? get_one(a.w.bias + l.unit) : 0.f, mask = MASK ? get_one(a.mask + at) : 1.f;
  const float root = 1.f / sqrtf((float)REAL_D);
  float dh = a.dh[at], dstart = 0.f;
  const int length = a.lengths ? (int)a.lengths[row] : a.T, last = a.from + a.steps,
            end = length < last ? length : last;
  const Gradients d(a, l, row);
  d.clear(l, end > a.from ? end : a.from, last);
  const i64 steps = row * a.steps - a.from;
  const PlaneSource planes(a, l, row, steps);
  const Source source{planes.from, planes.stride, l.memory + AT_RING + 16 * l.thread, planes.plane < PLANES};
  const Source heads{(const u8*)(a.attention + steps * HEADS * 4 + 4 * l.thread), 16 * HEADS,
                     l.memory + AT_RING + PLANE_BYTES + 16 * l.thread, l.thread < HEADS};
  const float* deviations = a.deviation + steps;
  auto fetch = [&](int t) {  // called STAGES - 1 steps ahead
    heads.fetch(t, SLOT, t >= a.from);
    source.fetch(t, SLOT, t >= a.from);
    cp_async_commit();
  };
  StepInputs v;
  l.clear();
  for (int t = end - 1; t > end - STAGES; t--) fetch(t);
  cp_async_wait<STAGES - 2>();
  wait_block();
  if (end > a.from) v.get(l, AT_RING + (end - 1 & STAGES - 1) * SLOT);
  // The state after the step, if known: the previous iteration loaded it as the state before its step.
  float next_state = 0.f;
  bool has_next = false;
  float next_deviation = NORM && end > a.from ? deviations[end - 1] : 1.f;
  bool next_is_reset = RESET && end > a.from && a.reset[row * a.T + end - 1];
#pragma unroll 1
  for (int t = end - 1; t >= a.from; t--) {
    const i64 offset = (i64)t * H;
    const float deviation = next_deviation;
    const bool is_reset = next_is_reset;
    if (t > a.from) {
      if constexpr (NORM) next_deviation = deviations[t - 1];
      if constexpr (RESET) next_is_reset = a.reset[row * a.T + t - 1];
    }
    const float dafter = v.dy + dh, rest = KEEP ? dafter * (1.f - v.keep) : dafter, dn = rest * v.g,
                h = v.past[0];
    // How much the step changed the state, g (n - h). Where it is large compared with the rounding error of
    // the state, use the difference of the saved states, which includes the rounding of the forward pass: a
    // recomputed n is rounded differently, and over the steps these differences add up in the gradient of the
    // gate's bias. 16-bit states are rounded too coarsely for this.
    const float share = KEEP ? v.g * (1.f - v.keep) : v.g,
                recomputed = share * ((NORM ? v.n * scale + bias : v.n) - h);
    const float change = TYPE == FP32 && has_next && share > 0.125f ? next_state - h : recomputed,
                dgate = change * (dafter - dafter * v.g);
    next_state = h;
    has_next = !is_reset;
    float acc = KEEP ? rest - dn + dafter * v.keep : rest - dn, dx = NORM ? dn * scale : dn;
    l.put(DGATE, dgate);
    if constexpr (NORM) l.put(DX, dx, DXN, dx * v.n);
    wait_block();
    float p[DEEP][4], c[4] = {}, back[4] = {}, s[3];
    l.get(p, DGATE);
    multiply(c, Wc, p);
    if constexpr (NORM) {
      float mean, both;
      sum_both(mean, both, l);
      dx = deviation * (dx - mean * (1.0f / REAL_H) - v.n * (both * (1.0f / REAL_H)));
      acc += dx;
    }
    const float ds = (l.scatter(c) + dx) * v.slope;
    multiply(back, Wh, p);
    put_shared(spill, back);  // computed here, off the critical path, as in the forward pass
    l.put(DS, ds);
    put_one(d.gate + offset, odd ? dn : dgate);
    fetch(t - STAGES + 1);
    wait_block();
    l.get(p, DS);
#pragma unroll
    for (int k = 0; k < 4; k++) c[k] = 0.f;
    multiply(c, Wo, p);
    const float vC = l.scatter(c);
    l.sum_heads(s, c, v.past, v.x, 1.f);
    const float (&k)[4] = v.attention, x = v.x[0];
    const float two = s[0] + s[1], mid = k[0] * s[0] + k[1] * s[1] + k[2] * two + k[3] * s[2],
                shared = k[2] * (two - mid);
    const float zh = root * (k[0] * (s[0] - mid) + shared), zx = root * (k[1] * (s[1] - mid) + shared),
                zp = root * k[3] * (s[2] - mid);
    const float both = k[3] * vC + zp * v.q, dq = zh * h + x * (zx + zp * h);
    l.put(DQ, dq);
    acc += (k[0] + k[2]) * vC + zh * v.q + x * both;
    const float du = (k[1] + k[2]) * vC + zx * v.q + h * both;
    if (!odd) put_one(d.sum + offset, ds);
    put_one(d.query + offset, odd ? du : dq);
    cp_async_wait<STAGES - 2>();
    get_shared(back, spill);
    wait_block();
    l.get(p, DQ);
    // Inputs of step t - 1, unused after the last iteration.
    v.get(l, AT_RING + (t - 1 & STAGES - 1) * SLOT);
    multiply(back, Wq, p);
    const float dseen = l.scatter(back);
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
