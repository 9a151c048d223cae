// Forward pass of a gated cell: each block, cluster or group of blocks runs all time steps of its rows of the
// batch.
#include "gated/units.cuh"

// PREFETCH_STEPS: x is prefetched into the L2 cache this many steps ahead.
constexpr int GATED_FORWARD_BYTES = GATED_BYTES, PREFETCH_STEPS = 4;

struct Forward {
  // weight: tiles of U; bias and scale: (GATES, H) or null. With NORM, U is centred over the units of a gate,
  // so that U h has zero mean, and scale and bias are those of the layer norm.
  const Element *weight, *bias, *scale;
  const Element *scale_c, *bias_c;   // (H,): layer norm of the memory
  Element* x;                        // (B, T, INPUTS, H)
  const Element* keep[4];            // (B, T, H) for each state: zoneout
  const float *first[4], *start[4];  // (B, H): initial state, and the state after a reset
  const Element* mask;               // (B, H)
  const u8* reset;                   // (B, T)
  const i64* lengths;                // (B,), or null
  // (B, T, H), zero past a row's length on entry: state 0; states 1 .. 3, or null if not needed
  Element *y, *c[3];
  float *last[4], *spread;  // (B, H); (B, T, SPREAD) or null: 1 / std, and the memory's mean
  int B, T;
  const Element* vectors;  // (VECTORS, H)
  int head_rows;  // rows per head, a multiple of the group's rows; heads have separate weights. 0: one head
  // keeps: whether to save products for the backward pass. x becomes x + u in the first SUMMED gates; `u`
  // gets the others' u, or with NORM their U h, as (B, T, GATES - SUMMED, H)
  int keeps;
  Element* u;
  int time_first;  // whether all (B, T, ..) arrays are (T, B, ..) instead
};

// Unconverted values that a lane loads for a step; converting them at once would wait for the load.
struct StepInputs {
  Pair x[INPUTS], keep[STATES];
  int is_reset;
};
#if HELPS
// Words that a helper warp passes to the row owner, the warp that runs the row: x (plus the bias in the first
// JOINED gates), the reset flag of the next step, and the zoneout values.
constexpr int WORDS_HANDED = KEEP || RESET ? 2 * INPUTS + 1 + STATES : 2 * INPUTS;
DEV void hand_over(const u32 (&w)[HANDED], int t, const Block& b) {
#pragma unroll
  for (int k = 0; k < WORDS_HANDED; k += 4) {
    const u32 four[4] = {w[k], w[k + 1], w[k + 2], w[k + 3]};
    put_shared(b.find_handed(t, k / 4), four);
  }
}
DEV void take_over(u32 (&w)[HANDED], int t, const Block& b) {
#pragma unroll
  for (int k = 0; k < WORDS_HANDED; k += 4) {
    u32 four[4];
    get_shared(four, b.find_handed(t, k / 4));
#pragma unroll
    for (int j = 0; j < 4; j++) w[k + j] = four[j];
  }
}
#endif

// Number of leading gates whose bias a helper warp has already added.
#if HELPS
constexpr int BIASED = JOINED;
#else
constexpr int BIASED = 0;
#endif

CLUSTER_KERNEL(gated_forward, Forward, THREADS, CLUSTER) {
  const Block b(a);
  const int row = b.first + b.column;
  const bool active = b.active && row < a.B;
  const Weights W(find_head(a.weight, GATES * H * H, a, b), b);
  float s[2][STATES], mask[2];
  const Units<GATES, NORM && !HELPS> bias(find_head(a.bias, GATES * H, a, b), b.unit, b.active),
      scale(NORM ? find_head(a.scale, GATES * H, a, b) : nullptr, b.unit, b.active);
  const Units<1> scale_c(MEMORY ? find_head(a.scale_c, H, a, b) : nullptr, b.unit, b.active),
      bias_c(MEMORY ? find_head(a.bias_c, H, a, b) : nullptr, b.unit, b.active);
#if VECTORS
  float vectors[2][VECTORS];
  load_units(vectors, find_head(a.vectors, VECTORS * H, a, b), b.unit, b.active);
#endif
  const i64 at = active ? (i64)row * H + b.unit : 0, steps = active ? (i64)row * (a.time_first ? 1 : a.T) : 0;
  auto find_step = [&](int t) { return steps + (i64)t * (a.time_first ? a.B : 1); };
#pragma unroll
  for (int e = 0; e < 2; e++) {
#pragma unroll
    for (int i = 0; i < STATES; i++) s[e][i] = active ? a.first[i][at + e] : 0.f;
    if constexpr (MASK) mask[e] = active ? get_one(a.mask + at + e) : 0.f;
  }
  int length, end;
  find_lengths(length, end, a.lengths, a.B, a.T, b);
  const bool writes_spread = a.spread && active && b.has_row && b.is_leader();
#if HELPS
  const bool writes_number = a.spread && active && b.helps && b.is_first() && b.lane < SPREAD;
#endif
  auto fetch = [&](StepInputs& v, int t) {  // load the inputs of step t, two steps ahead of their use
    v = {};
    if (active && t < length) {
      const i64 i = find_step(t);
      const Element* x = a.x + i * INPUTS * H + b.unit;
#pragma unroll
      for (int k = 0; k < INPUTS; k++) v.x[k] = get_pair(x + k * H);
      if constexpr (KEEP)
#pragma unroll
        for (int k = 0; k < STATES; k++) v.keep[k] = get_pair(a.keep[k] + i * H + b.unit);
      if constexpr (RESET) v.is_reset = a.reset[i];
      if (t + PREFETCH_STEPS < length)
#pragma unroll
        for (int k = 0; k < INPUTS; k++)
          prefetch_global(a.x + (find_step(t + PREFETCH_STEPS) * INPUTS + k) * H + b.unit);
    }
  };
  auto share_state = [&](int t, int is_reset) {  // send the state for step t, after reset and mask
    float seen[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
      if constexpr (RESET)
        if (is_reset)
#pragma unroll
          for (int i = 0; i < STATES; i++) s[e][i] = a.start[i][at + e];
      seen[e] = MASK ? s[e][0] * mask[e] : s[e][0];
    }
    const Pair all[1] = {to_pair(seen[0], seen[1])};
    b.share(all, t);
  };
#if HELPS
  auto help = [&](const StepInputs& v, int next_is_reset, int t) {  // pass inputs of step t to the row owner
    u32 w[HANDED] = {};
#pragma unroll
    for (int k = 0; k < INPUTS; k++) {
      float x[2], more[2];
      from_pair(x[0], x[1], v.x[k]);
      bias.get(more, k);
#pragma unroll
      for (int e = 0; e < 2; e++) w[2 * k + e] = to_bits(k < JOINED ? x[e] + more[e] : x[e]);
    }
    w[2 * INPUTS] = next_is_reset;
#pragma unroll
    for (int i = 0; i < STATES; i++) w[2 * INPUTS + 1 + i] = v.keep[i];
    hand_over(w, t, b);
  };
  auto store = [&](int t) {  // write the outputs of step t
    if (!active || t >= length) return;
    const i64 now = find_step(t);
    const u32 at = b.find_handed_back(t);
    float out[STATES];
    if constexpr (STATES == 2)
      get_shared(out[0], out[STATES - 1], at + 8 * b.lane);
    else
      out[0] = get_shared(at + 8 * b.lane);
    put_pair(a.y + now * H + b.unit, to_bits(out[0]));
#pragma unroll
    for (int i = 1; i < STATES; i++)
      if (a.c[i - 1]) put_pair(a.c[i - 1] + now * H + b.unit, to_bits(out[i]));
    if (writes_number) a.spread[now * SPREAD + b.lane] = get_shared(at + 256 + 4 * b.lane);
  };
#endif
  auto run_step = [&](StepInputs& v, const StepInputs& later, int t) {
    float x[2][INPUTS], u[2][GATES], keep[2][STATES];
    b.expect_all(t);
    compute_products(W, t, b, [] {}, [] {});
    wait_block();
    int next_is_reset = later.is_reset;
#if HELPS
    if (b.helps) {
      if (t > 0) store(t - 1);
      help(v, later.is_reset, t + 1);
      fetch(v, t + 3);
    }
#endif
    if (b.has_row) {
#if HELPS
      u32 w[HANDED] = {};
      take_over(w, t, b);
#pragma unroll
      for (int i = 0; i < 2 * INPUTS; i++) x[i % 2][i / 2] = to_float(w[i]);
      next_is_reset = w[2 * INPUTS];
#pragma unroll
      for (int i = 0; i < STATES; i++) from_pair(keep[0][i], keep[1][i], w[2 * INPUTS + 1 + i]);
#else
#pragma unroll
      for (int k = 0; k < INPUTS; k++) from_pair(x[0][k], x[1][k], v.x[k]);
      if constexpr (KEEP)
#pragma unroll
        for (int i = 0; i < STATES; i++) from_pair(keep[0][i], keep[1][i], v.keep[i]);
#endif
      b.get_sums(u);
      const i64 now = find_step(t);
      float spread[most(SPREAD, 4)] = {};
      Pair kept[GATES];
      auto keep_products = [&] {  // save products for the backward pass
        if (a.keeps && active && t < length)
#pragma unroll
          for (int k = 0; k < GATES; k++)
            put_pair((k < SUMMED ? a.x + (now * INPUTS + k) * H
                                 : a.u + (now * (GATES - SUMMED) + k - SUMMED) * H) +
                         b.unit,
                     kept[k]);
      };
      if constexpr (NORM) {
        float squares[GATES];
#pragma unroll
        for (int k = 0; k < GATES; k++) squares[k] = u[0][k] * u[0][k] + u[1][k] * u[1][k];
#pragma unroll
        for (int k = 0; k < GATES; k++) kept[k] = to_pair(u[0][k], u[1][k]);
        b.template sum_row<0>(squares, t, keep_products);
#pragma unroll
        for (int k = 0; k < GATES; k++) {
          const float r = inverse_root(squares[k] * (1.0f / H) + 1e-5f);
          float by[2];
          scale.get(by, k);
#pragma unroll
          for (int e = 0; e < 2; e++) u[e][k] *= r * by[e];
          spread[k] = r;
        }
      }
#pragma unroll
      for (int k = BIASED; k < GATES; k++) {
        float v[2];
        bias.get(v, k);
        u[0][k] += v[0];
        u[1][k] += v[1];
      }
#if SUMMED
#pragma unroll
      for (int k = 0; k < GATES; k++)
        kept[k] = k < SUMMED ? to_pair(x[0][k] + u[0][k], x[1][k] + u[1][k]) : to_pair(u[0][k], u[1][k]);
#endif
      Inside in[2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        in[e] = compute_inside(x[e], u[e], s[e] VECTOR_ARGUMENT(vectors[e]));
      }
#if MEMORY
      float sums[2] = {b.active ? in[0].c + in[1].c : 0.f,
                       b.active ? in[0].c * in[0].c + in[1].c * in[1].c : 0.f};
      b.template sum_row<1>(sums, t, [] {});
      const float mean = sums[0] * (1.0f / H),
                  r = inverse_root(maximum(sums[1] * (1.0f / H) - mean * mean, 0.f) + 1e-5f);
      float by[2], plus[2];
      scale_c.get(by, 0);
      bias_c.get(plus, 0);
#pragma unroll
      for (int e = 0; e < 2; e++) in[e].q = hyperbolic_tangent((in[e].c - mean) * r * by[e] + plus[e]);
      spread[GATES] = mean;
      spread[GATES + 1] = r;
#endif
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float after[STATES];
#pragma unroll
        for (int i = 0; i < STATES; i++) after[i] = s[e][i];
        update_state(after, in[e]);
#pragma unroll
        for (int i = 0; i < STATES; i++) {
          if constexpr (KEEP) after[i] += keep[e][i] * (s[e][i] - after[i]);
          s[e][i] = t < length ? after[i] : s[e][i];
        }
      }
      Pair out[STATES];  // copied now, since share_state may reset the state
#pragma unroll
      for (int i = 0; i < STATES; i++) out[i] = to_pair(s[0][i], s[1][i]);
      if (t + 1 < end) share_state(t + 1, next_is_reset);
#if HELPS
      const u32 back = b.find_handed_back(t);
      if constexpr (STATES == 2)
        put_shared(back + 8 * b.lane, to_float(out[0]), to_float(out[STATES - 1]));
      else
        put_shared(back + 8 * b.lane, out[0]);
      if (writes_spread) {
        const float four[4] = {spread[0], spread[1], spread[2], spread[3]};
        put_shared(back + 256, four);
        if constexpr (MEMORY) put_shared(back + 272, spread[SPREAD - 2], spread[SPREAD - 1]);
      }
#else
      if (active && t < length) {
        put_pair(a.y + now * H + b.unit, out[0]);
#pragma unroll
        for (int i = 1; i < STATES; i++)
          if (a.c[i - 1]) put_pair(a.c[i - 1] + now * H + b.unit, out[i]);
        if (writes_spread)
#pragma unroll
          for (int k = 0; k < SPREAD; k++) a.spread[now * SPREAD + k] = spread[k];
      }
      if (SUMMED) keep_products();
      fetch(v, t + 2);
#endif
    }
  };
  StepInputs even, odd;
  fetch(even, 0);
  fetch(odd, 1);
#if HELPS
  if (b.helps) {  // runs one step ahead of the row owner
    help(even, odd.is_reset, 0);
    even = odd;
    fetch(odd, 2);
  }
#endif
  b.open();
  if (b.has_row && end > 0) share_state(0, even.is_reset);
#pragma unroll 1
  for (int t = 0; t < end; t += 2) {
    run_step(even, odd, t);
    if (t + 1 < end) run_step(odd, even, t + 1);
  }
#if HELPS
  wait_block();
  if (b.helps && end > 0) store(end - 1);
#endif
  if (active && b.has_row)
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
      for (int i = 0; i < STATES; i++) a.last[i][at + e] = s[e][i];
  b.close();
}
