// What is inside all steps of a chunk of time, again, from the states that the forward kept: a tile is SEQS
// steps of any rows, all their slots.
#include "attn_rnn/slots_step.cuh"

constexpr int RING = 3;
constexpr int AT_RING = AT_SUMS + SCORES;
constexpr int STAGE = 2 * SEQUENCE;
constexpr int SLOTS_INSIDE_BYTES = AT_RING + RING * STAGE;

KERNEL(attn_rnn_slots_inside, Inside, THREADS) {
  const Lane l;
  const u32 memory = shared_memory();
  SlotsStep step(l, memory, a.w);
  const i64 N = (i64)a.B * a.steps, tiles = (N + SEQS - 1) / SEQS;
  const int lead = l.thread < H ? l.thread : l.thread - H, its = lead / (H / 8), part = lead % (H / 8) * 8;
  const bool state = l.thread >= H;  // this half of the block fetches states, the other input
  const u32 to = memory + AT_RING + (state ? SEQUENCE : 0) + its * ROW + part * 2;
  auto fetch = [&](i64 tile, int place) {
    const int row = state ? its / SLOTS : its;
    const i64 i = SEQS * tile + row;
    if (tile < tiles && (state || its < SEQS)) {
      const bool real = row < SEQS && i < N;
      const i64 b = real ? i / a.steps : 0, t = real ? a.from + i % a.steps : 0, slot = its % SLOTS;
      const bool there = real && (!a.lengths || t < a.lengths[b]);
      const u16* from = a.x + (b * a.T + t) * H;
      if (state) from = t == 0 ? a.h0 + (b * SLOTS + slot) * H : a.y + ((b * a.T + t - 1) * SLOTS + slot) * H;
      if constexpr (RESET)
        if (state && there && a.reset[b * a.T + t]) from = a.start + (b * SLOTS + slot) * H;
      fetch16(to + place * STAGE, there ? from + part : a.x, there ? 16 : 0);
    }
    fetch_commit();
  };
#pragma unroll
  for (int i = 0; i < RING - 1; i++) fetch(block() + (i64)i * blocks(), i);
  int place = 0;
#pragma unroll 1
  for (i64 tile = block(); tile < tiles; tile += blocks()) {
    fetch_wait<RING - 2>();
    wait_block();
    u32 v[2];
    float h[4], x[4], seen[4], after[4];
    const u32 stage = memory + AT_RING + place * STAGE;
    load_common(v, stage, l);
    widen(x, v);
    load_sequence(v, stage + SEQUENCE, l);
    widen(h, v);
    fetch(tile + (i64)(RING - 1) * blocks(), (place + RING - 1) % RING);
    place = (place + 1) % RING;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      seen[i] = h[i];
      const i64 token = SEQS * tile + (2 * l.pair + (i & 1)) / SLOTS;
      if constexpr (MASK) {
        float m = 0.f, none;
        if (token < N) unpack<TYPE>(m, none, (u32)a.mask[token / a.steps * H + l.unit[i >> 1]]);
        seen[i] *= m;
      }
    }
    narrow(v, seen);
    store_buffer(memory + AT_H, v[0], v[1], l);
    step.run(after, h, x, [] {}, [] {});
    const i64 at = (LIVE * tile + l.row) * H + 16 * l.warp + 2 * l.pair;
    auto there = [&](int column) { return column < LIVE && LIVE * tile + column < N * SLOTS; };
    auto put = [&](u16* to, const float (&value)[4]) {
      u32 p[2];
      narrow(p, value);
      turn_both(p, p);
      if (there(l.row)) {
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
    if constexpr (NORM) {
      put(a.n, step.xhat);
      if (l.warp == 0 && l.row == 0)
#pragma unroll
        for (int c = 0; c < 2; c++)
          if (there(2 * l.pair + c)) a.aux[(LIVE * tile + 2 * l.pair + c) * 4] = step.r[c];
    }
  }
}
