// A gated cell back through a chunk of time. Letters as in the cell's file (gru.cuh, lstm.cuh); d is a
// gradient. With NORM, U has no mean over the units of a gate, n = r U h is what is scaled, and g the
// gradient of n. That of U h is r (g - mean(g n) n), but for a mean that U^T takes to 0. Products do not wait
// for the sum over units in it: U^T r g is computed from what each unit has, and U^T n comes from batched
// products.
#define BACK 1
#include "gated/units.cuh"

constexpr int GATED_REVERSE_BYTES = GATED_BYTES, PREFETCH_STEPS = 4;

struct Reverse {
  // tiles of every U^T; the others as in the forward, with NORM alone
  const Element *weight, *bias, *scale;
  const Element *scale_c, *bias_c;
  const Element *dy, *x, *y, *c[3], *keep[4];  // (B, T, H), (B, T, INPUTS, H), ..
  // (B, steps, GATES, H): U h + b, or with NORM U h. If the forward pass kept it: (B, T, PLANES, H), of the
  // gates behind the first SUMMED, whose U h + b is in x already
  const Element* u;
  const Element* squares;            // with LATE: (B, steps, GATES, H), U^T U h / ROOT
  const float* spread;               // (B, T, SPREAD)
  const float *first[4], *start[4];  // (B, H)
  const Element* mask;
  const u8* reset;
  const i64* lengths;
  Element *dx, *du;  // (B, T, INPUTS, H), (B, steps, PLANES, H): of the gates behind the first SUMMED, too
  // (B, H): before the kernel the gradient of the state after the chunk, then of the one before
  float *ds[4], *dstart[4];
  float *dbias, *dscale, *dbias_c, *dscale_c;  // (GATES, B, H), (B, H): added to
  int B, T, from, steps;
  const Element* vectors;  // (VECTORS, H)
  float* dvectors;         // (VECTORS, B, H): added to
  int head_rows;           // as in the forward
  int time_first;          // as in the forward; (B, steps, ..) is then (steps, B, ..)
};

// On one block a sum over units takes less time than what would make up for it.
constexpr bool LATE = NORM && CLUSTER > 1;
constexpr int PLANES = GATES - SUMMED;
DEV constexpr int find_root(int n) {
  int r = 1;
  while (r * r < n) r++;
  return r;
}
constexpr float ROOT = find_root(H);  // keeps U^T U within the range of 16 bits

// What a lane loads of a step, unconverted: any use would wait for the load.
struct StepInputs {
  Pair dy, x[INPUTS], u[GATES], keep[STATES], past[STATES];
  float spread[SPREAD ? SPREAD : 1];
  int is_reset;
};
// The inside of that step.
struct StepValues {
  Inside in[2];
  float dy[2], past[2][STATES], keep[2][STATES], mhat[2], deviation_c;
  Pair u[GATES];
  float r[GATES];
  bool is_reset = false;  // also for a warp without a row, which looks at nothing
};

CLUSTER_KERNEL(gated_reverse, Reverse, THREADS, CLUSTER) {
  const Block b(a);
  const int row = b.first + b.column;
  const bool active = b.active && row < a.B;
  const Weights W(find_head(a.weight, GATES * H * H, a, b), b);
  float mask[2], ds[2][STATES], dstart[2][STATES] = {}, dbias[2][GATES] = {}, dscale[2][GATES] = {},
                                dbias_c[2] = {}, dscale_c[2] = {};
  const Units<NORM ? GATES : 1> bias(NORM ? find_head(a.bias, GATES * H, a, b) : nullptr, b.unit, b.active),
      scale(NORM ? find_head(a.scale, GATES * H, a, b) : nullptr, b.unit, b.active);
  const Units<1> scale_c(MEMORY ? find_head(a.scale_c, H, a, b) : nullptr, b.unit, b.active),
      bias_c(MEMORY ? find_head(a.bias_c, H, a, b) : nullptr, b.unit, b.active);
#if VECTORS
  float vectors[2][VECTORS], dvectors[2][VECTORS] = {};
  load_units(vectors, find_head(a.vectors, VECTORS * H, a, b), b.unit, b.active);
#endif
  const i64 at = active ? (i64)row * H + b.unit : 0;
#pragma unroll
  for (int e = 0; e < 2; e++) {
#pragma unroll
    for (int i = 0; i < STATES; i++) ds[e][i] = active ? a.ds[i][at + e] : 0.f;
    if constexpr (MASK) mask[e] = active ? get_one(a.mask + at + e) : 0.f;
  }
  int length, end;
  find_lengths(length, end, a.lengths, a.B, a.T, b);
  // where its steps begin
  const i64 stride = a.time_first ? a.B : 1, whole = active ? (i64)row * (a.time_first ? 1 : a.T) : 0,
            piece = active ? (i64)row * (a.time_first ? 1 : a.steps) - a.from * stride : 0;
  auto fetch = [&](StepInputs& v, int t) {  // two steps before it is needed
    const i64 i = whole + t * stride, j = piece + t * stride;
    v = {};
    if (active && t >= a.from && t < length) {
      const Element *x = a.x + i * INPUTS * H + b.unit,
                    *u = a.u + (SUMMED || KEPT ? i : j) * PLANES * H + b.unit;
      const Element *dy = a.dy + i * H + b.unit, *y = a.y + i * H + b.unit;
      v.dy = get_pair(dy);
#pragma unroll
      for (int k = 0; k < most(INPUTS, GATES); k++) {
        if (k < INPUTS) v.x[k] = get_pair(x + k * H);
        if (k >= SUMMED && k < GATES) v.u[k] = get_pair(u + (k - SUMMED) * H);
      }
      if constexpr (RESET) v.is_reset = a.reset[i];
#pragma unroll
      for (int k = 0; k < STATES; k++) {
        if constexpr (KEEP) v.keep[k] = get_pair(a.keep[k] + i * H + b.unit);
        if (t > 0) v.past[k] = get_pair((k ? a.c[k - 1] + i * H + b.unit : y) - stride * H);
      }
#pragma unroll
      for (int k = 0; k < SPREAD; k++) v.spread[k] = get_constant(a.spread + i * SPREAD + k);
      if (t - PREFETCH_STEPS >= a.from) {
        const i64 before = PREFETCH_STEPS * stride;
        prefetch_global(dy - before * H);
        prefetch_global(y - before * H);
#pragma unroll
        for (int k = 0; k < most(INPUTS, PLANES); k++) {
          if (k < INPUTS) prefetch_global(x + (k - before * INPUTS) * H);
          if (k < PLANES) prefetch_global(u + (k - before * PLANES) * H);
          if (LATE && k < GATES) prefetch_global(a.squares + ((j - before) * GATES + k) * H + b.unit);
        }
      }
    }
  };
  auto prepare = [&](StepValues& n, const StepInputs& v, int t) {  // what depends on no later step
    float x[2][INPUTS], u[2][GATES];
    n.is_reset = v.is_reset;
    from_pair(n.dy[0], n.dy[1], v.dy);
#pragma unroll
    for (int k = 0; k < most(INPUTS, GATES); k++) {
      if (k < INPUTS) from_pair(x[0][k], x[1][k], v.x[k]);
      if (k >= GATES) continue;
      if (k < SUMMED)
        u[0][k] = u[1][k] = 0.f;
      else
        from_pair(u[0][k], u[1][k], v.u[k]);
      if constexpr (NORM) {
        float by[2], plus[2];
        scale.get(by, k);
        bias.get(plus, k);
        n.r[k] = v.spread[k];
        n.u[k] = v.u[k];
#pragma unroll
        for (int e = 0; e < 2; e++) u[e][k] = u[e][k] * n.r[k] * by[e] + plus[e];
      }
    }
#pragma unroll
    for (int i = 0; i < STATES; i++) {
      from_pair(n.past[0][i], n.past[1][i], v.past[i]);
      if (active && (t == 0 || v.is_reset))
        get_global(n.past[0][i], n.past[1][i], (v.is_reset ? a.start[i] : a.first[i]) + at);
      if constexpr (KEEP) from_pair(n.keep[0][i], n.keep[1][i], v.keep[i]);
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
      n.in[e] = compute_inside(x[e], u[e], n.past[e] VECTOR_ARGUMENT(vectors[e]));
#if MEMORY
      float by[2], plus[2];
      scale_c.get(by, 0);
      bias_c.get(plus, 0);
      n.deviation_c = v.spread[GATES + 1];
      n.mhat[e] = (n.in[e].c - v.spread[GATES]) * n.deviation_c;
      n.in[e].q = hyperbolic_tangent(n.mhat[e] * by[e] + plus[e]);
#endif
    }
  };
  const int last = a.from + a.steps - 1, top = end - 1 < last ? end - 1 : last;
  if (active)
    for (int t = last; t > top && t >= a.from; t--)  // where no row of the cluster has a step
#pragma unroll
      for (int k = 0; k < most(INPUTS, GATES); k++) {
        if (k < INPUTS) put_pair(a.dx + ((whole + t * stride) * INPUTS + k) * H + b.unit, Pair{});
        if (k >= SUMMED && k < GATES)
          put_pair(a.du + ((piece + t * stride) * PLANES + k - SUMMED) * H + b.unit, Pair{});
      }
  b.open();
  StepInputs next;
  StepValues n;
  if (b.has_row) {
    fetch(next, top);
    prepare(n, next, top);
    fetch(next, top - 1);
  }
  auto prepare_next = [&](int t) {
    prepare(n, next, t - 1);
    fetch(next, t - 2);
  };
#pragma unroll 1
  for (int t = top; t >= a.from; t--) {
    const int i = top - t;
    float acc[2][STATES];
    // of this step: g and n
    float sums[GATES], r[GATES];
    Pair all[GATES], u[LATE ? GATES : 1] = {}, squares[LATE ? GATES : 1] = {};
    // Sum g n of this lane's units for every gate: r g times U h. du: the gradients of what was scaled.
    auto sum_shares = [&](const float (&sent)[2][GATES], const float (&du)[2][GATES]) {
#pragma unroll
      for (int k = 0; k < GATES; k++) {
        float v[2];
        from_pair(v[0], v[1], n.u[k]);
        sums[k] = sent[0][k] * v[0] + sent[1][k] * v[1];
#pragma unroll
        for (int e = 0; e < 2; e++) dscale[e][k] += du[e][k] * (v[e] * n.r[k]);
      }
    };
    const bool is_reset = n.is_reset;
    b.expect_all(i);
    if (b.has_row) {
      float d[2][STATES], dx[2][INPUTS], du[2][GATES];
      const bool valid = t < length;
#pragma unroll
      for (int e = 0; e < 2; e++)
#pragma unroll
        for (int k = 0; k < STATES; k++) {
          const float dafter = valid ? ds[e][k] + (k == OUTPUT ? n.dy[e] : 0.f) : 0.f;
          acc[e][k] = KEEP ? dafter * n.keep[e][k] : 0.f;
          d[e][k] = KEEP ? dafter - acc[e][k] : dafter;
        }
#if MEMORY
      float dm[2], v[2] = {}, by[2];
      scale_c.get(by, 0);
#pragma unroll
      for (int e = 0; e < 2; e++) {
        dm[e] = find_memory_gradient(d[e], n.in[e]);
        dbias_c[e] += dm[e];
        dscale_c[e] += dm[e] * n.mhat[e];
        dm[e] *= by[e];
        v[0] += dm[e];
        v[1] += dm[e] * n.mhat[e];
      }
      b.template sum_row<1>(v, i, [] {});
#pragma unroll
      for (int e = 0; e < 2; e++)
        backpropagate(d[e], dx[e], du[e], n.in[e], n.past[e],
                      n.deviation_c * (dm[e] - v[0] * (1.0f / H) - n.mhat[e] * (v[1] * (1.0f / H))));
#else
#pragma unroll
      for (int e = 0; e < 2; e++)
        backpropagate(d[e], dx[e], du[e], n.in[e],
                      n.past[e] VECTOR_ARGUMENT(vectors[e]) VECTOR_ARGUMENT(dvectors[e]));
#endif
#pragma unroll
      for (int e = 0; e < 2; e++) {
#pragma unroll
        for (int k = 0; k < STATES; k++) acc[e][k] += d[e][k];
#pragma unroll
        for (int k = 0; k < GATES; k++) dbias[e][k] += du[e][k];
      }
      float sent[2][GATES];
#pragma unroll
      for (int k = 0; k < GATES; k++)
#pragma unroll
        for (int e = 0; e < 2; e++) sent[e][k] = du[e][k];
      if constexpr (NORM) {
#pragma unroll
        for (int k = 0; k < GATES; k++) {
          float by[2];
          scale.get(by, k);
#pragma unroll
          for (int e = 0; e < 2; e++) sent[e][k] *= by[e] * n.r[k];
        }
        if constexpr (!LATE) {
          sum_shares(sent, du);
          b.template sum_row<0>(sums, i, [] {});
#pragma unroll
          for (int k = 0; k < GATES; k++) {
            const float share = sums[k] * (1.0f / H) * n.r[k] * n.r[k];
            float v[2];
            from_pair(v[0], v[1], n.u[k]);
#pragma unroll
            for (int e = 0; e < 2; e++) sent[e][k] -= share * v[e];
          }
        }
      }
#pragma unroll
      for (int k = 0; k < GATES; k++) all[k] = to_pair(sent[0][k], sent[1][k]);
      b.share(all, i);
      if constexpr (LATE) {
        sum_shares(sent, du);
#pragma unroll
        for (int k = 0; k < GATES; k++) {
          u[k] = n.u[k];
          r[k] = n.r[k];
        }
      }
      if (active)
#pragma unroll
        for (int k = 0; k < most(INPUTS, GATES); k++) {
          if (k >= SUMMED && k < GATES && !LATE)
            put_pair(a.du + ((piece + t * stride) * PLANES + k - SUMMED) * H + b.unit, all[k]);
          if (k < INPUTS)
            put_pair(a.dx + ((whole + t * stride) * INPUTS + k) * H + b.unit, to_pair(dx[0][k], dx[1][k]));
        }
    }
    auto do_meanwhile = [&] {
      if (!b.has_row) return;
      if constexpr (LATE) {
        b.template send_sums<0>(sums, i);
        if (active && t < length)
#pragma unroll
          for (int k = 0; k < GATES; k++)
            squares[k] = get_pair(a.squares + ((piece + t * stride) * GATES + k) * H + b.unit);
      }
      prepare_next(t);
    };
    if (CLUSTER > 1) do_meanwhile();
    // in the time of a product; above, of a message
    Block::Inbox in;
    auto look_around = [&] {
      if (LATE && b.has_row) b.template look_for_sums<0>(in, i);
    };
    auto do_last = [&] {
      if (CLUSTER == 1) do_meanwhile();
      look_around();
    };
    compute_products(W, i, b, do_last, look_around);
    wait_block();
    if (b.has_row) {
      float dseen[2][UNIT_PRODUCTS];
      b.get_sums(dseen);
      if constexpr (LATE) {
        b.template take_sums<0>(sums, in, i);
#pragma unroll
        for (int k = 0; k < GATES; k++) {
          const float share = sums[k] * (1.0f / H) * r[k] * r[k];
          float d[2], v[2], w[2];
          from_pair(d[0], d[1], all[k]);
          from_pair(v[0], v[1], u[k]);
          from_pair(w[0], w[1], squares[k]);
#pragma unroll
          for (int e = 0; e < 2; e++) {
            d[e] -= share * v[e];
            dseen[e][0] -= ROOT * share * w[e];
          }
          if (active) put_pair(a.du + ((piece + t * stride) * GATES + k) * H + b.unit, to_pair(d[0], d[1]));
        }
      }
#pragma unroll
      for (int e = 0; e < 2; e++) {
        acc[e][0] += MASK ? mask[e] * dseen[e][0] : dseen[e][0];
#pragma unroll
        for (int k = 0; k < STATES; k++) {
          if constexpr (RESET)
            if (is_reset) {
              dstart[e][k] += acc[e][k];
              acc[e][k] = 0.f;
            }
          ds[e][k] = t < length ? acc[e][k] : ds[e][k];
        }
      }
    }
  }
  if (active)
#pragma unroll
    for (int e = 0; e < 2; e++) {
#pragma unroll
      for (int k = 0; k < STATES; k++) {
        a.ds[k][at + e] = ds[e][k];
        if constexpr (RESET) a.dstart[k][at + e] += dstart[e][k];
      }
#pragma unroll
      for (int k = 0; k < GATES; k++) {
        const i64 j = (i64)k * a.B * H + at + e;
        a.dbias[j] += dbias[e][k];
        if constexpr (NORM) a.dscale[j] += dscale[e][k];
      }
#if VECTORS
#pragma unroll
      for (int k = 0; k < VECTORS; k++) a.dvectors[(i64)k * a.B * H + at + e] += dvectors[e][k];
#endif
      if constexpr (MEMORY) {
        a.dbias_c[at + e] += dbias_c[e];
        a.dscale_c[at + e] += dscale_c[e];
      }
    }
  b.close();
}
