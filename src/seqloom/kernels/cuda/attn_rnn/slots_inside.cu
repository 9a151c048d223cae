// Recompute the intermediate values of all steps of a chunk from the states that the forward pass saved: a
// tile is SEQS steps of any rows, with all their slots.
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
  const int fetch_index = l.thread < H ? l.thread : l.thread - H, fetch_row = fetch_index / (H / 8),
            part = fetch_index % (H / 8) * 8;
  const bool state = l.thread >= H;  // this half of the block loads states, the other input
  const u32 to = memory + AT_RING + (state ? SEQUENCE : 0) + fetch_row * ROW + part * 2;
  auto fetch = [&](i64 tile, int place) {
    const int row = state ? fetch_row / SLOTS : fetch_row;
    const i64 i = SEQS * tile + row;
    if (tile < tiles && (state || fetch_row < SEQS)) {
      const bool in_batch = row < SEQS && i < N;
      const i64 b = in_batch ? i / a.steps : 0, t = in_batch ? a.from + i % a.steps : 0,
                slot = fetch_row % SLOTS;
      const bool active = in_batch && (!a.lengths || t < a.lengths[b]);
      const u16* from = a.x + (b * a.T + t) * H;
      if (state) from = t == 0 ? a.h0 + (b * SLOTS + slot) * H : a.y + ((b * a.T + t - 1) * SLOTS + slot) * H;
      if constexpr (RESET)
        if (state && active && a.reset[b * a.T + t]) from = a.start + (b * SLOTS + slot) * H;
      cp_async16(to + place * STAGE, active ? from + part : a.x, active ? 16 : 0);
    }
    cp_async_commit();
  };
  auto load_x = [&](u32(&v)[2], u32 stage) { load_common(v, stage, l); };
  auto token = [&](i64 tile, int column) { return SEQS * tile + column / SLOTS; };
  auto is_active = [&](i64 tile, int column) {
    return column < USED_COLUMNS && USED_COLUMNS * tile + column < N * SLOTS;
  };
  auto finish = [&](i64 tile) {
    if constexpr (NORM)
      if (l.warp == 0 && l.row == 0)
#pragma unroll
        for (int c = 0; c < 2; c++)
          if (is_active(tile, 2 * l.pair + c)) a.aux[(USED_COLUMNS * tile + 2 * l.pair + c) * 4] = step.r[c];
  };
  run_inside<RING, AT_RING, STAGE, USED_COLUMNS>(step, tiles, N, memory, a, load_x, fetch, token, is_active,
                                                 finish);
}
