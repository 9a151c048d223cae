// What is inside all steps of a chunk of time, again, from the states that the forward kept: a tile is 8
// steps of any rows.
#include "attn_rnn/step.cuh"

constexpr int RING = 3, AT_RING = STEP_BYTES, STAGE = 2 * SEQUENCE, INSIDE_BYTES = AT_RING + RING * STAGE;

KERNEL(attn_rnn_inside, Inside, THREADS) {
  const Lane l;
  const u32 memory = shared_memory();
  Step step(l, memory, a.w);
  const i64 N = (i64)a.B * a.steps, tiles = (N + 7) / 8;
  const int lead = l.thread < H ? l.thread : l.thread - H, its = lead / (H / 8), part = lead % (H / 8) * 8;
  const bool state = l.thread >= H;  // this half of the block fetches states, the other input
  const u32 to = memory + AT_RING + (state ? SEQUENCE : 0) + its * ROW + part * 2;
  auto fetch = [&](i64 tile, int slot) {
    const i64 i = 8 * tile + its;
    if (tile < tiles) {
      const i64 b = i < N ? i / a.steps : 0, t = i < N ? a.from + i % a.steps : 0;
      const bool there = i < N && (!a.lengths || t < a.lengths[b]);
      const u16* from = a.x + (b * a.T + t) * H;
      if (state) from = t == 0 ? a.h0 + b * H : a.y + (b * a.T + t - 1) * H;
      if constexpr (RESET)
        if (state && there && a.reset[b * a.T + t]) from = a.start + b * H;
      fetch16(to + slot * STAGE, there ? from + part : a.x, there ? 16 : 0);
    }
    fetch_commit();
  };
#pragma unroll
  for (int i = 0; i < RING - 1; i++) fetch(block() + (i64)i * blocks(), i);
  int slot = 0;
#pragma unroll 1
  for (i64 tile = block(); tile < tiles; tile += blocks()) {
    fetch_wait<RING - 2>();
    wait_block();
    u32 v[2];
    float h[4], x[4], seen[4], after[4];
    const u32 stage = memory + AT_RING + slot * STAGE;
    load_sequence(v, stage, l);
    widen(x, v);
    load_sequence(v, stage + SEQUENCE, l);
    widen(h, v);
    fetch(tile + (i64)(RING - 1) * blocks(), (slot + RING - 1) % RING);
    slot = (slot + 1) % RING;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      seen[i] = h[i];
      const i64 at = 8 * tile + 2 * l.pair + (i & 1);
      if constexpr (MASK) {
        float m = 0.f, none;
        if (at < N) unpack<TYPE>(m, none, (u32)a.mask[at / a.steps * H + l.unit[i >> 1]]);
        seen[i] *= m;
      }
    }
    narrow(v, seen);
    store_buffer(memory + AT_H, v[0], v[1], l);
    step.run(after, h, x, [] {}, [] {});
    const i64 row = 8 * tile + l.row, at = row * H + 16 * l.warp + 2 * l.pair;
    auto put = [&](u16* to, const float (&value)[4]) {
      u32 p[2];
      narrow(p, value);
      p[0] = turn(p[0]);
      p[1] = turn(p[1]);
      if (row < N) {
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
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
      const bool leads = WHOLE_WARPS ? l.warp % SPAN == 0 && l.row % 4 == 0 : l.unit[i >> 1] % D == 0;
      const i64 token = 8 * tile + column_of(l, i);
      if (leads && token < N) put_global(a.aux + token * AUX + 4 * head_of(l, i), step.a[i]);
    }
    if constexpr (NORM)
      if (l.warp == 0 && l.row == 0)
#pragma unroll
        for (int c = 0; c < 2; c++)
          if (8 * tile + 2 * l.pair + c < N) a.aux[(8 * tile + 2 * l.pair + c) * AUX + 4 * HEADS] = step.r[c];
  }
}
