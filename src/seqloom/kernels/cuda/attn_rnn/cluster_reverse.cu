// Backward pass of AttnRNN over a chunk of steps with the units divided among blocks, from recomputed
// intermediates. Letters as in block_reverse.cu.
#include "attn_rnn/product.cuh"

// Values that a lane loads for a step.
struct StepInputs {
  Pair dy, x, keep, q, slope, g, n;
  float past[2], attention[PER][4], deviation;
  bool is_reset;
};

CLUSTER_KERNEL(attn_rnn_cluster_reverse, Reverse, THREADS, CLUSTER) {
  Block b(a);
  const int row = b.first + b.column;
  const bool active = b.active && row < a.B;
  Weight<TILES_IN_SHARED> Wo;
  Weight<0> Wc;
  Weight<(WEIGHTS_IN_SHARED > 0) * DEEP> Wh;
  Weight<(WEIGHTS_IN_SHARED > 1) * DEEP, (WEIGHTS_IN_SHARED > 1) * PRELOAD_TILES_BACK> Wq;
  Wo.load(a.w.o, H, b, WEIGHTS_IN_SHARED);
  Wc.load(a.w.g + (i64)H * H, H, b);
  Wh.load(a.w.g, H, b, 0);
  Wq.load(a.w.q, H, b, 1);
  const Pair scale = load_pair(a.w.scale + b.unit, NORM && b.active),
             bias = load_pair(a.w.bias + b.unit, NORM && b.active);
  float dh[2], dstart[2] = {};
  const i64 at = active ? (i64)row * H + b.unit : 0;
#pragma unroll
  for (int e = 0; e < 2; e++) dh[e] = active ? a.dh[at + e] : 0.f;
  const Pair mask = load_pair(a.mask + at, MASK && active);
  int length, end;
  b.read_lengths(length, end, a.lengths, a.B, a.T);
  // index of the row's step 0 in (B, T), and in (B, steps), which begins at step a.from
  const i64 whole = active ? (i64)row * a.T : 0, piece = active ? (i64)row * a.steps - a.from : 0;
  auto fetch = [&](StepInputs& v, int t) {  // load the inputs of step t, before it begins
    const bool valid = active && t >= a.from && t < length;
    const i64 i = valid ? (whole + t) * H + b.unit : 0, k = valid ? piece + t : 0,
              j = k * H + (valid ? b.unit : 0);
    v.dy = valid ? get_pair(a.dy + i) : Pair{};
    v.x = valid ? get_pair(a.x + i) : Pair{};
    if constexpr (KEEP) v.keep = valid ? get_pair(a.keep + i) : Pair{};
    v.q = valid ? get_pair(a.q + j + k * H) : Pair{};
    v.slope = valid ? get_pair(a.slope + j) : Pair{};
    v.g = valid ? get_pair(a.g + j) : Pair{};
    v.n = valid ? get_pair(a.n + j) : Pair{};
#pragma unroll
    for (int e = 0; e < 2; e++) v.past[e] = valid ? a.past[j + e] : 0.f;
#pragma unroll
    for (int e = 0; e < PER; e++)
#pragma unroll
      for (int m = 0; m < 4; m++)
        v.attention[e][m] = valid ? a.attention[(k * HEADS + (b.unit + e) / D) * 4 + m] : 0.f;
    if constexpr (NORM) v.deviation = valid ? a.deviation[k] : 0.f;
    v.is_reset = false;
    if constexpr (RESET) v.is_reset = valid && a.reset[whole + t];
  };
  auto prefetch = [&](int t) {  // like fetch, but only into the L2 cache
    if (active && t >= a.from && t < length) {
      const i64 i = (whole + t) * H + b.unit, k = piece + t, j = k * H + b.unit;
      prefetch_global(a.dy + i);
      prefetch_global(a.x + i);
      if constexpr (KEEP) prefetch_global(a.keep + i);
      prefetch_global(a.q + j + k * H);
      prefetch_global(a.slope + j);
      prefetch_global(a.g + j);
      prefetch_global(a.n + j);
      prefetch_global(a.past + j);
      prefetch_global(a.attention + (k * HEADS + b.unit / D) * 4);
      if constexpr (NORM) prefetch_global(a.deviation + k);
    }
  };
  const int last = a.from + a.steps - 1, top = end - 1 < last ? end - 1 : last;
  if (active)
    for (int t = last; t > top && t >= a.from; t--) {  // zeros past the longest row of the group
      const i64 j = (piece + t) * H + b.unit;
      put_pair(a.du + (whole + t) * H + b.unit, Pair{});
      put_pair(a.dn + j, Pair{});
      put_pair(a.dg + j, Pair{});
      put_pair(a.ds + j, Pair{});
      put_pair(a.dq + j, Pair{});
    }
  b.open();
  StepInputs next;
  fetch(next, top);
  const float root = TYPE == FP32 ? 1.f / sqrtf((float)REAL_D) : inverse_root((float)REAL_D);
#pragma unroll 1
  for (int t = top; t >= a.from; t--) {
    const u32 parity = (top - t) & 1;
    const StepInputs v = next;
    b.expect_all(FIRST);
    float h[2], x[2], g[2], n[2], slope[2], acc[2], dn[2], dx[2], dgate[2];
    const i64 offset = (piece + t) * H + b.unit;
    if (b.has_row) {
      float dy[2], keep[2], w[2], u[2];
      from_pair(w[0], w[1], scale);
      from_pair(u[0], u[1], bias);
      from_pair(dy[0], dy[1], v.dy);
      from_pair(x[0], x[1], v.x);
      from_pair(g[0], g[1], v.g);
      from_pair(n[0], n[1], v.n);
      from_pair(slope[0], slope[1], v.slope);
      if constexpr (KEEP) from_pair(keep[0], keep[1], v.keep);
#pragma unroll
      for (int e = 0; e < 2; e++) {
        h[e] = v.past[e];
        const float dafter = t < length ? dy[e] + dh[e] : 0.f,
                    rest = KEEP ? dafter * (1.f - keep[e]) : dafter;
        dn[e] = rest * g[e];
        acc[e] = KEEP ? rest - dn[e] + dafter * keep[e] : rest - dn[e];
        dgate[e] = ((NORM ? n[e] * w[e] + u[e] : n[e]) - h[e]) * (rest - dn[e]) * g[e];
        dx[e] = NORM ? dn[e] * w[e] : dn[e];
      }
      const Pair p = to_pair(dgate[0], dgate[1]);
      b.share(FIRST, p);
      if constexpr (NORM) b.share_sums(FIRST, dx[0] + dx[1], dx[0] * n[0] + dx[1] * n[1]);
      if (active) {
        put_pair(a.dg + offset, p);
        put_pair(a.dn + offset, to_pair(dn[0], dn[1]));
      }
    }
    if constexpr (FETCH_LATE)
      prefetch(t - 1);
    else
      fetch(next, t - 1);
    Sums back[ROW_GROUPS] = {};
    float vC[2];
    EACH_ROW_GROUP(i, b) {
      Sums c = {};
      b.take(FIRST, parity, i);
      multiply(c, Wc, FIRST, b, i);
      b.put_part(c, i);
      float mean = 0.f, both = 0.f;
      if constexpr (NORM && EARLY_SUMS)
        if (b.is_member(i)) b.get_sums(mean, both);
      b.gather(i);
      if constexpr (NORM && !EARLY_SUMS)
        if (b.is_member(i)) b.get_sums(mean, both);
      if (b.is_member(i)) {
        float ds[2];
        b.get_sum(ds, Pair{});
#pragma unroll
        for (int e = 0; e < 2; e++) {
          if constexpr (NORM) {
            dx[e] = v.deviation * (dx[e] - mean * (1.0f / REAL_H) - n[e] * (both * (1.0f / REAL_H)));
            acc[e] += dx[e];
          }
          ds[e] = (ds[e] + dx[e]) * slope[e];
        }
        const Pair p = to_pair(ds[0], ds[1]);
        b.share(SECOND, p);
        if (active) put_pair(a.ds + offset, p);
      }
      multiply(back[i], Wh, FIRST, b, i);  // used much later in the step
    }
    EACH_ROW_GROUP(i, b) {
      Sums c = {};
      b.take(SECOND, parity, i);
      multiply(c, Wo, SECOND, b, i);
      b.put_part(c, i);
      b.gather(i);
      if (b.is_member(i)) {
        float p[3][2];
        b.get_sum(vC, Pair{});
#pragma unroll
        for (int e = 0; e < 2; e++) {
          p[0][e] = vC[e] * h[e];
          p[1][e] = vC[e] * x[e];
          p[2][e] = vC[e] * (h[e] * x[e]);
        }
        b.share_scores(p);
      }
    }
    if (b.has_row) {
      float q[2], sum[PER][3], dq[2], du[2];
      from_pair(q[0], q[1], v.q);
      b.get_scores(sum, parity);
#pragma unroll
      for (int e = 0; e < PER; e++) {
        const float (&s)[3] = sum[e], (&k)[4] = v.attention[e];
        const float two = s[0] + s[1], mid = k[0] * s[0] + k[1] * s[1] + k[2] * two + k[3] * s[2],
                    shared = k[2] * (two - mid);
        const float zh = root * (k[0] * (s[0] - mid) + shared), zx = root * (k[1] * (s[1] - mid) + shared),
                    zp = root * k[3] * (s[2] - mid);
#pragma unroll
        for (int i = e; i < 2; i += PER) {
          const float product = k[3] * vC[i] + zp * q[i];
          dq[i] = zh * h[i] + x[i] * (zx + zp * h[i]);
          acc[i] += (k[0] + k[2]) * vC[i] + zh * q[i] + x[i] * product;
          du[i] = (k[1] + k[2]) * vC[i] + zx * q[i] + h[i] * product;
        }
      }
      const Pair o = to_pair(dq[0], dq[1]);
      b.share(THIRD, o);
      if (active) {
        put_pair(a.dq + offset, o);
        put_pair(a.du + (whole + t) * H + b.unit, to_pair(du[0], du[1]));
      }
    }
    if constexpr (FETCH_LATE) fetch(next, t - 1);
    Wq.prepare();
    EACH_ROW_GROUP(i, b) {
      b.take(THIRD, parity, i);
      multiply(back[i], Wq, THIRD, b, i);
      b.put_part(back[i], i);
      b.gather(i);
      if (b.is_member(i)) {
        float dseen[2], m[2];
        from_pair(m[0], m[1], mask);
        b.get_sum(dseen, Pair{});
#pragma unroll
        for (int e = 0; e < 2; e++) {
          acc[e] += MASK ? m[e] * dseen[e] : dseen[e];
          if constexpr (RESET)
            if (v.is_reset) {
              dstart[e] += acc[e];
              acc[e] = 0.f;
            }
          dh[e] = t < length ? acc[e] : dh[e];
        }
      }
    }
  }
  if (active)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      a.dh[at + e] = dh[e];
      if constexpr (RESET) a.dstart[at + e] += dstart[e];
    }
  b.close();
}
