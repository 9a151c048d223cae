// AttnRNN forward with the units divided among blocks: a cluster, or a group of blocks of the grid (GRID),
// runs all steps of its rows. Equations as in step.cuh.
#include "attn_rnn/math.cuh"
#include "attn_rnn/product.cuh"

constexpr bool MIX_CONTEXT = CAN_MIX && !MASK;  // every block computes aC instead of receiving it
// Whether to compute aC directly after q: there is no other 8-row group whose product could overlap the
// exchange of the sums over heads, or these sums need no exchange between blocks.
constexpr bool ATTEND_AT_ONCE = !MIX_CONTEXT && (ROW_GROUPS == 1 || !SPLIT_HEADS);

CLUSTER_KERNEL(attn_rnn_cluster_forward, Forward, THREADS, CLUSTER) {
  Block b(a);
  const int row = b.first + b.column;
  const bool active = b.active && row < a.B;
  Weight<0> Wq;
  Weight<TILES_IN_SHARED> Wo;
  Weight<(WEIGHTS_IN_SHARED > 0) * DEEP> Wh;
  Weight<(WEIGHTS_IN_SHARED > 1) * DEEP, (WEIGHTS_IN_SHARED > 1) * PRELOAD_TILES> Wc;
  Wq.load(a.w.q, H, b);
  Wo.load(a.w.o, H, b, WEIGHTS_IN_SHARED);
  Wh.load(a.w.g, 2 * H, b, 0);
  Wc.load(a.w.g + H, 2 * H, b, 1);
  const Pair bq = load_pair(a.w.bias_q + b.unit, b.active), bo = load_pair(a.w.bias_o + b.unit, b.active),
             bg = load_pair(a.w.bias_g + b.unit, b.active);
  const Pair scale = load_pair(a.w.scale + b.unit, NORM && b.active),
             bias = load_pair(a.w.bias + b.unit, NORM && b.active);
  float h[2], x[2], keep[2];
  const i64 at = active ? (i64)row * H + b.unit : 0;
#pragma unroll
  for (int e = 0; e < 2; e++) h[e] = active ? a.h0[at + e] : 0.f;
  const Pair mask = load_pair(a.mask + at, MASK && active);
  int length, end;
  b.read_lengths(length, end, a.lengths, a.B, a.T);
  const Element *xs = a.x + (active ? (i64)row * a.x_row + b.unit : 0),
                *keeps = a.keep + (KEEP && active ? (i64)row * a.T * H + b.unit : 0);
  Element* y = a.y + (active ? (i64)row * a.y_row + b.unit : 0);
  Pair next_x{}, next_keep{};
  bool is_reset = false;
  auto fetch = [&](int t) {  // issued one step ahead
    const bool valid = active && t < length;
    next_x = valid ? get_pair(xs + (i64)t * a.x_step) : Pair{};
    if constexpr (KEEP) next_keep = valid ? get_pair(keeps + (i64)t * H) : Pair{};
  };
  auto read_reset = [&](int t) {
    if constexpr (RESET) is_reset = active && t < length && a.reset[(i64)row * a.T + t];
  };
  auto begin = [&] {  // apply reset and mask to h for the products of the next step, and send it
    float seen[2], m[2];
    from_pair(m[0], m[1], mask);
#pragma unroll
    for (int e = 0; e < 2; e++) {
      if constexpr (RESET)
        if (is_reset) h[e] = a.start[at + e];
      seen[e] = MASK ? h[e] * m[e] : h[e];
    }
    b.share(FIRST, to_pair(seen[0], seen[1]));
  };
  auto fetch_units = [&](int t) {
    if (MIX_CONTEXT && row < a.B && t < end)
      b.fetch_units(a.x + (i64)row * a.x_row + (i64)t * a.x_step, SECOND);
  };
  if constexpr (MIX_CONTEXT) b.send_to_all();
  b.open();
  read_reset(0);
  fetch(0);
  if (b.has_row) fetch_units(0);
  if (b.has_row && end > 0) begin();
#pragma unroll 1
  for (int t = 0; t < end; t++) {
    const u32 parity = t & 1;
    b.expect_all(THIRD, MIX_CONTEXT ? SECOND : -1);
    Sums gate[ROW_GROUPS] = {};
    float s[2], o[2] = {}, z[2];
    from_pair(x[0], x[1], next_x);
    if constexpr (KEEP) from_pair(keep[0], keep[1], next_keep);
    fetch(t + 1);
    read_reset(t + 1);
    auto attend = [&] {
      float sum[PER][3], aC[2];
      b.get_scores(sum, parity);
#pragma unroll
      for (int e = 0; e < PER; e++) {
        float w[4];
        compute_attention(w, sum[e][0], sum[e][1], sum[e][2]);
#pragma unroll
        for (int i = e; i < 2; i += PER)
          aC[i] = (w[0] + w[2]) * h[i] + ((w[1] + w[2]) * x[i] + w[3] * (h[i] * x[i]));
      }
      b.share(SECOND, to_pair(aC[0], aC[1]));
    };
    auto take_attended = [&](int g) {
      if constexpr (MIX_CONTEXT)
        b.take_mixture(a.x + (i64)t * a.x_step, a.x_row, parity, g,
                       [](float (&c)[3], const float (&sum)[3], int) {
                         float w[4];
                         compute_attention(w, sum[0], sum[1], sum[2]);
                         c[0] = w[0] + w[2];
                         c[1] = w[1] + w[2];
                         c[2] = w[3];
                       });
      else
        b.take(SECOND, parity, g);
    };
    EACH_ROW_GROUP(g, b) {
      Sums c = {};
      b.take(FIRST, parity, g);
      multiply(c, Wq, FIRST, b, g);
      b.put_part(c, g);
      if constexpr (MIX_CONTEXT) b.wait_units();
      b.gather(g);
      if (b.is_member(g)) {
        float q[2], p[3][2];
        b.get_sum(q, bq);
#pragma unroll
        for (int e = 0; e < 2; e++) {
          p[0][e] = q[e] * h[e];
          p[1][e] = q[e] * x[e];
          p[2][e] = q[e] * (h[e] * x[e]);
        }
        b.share_scores(p);
        if constexpr (ATTEND_AT_ONCE) attend();
      }
      multiply(gate[g], Wh, FIRST, b, g);  // used much later in the step
    }
    if (!ATTEND_AT_ONCE && !MIX_CONTEXT && b.has_row) attend();
    EACH_ROW_GROUP(g, b) {
      Sums c = {};
      take_attended(g);
      multiply(c, Wo, MIX_CONTEXT ? MIXTURE : SECOND, b, g);
      b.put_part(c, g);
      b.gather(g);
      if (b.is_member(g)) {
        b.get_sum(s, bo);
#pragma unroll
        for (int e = 0; e < 2; e++) {
          o[e] = b.active ? gelu(s[e]) : 0.f;
          z[e] = o[e] + h[e];
        }
        b.share(THIRD, to_pair(o[0], o[1]));
        if constexpr (NORM) b.share_moments(THIRD, z);
        fetch_units(t + 1);
      }
    }
    Wc.prepare();
    EACH_ROW_GROUP(g, b) {
      b.take(THIRD, parity, g);
      multiply(gate[g], Wc, THIRD, b, g);
      b.put_part(gate[g], g);
      float mean = 0.f, r = 1.f;
      if constexpr (NORM && EARLY_SUMS)
        if (b.is_member(g)) b.get_moments(mean, r);
      b.gather(g);
      if constexpr (NORM && !EARLY_SUMS)
        if (b.is_member(g)) b.get_moments(mean, r);
      if (b.is_member(g)) {
        float gate[2], w[2], v[2];
        b.get_sum(gate, bg);
        from_pair(w[0], w[1], scale);
        from_pair(v[0], v[1], bias);
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const float n = NORM ? (z[e] - mean) * r * w[e] + v[e] : o[e];
          float after = h[e] + sigmoid(gate[e]) * (n - h[e]);
          if constexpr (KEEP) after += keep[e] * (h[e] - after);
          h[e] = t < length ? after : h[e];
        }
        const Pair out = to_pair(h[0], h[1]);
        if (t + 1 < end) begin();
        if (active && t < length) put_pair(y + (i64)t * a.y_step, out);
      }
    }
  }
#pragma unroll
  for (int e = 0; e < 2; e++)
    if (active) a.last[at + e] = h[e];
  b.close();
}
