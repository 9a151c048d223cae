// AttnRNN forward in 16 bits with one row of the batch to a block. Equations as in step.cuh. A warp has 16
// units and all of their weights, as A of mma; every column of B is the same vector, so that each lane has
// the sums of its units without an exchange between lanes. Four lanes have the sums of two units, two of them
// do the pointwise work of each.
#include "attn_rnn/row_math.cuh"

constexpr int TILES = H / 16, FOURS = (TILES + 1) / 2;
// Bytes of what a lane reads of a vector in 16 bits, and of the vector: the four lanes of a row have
// different banks.
constexpr int PITCH = 16 * FOURS + 16, HALVES = 4 * PITCH;
constexpr int SUM = 0, SEEN = VECTOR, CONTEXT_SUM = SEEN + HALVES, OUT = CONTEXT_SUM + HALVES;
constexpr int AT_HEADS = OUT + HALVES, AT_INPUT = AT_HEADS + (SPLIT_HEADS ? 16 * (H / PIECE) : 0);
constexpr int SLOT = SIZE * H * (1 + KEEP), AT_GATE = AT_INPUT + STAGES * SLOT;
constexpr int ROW_HALF_FORWARD_BYTES = AT_GATE + 4 * THREADS;

struct HalfLane : Lane {
  int row, pair;
  bool upper;
  u32 read, write;  // where a vector has what this lane reads, and where its unit
  DEV HalfLane() {
    row = lane >> 2;
    pair = lane & 3;
    upper = pair & 2;
    odd = pair & 1;
    unit = (thread >> 5 << 4) + row + (upper ? 8 : 0);
    four[0] = hold(memory + 4 * unit);
    read = hold(memory + PITCH * pair);
    write = hold(memory + PITCH * (row >> 1) + 8 * (thread >> 5) + (upper ? 4 : 0) + 2 * (row & 1));
  }
  DEV void put_half(int vector, float v) const { put_shared(write + vector, (u16)pack<TYPE>(v, 0.f)); }
  DEV void get_halves(u32 (&b)[FOURS][4], int vector) const {
#pragma unroll
    for (int i = 0; i < FOURS; i++) get_shared(b[i], read + vector + 16 * i);
  }
  // Return the sum of this lane's unit.
  DEV float pick(const float (&c)[2][4]) const { return upper ? c[0][2] + c[1][2] : c[0][0] + c[1][0]; }
  // Sum q h, q x and q h x over the units of the head.
  DEV void sum(float (&s)[3], float q, float h, float x) const {
    s[0] = q * h;
    s[1] = q * x;
    s[2] = s[0] * x;
    if constexpr (PIECE == 16) {  // one of four sums to a lane, of which the last is 0
      const float one = odd ? s[1] : s[0], two = odd ? 0.f : s[2];
      float v = (upper ? two : one) + shuffle_xor(upper ? one : two, 2);
#pragma unroll
      for (int bits = 4; bits < 32; bits *= 2) v += shuffle_xor(v, bits);
      if constexpr (SPLIT_HEADS)
        put_shared(memory + AT_HEADS + 16 * (unit / PIECE) + 4 * pair, v);
      else
#pragma unroll
        for (int m = 0; m < 3; m++) s[m] = shuffle(v, (lane & ~3) + m);
    } else {
#pragma unroll
      for (int bits = 4; bits < 4 * PIECE; bits *= 2)
#pragma unroll
        for (int m = 0; m < 3; m++) s[m] += shuffle_xor(s[m], bits);
      if constexpr (SPLIT_HEADS) {  // lanes that write to the same place write the same
        const u32 at = memory + AT_HEADS + 16 * (unit / PIECE);
        put_shared(at + 4 * odd, odd ? s[1] : s[0]);
        put_shared(at + 8, s[2]);
      }
    }
    if constexpr (SPLIT_HEADS) {
      wait_block();
      s[0] = s[1] = s[2] = 0.f;
#pragma unroll
      for (int i = 0; i < D / PIECE; i++) {
        float v[4];
        get_shared(v, memory + AT_HEADS + 16 * (unit / D * (D / PIECE) + i));
#pragma unroll
        for (int m = 0; m < 3; m++) s[m] += v[m];
      }
    }
  }
};

// The rows of a weight for a warp's units.
struct HalfWeight {
  u32 a[TILES][4];
  DEV void load(const Element* W, int stride, const HalfLane& l) {
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int unit = (l.thread >> 5 << 4) + l.row + 8 * (j & 1),
                  column = 16 * i + 2 * l.pair + 8 * (j >> 1);
        a[i][j] = get_global(W + (i64)unit * stride + column);
      }
  }
};
// c += W b, in two sums.
DEV void multiply(float (&c)[2][4], const HalfWeight& W, const u32 (&b)[FOURS][4]) {
#pragma unroll
  for (int i = 0; i < TILES; i++) {
    const u32(&a)[4] = W.a[i];
    mma<TYPE>(c[i & 1], a[0], a[1], a[2], a[3], b[i / 2][2 * (i & 1)], b[i / 2][2 * (i & 1) + 1]);
  }
}

KERNEL(attn_rnn_row_half_forward, Forward, THREADS) {
  const HalfLane l;
  const i64 row = block(), at = row * H + l.unit;
  const int length = a.lengths ? (int)a.lengths[row] : a.T;
  const float bq = get_one(a.w.bias_q + l.unit), bo = get_one(a.w.bias_o + l.unit),
              bg = get_one(a.w.bias_g + l.unit);
  for (int i = l.thread; i < AT_HEADS / 4; i += THREADS) put_shared(l.memory + 4 * i, 0.f);
  HalfWeight Wq, Wo, Wh, Wc;
  Wq.load(a.w.q, H, l);
  Wo.load(a.w.o, H, l);
  Wc.load(a.w.g + H, 2 * H, l);
  Wh.load(a.w.g, 2 * H, l);
  const float scale = NORM ? get_one(a.w.scale + l.unit) : 1.f,
              bias = NORM ? get_one(a.w.bias + l.unit) : 0.f, mask = MASK ? get_one(a.mask + at) : 1.f;
  const bool is_real = PADDING == 0 || l.unit % D < REAL_D;
  float h = a.h0[at], mean = 0.f, r = 1.f;
  const int plane = l.thread / LINE;
  const Element* from = KEEP && plane ? a.keep + row * a.T * H : a.x + row * a.x_row;
  const Source source{(const u8*)from + 16 * (l.thread % LINE), SIZE * (KEEP && plane ? H : a.x_step),
                      l.memory + AT_INPUT + 16 * l.thread, plane <= KEEP};
  Element* y = a.y + row * a.y_row + l.unit;
  const u8* reset = a.reset + row * a.T;
  float start_mean = 0.f;
  const u32 quad = hold(find_quad(l, SUM)), past_gate = hold(l.memory + AT_GATE + 4 * l.thread);
  auto find_mean = [&](float v) {  // of a vector, once
    float found = 0.f, z[4];
    l.put(SUM, v);
    wait_block();
    get_shared(z, quad);
    find_moments(found, r, z, l);
    wait_block();
    return found;
  };
  auto begin = [&](bool is_reset) {  // what the products of the next step see of the state
    if constexpr (RESET)
      if (is_reset) {
        h = a.start[at];
        mean = start_mean;
      }
    l.put_half(SEEN, MASK ? h * mask : h);
  };
#pragma unroll
  for (int t = 0; t < STAGES - 1; t++) {
    source.fetch(t, SLOT, t < length);
    fetch_commit();
  }
  fetch_wait<STAGES - 2>();
  wait_block();
  if constexpr (NORM) {
    mean = find_mean(h);
    if constexpr (RESET) start_mean = find_mean(a.start[at]);
  }
  begin(RESET && length > 0 && reset[0]);
  wait_block();
#pragma unroll 1
  for (int t = 0; t < length; t++) {
    const u32 ring = AT_INPUT + (t & STAGES - 1) * SLOT;
    float q[2][4] = {}, gate[2][4] = {}, c[2][4] = {}, s[3];
    u32 b[FOURS][4];
    l.get_halves(b, SEEN);
    const float x = l.get_element(ring);
    multiply(q, Wq, b);
    source.fetch(t + STAGES - 1, SLOT, t + STAGES - 1 < length);
    fetch_commit();
    l.sum(s, find_score_scale() * (l.pick(q) + bq), h, x);
    multiply(gate, Wh, b);
    // so that it is found here, where there is time for it, and not where it is needed
    put_shared(past_gate, l.pick(gate) + bg);
    l.put_half(CONTEXT_SUM, attend(h, x, s));
    wait_block();
    l.get_halves(b, CONTEXT_SUM);
    const bool is_reset = RESET && t + 1 < length && reset[t + 1];
    multiply(c, Wo, b);
    const float o = gelu(l.pick(c) + bo), z = o + h;
    if (!NORM || !l.odd)
      l.put_half(OUT, o);
    else
      l.put(SUM, is_real ? z : mean);
    wait_block();
    l.get_halves(b, OUT);
    float now[2][4] = {};
    multiply(now, Wc, b);
    if constexpr (NORM) {
      float v[4];
      get_shared(v, quad);
      find_moments(mean, r, v, l);
    }
    const float n = NORM ? (z - mean) * r * scale + bias : o,
                g = sigmoid(l.pick(now) + get_shared(past_gate));
    float after = h + g * (n - h);
    if constexpr (KEEP) after += l.get_element(ring + SIZE * H) * (h - after);
    h = after;
    begin(is_reset);
    put_one(y, after);
    y += a.y_step;
    fetch_wait<STAGES - 2>();
    wait_block();
  }
  if (!l.odd) a.last[at] = h;
}
