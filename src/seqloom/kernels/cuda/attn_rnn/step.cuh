// One step of AttnRNN for 8 rows: three products, each after a barrier.
//   q = W_q h + b_q   a = softmax(q [h, x, h + x, h * x] / sqrt d) for each head
//   aC = a [h, x, h + x, h * x]   s = W_o aC + b_o   o = gelu(s)   g = sigmoid(W_gh h + W_go o + b_g)
//   n = LayerNorm(o + h)   h' = h + g (n - h)
#pragma once
#include "attn_rnn/block.cuh"
#include "attn_rnn/math.cuh"

constexpr int AT_H = 0;
constexpr int AT_A = BUFFER;
constexpr int AT_O = 2 * BUFFER;
constexpr int AT_Z = 3 * BUFFER;
constexpr int AT_SUMS = AT_Z + (MASK && NORM ? BUFFER : 0);
constexpr int STEP_BYTES = AT_SUMS + SUMS;

struct Step {
  const Lane& l;
  u32 memory, Wq[TILES][4], Wh[TILES][4], Wo[TILES][4], Wc[TILES][4];
  float bq[2], bo[2], bg[2], scale[2], bias[2];
  // what happened inside, in the layout of C
  float q[4], a[PLACES][4], aC[4], s[4], o[4], g[4], xhat[4], r[2], n[4];

  DEV Step(const Lane& l, u32 memory, const Weights& w) : l(l), memory(memory) {
    load_weight(Wq, w.q, H, l);
    load_weight(Wh, w.g, 2 * H, l);
    load_weight(Wo, w.o, H, l);
    load_weight(Wc, w.g + H, 2 * H, l);
    load_vector(bq, w.bias_q, l);
    load_vector(bo, w.bias_o, l);
    load_vector(bg, w.bias_g, l);
    if constexpr (NORM) {
      load_vector(scale, w.scale, l);
      load_vector(bias, w.bias, l);
    }
  }
  // The h that the products see has been stored at AT_H. `arrived` runs when what others stored or fetched is
  // there, and may fill x; `meanwhile` runs in the shadow of the second product.
  template <class Arrived, class Meanwhile>
  DEV void run(float (&after)[4], const float (&h)[4], const float (&x)[4], const Arrived& arrived,
               const Meanwhile& meanwhile) {
    wait_block();
    arrived();
    u32 hb[TILES][2];
    float gh[4], hx[4], p[3][4], sum[3][PLACES];
    ask(gh, hb);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      hx[i] = h[i] * x[i];
      p[0][i] = q[i] * h[i];
      p[1][i] = q[i] * x[i];
      p[2][i] = q[i] * hx[i];
    }
    head_sums(sum, p, memory + AT_SUMS, l);
    float c[3][PLACES], ch[4], cx[4], cp[4];
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
      attention(a[i], sum[0][i], sum[1][i], sum[2][i]);
      c[0][i] = a[i][0] + a[i][2];
      c[1][i] = a[i][1] + a[i][2];
      c[2][i] = a[i][3];
    }
    spread(ch, c[0], l);
    spread(cx, c[1], l);
    spread(cp, c[2], l);
#pragma unroll
    for (int i = 0; i < 4; i++) aC[i] = ch[i] * h[i] + (cx[i] * x[i] + cp[i] * hx[i]);
    answer(after, h, gh, hb, meanwhile);
  }
  // q, and the gate's product with h, which is needed much later; hb is what they see of h.
  DEV void ask(float (&gh)[4], u32 (&hb)[TILES][2]) {
    const float startq[4] = {bq[0], bq[0], bq[1], bq[1]}, startg[4] = {bg[0], bg[0], bg[1], bg[1]};
    load_buffer(hb, memory + AT_H, l);
    product<4>(q, startq, Wq, hb);
    product<2>(gh, startg, Wh, hb);
  }
  // From aC on.
  template <class Meanwhile>
  DEV void answer(float (&after)[4], const float (&h)[4], const float (&gh)[4], const u32 (&hb)[TILES][2],
                  const Meanwhile& meanwhile) {
    const float starto[4] = {bo[0], bo[0], bo[1], bo[1]};
    u32 v[2];
    narrow(v, aC);
    store_buffer(memory + AT_A, v[0], v[1], l);
    wait_block();
    {
      u32 b[TILES][2];
      load_buffer(b, memory + AT_A, l);
      meanwhile();
      product<4>(s, starto, Wo, b);
    }
    float z[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      o[i] = gelu(s[i]);
      z[i] = o[i] + h[i];
    }
    narrow(v, o);
    store_buffer(memory + AT_O, v[0], v[1], l);
    if constexpr (MASK && NORM) {
      narrow(v, z);
      store_buffer(memory + AT_Z, v[0], v[1], l);
    }
    wait_block();
    u32 ob[TILES][2];
    load_buffer(ob, memory + AT_O, l);
    product<4>(g, gh, Wc, ob);
    if constexpr (NORM) normalise(z, hb, ob);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      g[i] = sigmoid(g[i]);
      n[i] = NORM ? xhat[i] * scale[i >> 1] + bias[i >> 1] : o[i];
      after[i] = h[i] + g[i] * (n[i] - h[i]);
    }
  }
  // With Z = o + h as B and {Z^T; ones} as A, mma gives sums of squares on its diagonal, and sums below.
  DEV void normalise(const float (&z)[4], const u32 (&hb)[TILES][2], const u32 (&ob)[TILES][2]) {
    float part[2][4] = {};
    u32 zb[TILES][2];
    if constexpr (MASK) load_buffer(zb, memory + AT_Z, l);
#pragma unroll
    for (int k = 0; k < TILES; k++) {
      const u32 v = MASK ? zb[k][0] : add_pairs<TYPE>(ob[k][0], hb[k][0]),
                w = MASK ? zb[k][1] : add_pairs<TYPE>(ob[k][1], hb[k][1]);
      mma<TYPE>(part[k & 1], v, ONES, w, ONES, v, w);
    }
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const float square = from_lane(part[0][c] + part[1][c], 9 * l.pair + 4 * c) * (1.0f / H);
      const float mean = (part[0][c + 2] + part[1][c + 2]) * (1.0f / H);
      r[c] = inverse_root(larger(square - mean * mean, 0.f) + 1e-5f);
      xhat[c] = (z[c] - mean) * r[c];
      xhat[c + 2] = (z[c + 2] - mean) * r[c];
    }
  }
};
