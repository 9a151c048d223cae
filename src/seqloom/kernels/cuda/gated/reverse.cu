// Backward pass of a gated cell through a chunk of time steps. Letters as in the cell's file (gru.cuh,
// lstm.cuh); the prefix d marks a gradient. With NORM, U is centred over the units of a gate, n = r U h is
// the normalised product before the scale, and g is the gradient of n. The gradient of U h is
// r (g - mean(g n) n), up to a constant per gate, which U^T maps to 0. With LATE, the recurrent product does
// not wait for mean(g n), a sum over all units: it computes U^T r g, and U^T n comes from batched GEMMs
// (squares).
#include "gated/reverse_step.cuh"

constexpr int GATED_REVERSE_BYTES = GATED_BYTES, PREFETCH_STEPS = 4;

struct Reverse {
  // weight: tiles of U^T of every gate; bias and scale as in the forward pass, only with NORM
  const Element *weight, *bias, *scale;
  const Element *scale_c, *bias_c;
  const Element *dy, *x, *y, *c[3], *keep[4];  // (B, T, H), (B, T, INPUTS, H), ..
  // (B, steps, GATES, H): U h + b, or U h with NORM. If the forward pass saved it: (B, T, PLANES, H), without
  // the first SUMMED gates, whose U h + b is already part of x
  const Element* u;
  const Element* squares;            // with LATE: (B, steps, GATES, H), U^T U h / ROOT of each gate
  const float* spread;               // (B, T, SPREAD)
  const float *first[4], *start[4];  // (B, H)
  const Element* mask;
  const u8* reset;
  const i64* lengths;
  Element *dx, *du;  // (B, T, INPUTS, H); (B, steps, PLANES, H), without the first SUMMED gates
  // (B, H): on entry the gradient of the state after the chunk, on return that of the state before it
  float *ds[4], *dstart[4];
  float *dbias, *dscale, *dbias_c, *dscale_c;  // (GATES, B, H), (B, H): accumulated into
  int B, T, from, steps;
  const Element* vectors;  // (VECTORS, H)
  float* dvectors;         // (VECTORS, B, H): accumulated into
  int head_rows;           // as in the forward pass
  int time_first;          // as in the forward pass; (B, steps, ..) is then (steps, B, ..)
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
  // offsets of the row's step 0 in arrays of T steps (whole) and of the chunk's steps (piece)
  const i64 stride = a.time_first ? a.B : 1, whole = active ? (i64)row * (a.time_first ? 1 : a.T) : 0,
            piece = active ? (i64)row * (a.time_first ? 1 : a.steps) - a.from * stride : 0;
  auto fetch = [&](StepInputs& v, int t) {  // load the inputs of step t, two steps ahead of their use
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
  // Compute the values of step t that do not depend on later steps.
  auto prepare = [&](StepValues& n, const StepInputs& v, int t) {
    float x[2][INPUTS], u[2][GATES], past[2][STATES];
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
        for (int e = 0; e < 2; e++) {
          const float normal = u[e][k] * n.r[k];
          u[e][k] = normal * by[e] + plus[e];
#if HELPS
          n.n[e][k] = normal;
          n.gain[e][k] = n.r[k] * by[e];
#endif
        }
      }
    }
#pragma unroll
    for (int i = 0; i < STATES; i++) {
      from_pair(past[0][i], past[1][i], v.past[i]);
      if (active && (t == 0 || v.is_reset))
        get_global(past[0][i], past[1][i], (v.is_reset ? a.start[i] : a.first[i]) + at);
      if constexpr (KEEP) from_pair(n.keep[0][i], n.keep[1][i], v.keep[i]);
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
      Inside in = compute_inside(x[e], u[e], past[e] VECTOR_ARGUMENT(vectors[e]));
#if MEMORY
      float by[2], plus[2];
      scale_c.get(by, 0);
      bias_c.get(plus, 0);
      n.deviation_c = v.spread[GATES + 1];
      n.mhat[e] = (in.c - v.spread[GATES]) * n.deviation_c;
      in.q = hyperbolic_tangent(n.mhat[e] * by[e] + plus[e]);
#endif
#if NORM
      find_factors(n.factors[e], in, past[e]);
#else
      n.in[e] = in;
#pragma unroll
      for (int i = 0; i < STATES; i++) n.past[e][i] = past[e][i];
#endif
    }
  };
  const int last = a.from + a.steps - 1, top = end - 1 < last ? end - 1 : last;
  if (active && b.has_row)
    for (int t = last; t > top && t >= a.from; t--)  // zero gradients past the longest row of the cluster
#pragma unroll
      for (int k = 0; k < most(INPUTS, GATES); k++) {
        if (k < INPUTS) put_pair(a.dx + ((whole + t * stride) * INPUTS + k) * H + b.unit, Pair{});
        if (k >= SUMMED && k < GATES)
          put_pair(a.du + ((piece + t * stride) * PLANES + k - SUMMED) * H + b.unit, Pair{});
      }
  StepInputs next;
  StepValues n;
  auto prepare_next = [&](int t) {
    prepare(n, next, t - 1);
#if HELPS
    hand_over(n, top - t + 1, b);
#endif
    fetch(next, t - 2);
  };
  auto prepare_first = [&] {
    fetch(next, top);
    prepare_next(top + 1);
  };
  // Return n, the normalised product, of gate k.
  auto find_normal = [&](float (&v)[2], const StepValues& n, int k) {
#if HELPS
    v[0] = n.n[0][k];
    v[1] = n.n[1][k];
#else
    from_pair(v[0], v[1], n.u[k]);
    v[0] *= n.r[k];
    v[1] *= n.r[k];
#endif
  };
  // Accumulate the weight gradients and write those of x and u, which no later step reads.
  auto store = [&](const StepGradients& g, const StepValues& n, int t) {
#pragma unroll
    for (int k = 0; k < GATES; k++) {
      float v[2];
      if constexpr (NORM) find_normal(v, n, k);
#pragma unroll
      for (int e = 0; e < 2; e++) {
        dbias[e][k] += g.du[e][k];
        if constexpr (NORM) dscale[e][k] += g.du[e][k] * v[e];
      }
    }
    if constexpr (MEMORY)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        dbias_c[e] += g.dm[e];
        dscale_c[e] += g.dm[e] * n.mhat[e];
      }
    if (active)
#pragma unroll
      for (int k = 0; k < most(INPUTS, GATES); k++) {
        if (k >= SUMMED && k < GATES && !LATE)
          put_pair(a.du + ((piece + t * stride) * PLANES + k - SUMMED) * H + b.unit, g.all[k]);
        if (k < INPUTS)
          put_pair(a.dx + ((whole + t * stride) * INPUTS + k) * H + b.unit, to_pair(g.dx[0][k], g.dx[1][k]));
      }
  };
#if HELPS
  auto store_handed = [&](const StepValues& n, int t) {
    StepGradients g;
    take_back(g, top - t, b);
    store(g, n, t);
  };
#endif
  // `role` is a compile-time constant in every call.
  auto take_steps = [&](const Role role) {
    const bool has_row = role == EVERYONE ? b.has_row : role == ROW_OWNER;
    [[maybe_unused]] StepValues later;  // a helper's values of the step whose gradients it receives
#pragma unroll 1
    for (int t = top; t >= a.from; t--) {
      const int i = top - t;
      float acc[2][STATES];
      // of this step: sums of r g n over the units, and r
      float sums[GATES], r[GATES];
      StepGradients g;
      Pair u[LATE ? GATES : 1] = {}, squares[LATE ? GATES : 1] = {};
      // Return r times the scale of gate k.
      auto find_gain = [&](float (&v)[2], int k) {
#if HELPS
        v[0] = n.gain[0][k];
        v[1] = n.gain[1][k];
#else
        scale.get(v, k);
        v[0] *= n.r[k];
        v[1] *= n.r[k];
#endif
      };
      // Sum r g n over this lane's units for every gate.
      auto sum_shares = [&](const float (&sent)[2][GATES]) {
#pragma unroll
        for (int k = 0; k < GATES; k++) {
          float v[2];
          find_normal(v, n, k);
          sums[k] = sent[0][k] * v[0] + sent[1][k] * v[1];
        }
      };
      b.expect_all(i);
#if HELPS
      if (role == HELPER && b.helps) {
        if (i > 0) store_handed(later, t + 1);
        later = n;
        prepare_next(t);
      }
      if (role == ROW_OWNER) take_over(n, i, b);
#endif
      const bool is_reset = n.is_reset;
      if (has_row) {
        float d[2][STATES];
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
        float scaled[2], v[2] = {}, by[2];
        scale_c.get(by, 0);
#pragma unroll
        for (int e = 0; e < 2; e++) {
          g.dm[e] = d[e][0] * n.factors[e][MEMORY_FACTOR];
          scaled[e] = g.dm[e] * by[e];
          v[0] += scaled[e];
          v[1] += scaled[e] * n.mhat[e];
        }
        b.template sum_row<1>(v, i, [] {});
#pragma unroll
        for (int e = 0; e < 2; e++)
          backpropagate(d[e], g.dx[e], g.du[e], n.factors[e],
                        n.deviation_c * (scaled[e] - v[0] * (1.0f / H) - n.mhat[e] * (v[1] * (1.0f / H))));
#elif NORM
#pragma unroll
        for (int e = 0; e < 2; e++) backpropagate(d[e], g.dx[e], g.du[e], n.factors[e]);
#else
#pragma unroll
        for (int e = 0; e < 2; e++)
          backpropagate(d[e], g.dx[e], g.du[e], n.in[e],
                        n.past[e] VECTOR_ARGUMENT(vectors[e]) VECTOR_ARGUMENT(dvectors[e]));
#endif
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
          for (int k = 0; k < STATES; k++) acc[e][k] += d[e][k];
        float sent[2][GATES];
#pragma unroll
        for (int k = 0; k < GATES; k++)
#pragma unroll
          for (int e = 0; e < 2; e++) sent[e][k] = g.du[e][k];
        if constexpr (NORM) {
#pragma unroll
          for (int k = 0; k < GATES; k++) {
            float by[2];
            find_gain(by, k);
#pragma unroll
            for (int e = 0; e < 2; e++) sent[e][k] *= by[e];
          }
          if constexpr (!LATE) {
            sum_shares(sent);
            b.template sum_row<0>(sums, i, [] {});
#pragma unroll
            for (int k = 0; k < GATES; k++) {
              const float share = sums[k] * (1.0f / H);
              float v[2];
              find_normal(v, n, k);
#pragma unroll
              for (int e = 0; e < 2; e++) sent[e][k] -= share * v[e];
            }
          }
        }
#pragma unroll
        for (int k = 0; k < GATES; k++) g.all[k] = to_pair(sent[0][k], sent[1][k]);
        b.share(g.all, i);
        if constexpr (LATE) {
          sum_shares(sent);
#pragma unroll
          for (int k = 0; k < GATES; k++) {
            if (!HELPS) u[k] = n.u[k];
            r[k] = n.r[k];
          }
        }
#if HELPS
        if (!LATE) hand_back(g, i, b);
#else
        store(g, n, t);
#endif
      }
      auto do_meanwhile = [&] {
        if (!has_row) return;
        if constexpr (LATE) {
          b.template send_sums<0>(sums, i);
          if (active && t < length)
#pragma unroll
            for (int k = 0; k < GATES; k++)
              squares[k] = get_pair(a.squares + ((piece + t * stride) * GATES + k) * H + b.unit);
        }
#if HELPS
        if (LATE) hand_back(g, i, b);
#else
        prepare_next(t);
#endif
      };
      if (CLUSTER > 1) do_meanwhile();
      // do_meanwhile overlaps the exchange between blocks (line above), or with one block the product
      Block::Inbox in;
      auto look_around = [&] {
        if (LATE && has_row) b.template look_for_sums<0>(in, i);
      };
      auto do_last = [&] {
        if (CLUSTER == 1) do_meanwhile();
        look_around();
      };
      compute_products(W, i, b, do_last, look_around);
      wait_block();
      if (has_row) {
        float dseen[2][UNIT_PRODUCTS];
        b.get_sums(dseen);
        if constexpr (LATE) {
          b.template take_sums<0>(sums, in, i);
#pragma unroll
          for (int k = 0; k < GATES; k++) {
            const float share = sums[k] * (1.0f / H), of_product = share * r[k];
            float d[2], v[2], w[2];
            from_pair(d[0], d[1], g.all[k]);
            from_pair(w[0], w[1], squares[k]);
#if HELPS
            find_normal(v, n, k);
#else
            from_pair(v[0], v[1], u[k]);
#endif
#pragma unroll
            for (int e = 0; e < 2; e++) {
              d[e] -= (HELPS ? share : of_product) * v[e];
              dseen[e][0] -= ROOT * of_product * w[e];
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
#if HELPS
    if (role == HELPER && b.helps && top >= a.from) store_handed(later, a.from);
#endif
  };
#if HELPS
  if (b.helps) prepare_first();
  b.open();
  if (b.has_row)
    take_steps(ROW_OWNER);
  else
    take_steps(HELPER);
#else
  b.open();
  if (b.has_row) prepare_first();
  take_steps(EVERYONE);
#endif
  if (active && b.has_row)
#pragma unroll
    for (int i = 0; i < 2 * STATES; i++) {
      const int k = i / 2, e = i % 2;
      a.ds[k][at + e] = ds[e][k];
      if constexpr (RESET) a.dstart[k][at + e] += dstart[e][k];
    }
  if (active && (HELPS ? b.helps : b.has_row))
#pragma unroll
    for (int e = 0; e < 2; e++) {
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
