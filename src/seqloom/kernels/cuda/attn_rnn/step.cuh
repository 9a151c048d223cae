// One step of AttnRNN for 8 rows: three matrix products, each after a barrier.
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
  // Intermediate values of the step, in the layout of mma's C.
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
  // Run a step from the state h; AT_H holds h as an operand of the products, masked if MASK. `on_arrival`
  // runs after all stores and cp.async loads are complete, and may fill x; `side_work` runs during the
  // second product.
  template <class OnArrival, class SideWork>
  DEV void run(float (&after)[4], const float (&h)[4], const float (&x)[4], const OnArrival& on_arrival,
               const SideWork& side_work) {
    wait_block();
    on_arrival();
    u32 hb[TILES][2];
    float gh[4], hx[4], p[3][4], sum[3][PLACES];
    compute_query(gh, hb);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      hx[i] = h[i] * x[i];
      p[0][i] = q[i] * h[i];
      p[1][i] = q[i] * x[i];
      p[2][i] = q[i] * hx[i];
    }
    sum_heads(sum, p, memory + AT_SUMS, l);
    float c[3][PLACES], ch[4], cx[4], cp[4];
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
      compute_attention(a[i], sum[0][i], sum[1][i], sum[2][i]);
      c[0][i] = a[i][0] + a[i][2];
      c[1][i] = a[i][1] + a[i][2];
      c[2][i] = a[i][3];
    }
    spread(ch, c[0], l);
    spread(cx, c[1], l);
    spread(cp, c[2], l);
#pragma unroll
    for (int i = 0; i < 4; i++) aC[i] = ch[i] * h[i] + (cx[i] * x[i] + cp[i] * hx[i]);
    finish_step(after, h, gh, hb, side_work);
  }
  // Compute q, and the gate's product with h, which is used much later in the step; hb is h as their B
  // operand.
  DEV void compute_query(float (&gh)[4], u32 (&hb)[TILES][2]) {
    const float startq[4] = {bq[0], bq[0], bq[1], bq[1]}, startg[4] = {bg[0], bg[0], bg[1], bg[1]};
    load_buffer(hb, memory + AT_H, l);
    multiply<4>(q, startq, Wq, hb);
    multiply<2>(gh, startg, Wh, hb);
  }
  // Compute the rest of the step from aC.
  template <class SideWork>
  DEV void finish_step(float (&after)[4], const float (&h)[4], const float (&gh)[4],
                       const u32 (&hb)[TILES][2], const SideWork& side_work) {
    const float starto[4] = {bo[0], bo[0], bo[1], bo[1]};
    u32 v[2];
    narrow(v, aC);
    store_buffer(memory + AT_A, v[0], v[1], l);
    wait_block();
    {
      u32 b[TILES][2];
      load_buffer(b, memory + AT_A, l);
      side_work();
      multiply<4>(s, starto, Wo, b);
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
    multiply<4>(g, gh, Wc, ob);
    if constexpr (NORM) normalise(z, hb, ob);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      g[i] = sigmoid(g[i]);
      n[i] = NORM ? xhat[i] * scale[i >> 1] + bias[i >> 1] : o[i];
      after[i] = h[i] + g[i] * (n[i] - h[i]);
    }
  }
  // Compute xhat and 1 / deviation. With Z = o + h as B and {Z^T; ones} as A, mma gives the sums of squares
  // on the diagonal of C's upper 8 x 8 half, and the sums in its lower half.
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
      const float square = shuffle(part[0][c] + part[1][c], 9 * l.pair + 4 * c) * (1.0f / REAL_H);
      const float mean = (part[0][c + 2] + part[1][c + 2]) * (1.0f / REAL_H);
      r[c] = inverse_root(maximum(square - mean * mean, 0.f) + 1e-5f);
      xhat[c] = (z[c] - mean) * r[c];
      xhat[c + 2] = (z[c + 2] - mean) * r[c];
    }
  }
};

// Run all steps on the state h of 8 rows or slots.
//   place                    index in the batch of the row or slot in each of this lane's two columns
//   RING                     stages in shared memory from AT_RING on; each holds the input of one step
//   load_x(v, stage)         loads the input of a step
//   read_reset(is_reset, t)  sets is_reset to whether the state is reset before step t
//   fetch(t)                 starts loading the input of step t
//   copy_output(), put(t)    copy h as the output; write the copy as the output of step t
template <int RING, int AT_RING, int STAGE, class AnyStep, class Args, class LoadX, class ReadReset,
          class Fetch, class CopyOutput, class Put>
DEV void run_steps(AnyStep& step, float (&h)[4], const float (&mask)[4], const int (&place)[2],
                   const int (&length)[2], int end, u32 memory, const Args& a, const LoadX& load_x,
                   const ReadReset& read_reset, const Fetch& fetch, const CopyOutput& copy_output,
                   const Put& put) {
  const Lane& l = step.l;
  float x[4], after[4], keep[4];
  bool is_reset[2];
  auto begin = [&] {  // apply reset and mask, and store the operand of the next step's products
    u32 v[2];
    float seen[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if constexpr (RESET)
        if (is_reset[i & 1]) h[i] = a.start[(i64)place[i & 1] * H + l.unit[i >> 1]];
      seen[i] = MASK ? h[i] * mask[i] : h[i];
    }
    narrow(v, seen);
    store_buffer(memory + AT_H, v[0], v[1], l);
  };
  copy_output();
  if constexpr (RESET) read_reset(is_reset, 0);
  begin();
#pragma unroll
  for (int t = 0; t < RING - 1; t++) fetch(t);
  cp_async_wait<RING - 2>();
#pragma unroll 1
  for (int t = 0; t < end; t++) {
    auto on_arrival = [&] {
      const u32 stage = memory + AT_RING + t % RING * STAGE;
      u32 v[2];
      load_x(v, stage);
      widen(x, v);
      if constexpr (KEEP) {
        load_sequence(v, stage + SEQUENCE, l);
        widen(keep, v);
      }
      if constexpr (RESET) read_reset(is_reset, t + 1);
      fetch(t + RING - 1);
    };
    step.run(after, h, x, on_arrival, [&] { put(t - 1); });
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if constexpr (KEEP) after[i] += keep[i] * (h[i] - after[i]);
      h[i] = t < length[i & 1] ? after[i] : h[i];
    }
    copy_output();
    begin();
    cp_async_wait<RING - 2>();
  }
  put(end - 1);
}

// Recompute and write the intermediate values of this block's tiles; COLUMNS columns of a tile are written.
//   fetch(tile, place)       starts loading the input and the states of a tile into a stage of the ring
//   load_x(v, stage)         loads the input of a tile
//   token(tile, column)      returns which of the N steps a column holds
//   is_active(tile, column)  returns whether the column holds a step
//   finish(tile)             writes the remaining outputs of a tile
template <int RING, int AT_RING, int STAGE, int COLUMNS, class AnyStep, class LoadX, class Fetch, class Token,
          class IsActive, class Finish>
DEV void run_inside(AnyStep& step, i64 tiles, i64 N, u32 memory, const Inside& a, const LoadX& load_x,
                    const Fetch& fetch, const Token& token, const IsActive& is_active, const Finish& finish) {
  const Lane& l = step.l;
#pragma unroll
  for (int i = 0; i < RING - 1; i++) fetch(block() + (i64)i * blocks(), i);
  int place = 0;
#pragma unroll 1
  for (i64 tile = block(); tile < tiles; tile += blocks()) {
    cp_async_wait<RING - 2>();
    wait_block();
    u32 v[2];
    float h[4], x[4], seen[4], after[4];
    const u32 stage = memory + AT_RING + place * STAGE;
    load_x(v, stage);
    widen(x, v);
    load_sequence(v, stage + SEQUENCE, l);
    widen(h, v);
    fetch(tile + (i64)(RING - 1) * blocks(), (place + RING - 1) % RING);
    place = (place + 1) % RING;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      seen[i] = h[i];
      const i64 at = token(tile, 2 * l.pair + (i & 1));
      if constexpr (MASK) {
        float m = 0.f, none;
        if (at < N) unpack<TYPE>(m, none, (u32)a.mask[at / a.steps * H + l.unit[i >> 1]]);
        seen[i] *= m;
      }
    }
    narrow(v, seen);
    store_buffer(memory + AT_H, v[0], v[1], l);
    step.run(after, h, x, [] {}, [] {});
    const i64 at = (COLUMNS * tile + l.row) * H + 16 * l.warp + 2 * l.pair;
    auto put = [&](u16* to, const float (&value)[4]) {
      u32 p[2];
      narrow(p, value);
      transpose_both(p, p);
      if (is_active(tile, l.row)) {
        put_global(to + at, p[0]);
        put_global(to + at + 8, p[1]);
      }
    };
    float slope[4];
#pragma unroll
    for (int i = 0; i < 4; i++) slope[i] = gelu_slope(step.s[i]);
    put(a.seen, seen);
    put(a.q, step.q);
    put(a.aC, step.aC);
    put(a.slope, slope);
    put(a.o, step.o);
    put(a.g, step.g);
    if constexpr (NORM) put(a.n, step.xhat);
    finish(tile);
  }
}
