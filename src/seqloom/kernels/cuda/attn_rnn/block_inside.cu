// Recompute the intermediates of all steps of a chunk from the states that the forward pass saved. A tile is
// 8 consecutive (row, step) pairs.
#include "attn_rnn/step.cuh"

constexpr int RING = 3, AT_RING = STEP_BYTES, STAGE = 2 * SEQUENCE, INSIDE_BYTES = AT_RING + RING * STAGE;

KERNEL(attn_rnn_inside, Inside, THREADS) {
  const Lane l;
  const u32 memory = shared_memory();
  Step step(l, memory, a.w);
  const i64 N = (i64)a.B * a.steps, tiles = (N + 7) / 8;
  const int fetch_index = l.thread < H ? l.thread : l.thread - H, fetch_row = fetch_index / (H / 8),
            part = fetch_index % (H / 8) * 8;
  const bool state = l.thread >= H;  // this half of the block loads states, the other half inputs
  const u32 to = memory + AT_RING + (state ? SEQUENCE : 0) + fetch_row * ROW + part * 2;
  auto fetch = [&](i64 tile, int slot) {
    const i64 i = 8 * tile + fetch_row;
    if (tile < tiles) {
      const i64 b = i < N ? i / a.steps : 0, t = i < N ? a.from + i % a.steps : 0;
      const bool active = i < N && (!a.lengths || t < a.lengths[b]);
      const u16* from = a.x + (b * a.T + t) * H;
      if (state) from = t == 0 ? a.h0 + b * H : a.y + (b * a.T + t - 1) * H;
      if constexpr (RESET)
        if (state && active && a.reset[b * a.T + t]) from = a.start + b * H;
      cp_async16(to + slot * STAGE, active ? from + part : a.x, active ? 16 : 0);
    }
    cp_async_commit();
  };
  auto load_x = [&](u32(&v)[2], u32 stage) { load_sequence(v, stage, l); };
  auto token = [&](i64 tile, int column) { return 8 * tile + column; };
  auto is_active = [&](i64 tile, int column) { return 8 * tile + column < N; };
  auto finish = [&](i64 tile) {
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
      const bool is_leader = WHOLE_WARPS ? l.warp % SPAN == 0 && l.row % 4 == 0 : l.unit[i >> 1] % D == 0;
      const i64 token = 8 * tile + find_column(l, i);
      if (is_leader && token < N) put_global(a.aux + token * AUX + 4 * find_head(l, i), step.a[i]);
    }
    if constexpr (NORM)
      if (l.warp == 0 && l.row == 0)
#pragma unroll
        for (int c = 0; c < 2; c++)
          if (8 * tile + 2 * l.pair + c < N) a.aux[(8 * tile + 2 * l.pair + c) * AUX + 4 * HEADS] = step.r[c];
  };
  run_inside<RING, AT_RING, STAGE, 8>(step, tiles, N, memory, a, load_x, fetch, token, is_active, finish);
}
