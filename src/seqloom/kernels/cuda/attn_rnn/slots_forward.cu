// Forward pass of AttnRNN with slots: every block runs all steps of its sequences; the state stays in float32
// registers.
#include "attn_rnn/slots_step.cuh"

constexpr int RING = 4;  // steps whose inputs are in flight
constexpr int STREAMS = 1 + KEEP;
constexpr int AT_RING = AT_SUMS + SCORES;
constexpr int STAGE = STREAMS * SEQUENCE;
constexpr int SLOTS_FORWARD_BYTES = AT_RING + RING * STAGE;

KERNEL(attn_rnn_slots_forward, SlotsForward, THREADS) {
  const Lane l;
  const u32 memory = shared_memory();
  const int first = USED_COLUMNS * block(), slots = a.B * SLOTS;
  SlotsStep step(l, memory, a.w);
  int slot[2], length[2];
  float h[4], mask[4];
  load_slots(slot, length, h, mask, a.h0, a, l);
  auto find_length = [&](int row) { return a.lengths ? (int)a.lengths[row] : a.T; };
  // Thread k < H loads 16 bytes of x, of sequence k / (H / 8); the other half of the block loads keep, of one
  // slot.
  const bool second = l.thread >= H;
  const int fetch_index = second ? l.thread - H : l.thread, fetch_row = fetch_index / (H / 8),
            part = fetch_index % (H / 8) * 8;
  const int slot_index = second ? first + fetch_row : first + fetch_row * SLOTS,
            b = slot_index < slots ? slot_index / SLOTS : 0;
  const bool fetches = second ? KEEP : fetch_row < SEQS,
             in_batch = slot_index < slots && fetch_row < (second ? USED_COLUMNS : SEQS);
  const u16* from = second ? a.keep + (KEEP ? ((i64)b * a.T * SLOTS + slot_index % SLOTS) * H + part : 0)
                           : a.x + (i64)b * a.x_row + part;
  const i64 stride = second ? SLOTS * H : a.x_step;
  const int fetch_length = in_batch ? find_length(b) : 0;
  const u32 to = memory + AT_RING + (second ? SEQUENCE : 0) + fetch_row * ROW + part * 2;
  auto fetch = [&](int t) {
    if (fetches && t < a.T)
      cp_async16(to + t % RING * STAGE, from + (i64)t * stride, t < fetch_length ? 16 : 0);
    cp_async_commit();
  };
  const int own_slot = first + l.row;
  // The first slot of a sequence writes the output, a sum over its slots.
  const bool active = l.row < USED_COLUMNS && own_slot < slots, is_leader = l.row % SLOTS == 0;
  const int row_length = active ? find_length(own_slot / SLOTS) : 0;
  u16* y = a.y + (active ? (i64)(own_slot / SLOTS) * a.y_row + 16 * l.warp + 2 * l.pair : 0);
  u16* states = a.states + (active ? ((i64)(own_slot / SLOTS) * a.T * SLOTS + own_slot % SLOTS) * H +
                                         16 * l.warp + 2 * l.pair
                                   : 0);
  int end = 0;  // the longest length of this block's sequences
  for (int i = 0; i < SEQS; i++)
    if (first + i * SLOTS < slots) {
      const int n = find_length(first / SLOTS + i);
      end = n > end ? n : end;
    }
  float out[4];
  auto copy_output = [&] {
#pragma unroll
    for (int i = 0; i < 4; i++) out[i] = h[i];  // copied, as a reset may change h before it is written
  };
  auto put = [&](int t) {
    float sum[4];
    u32 v[2], w[2];
    sum_slots(sum, out, l);
    narrow(v, out);
    narrow(w, sum);
    transpose_both(v, v);
    transpose_both(w, w);
    if (t >= 0 && t < row_length) {
      if (a.states) {
        put_global(states + (i64)t * SLOTS * H, v[0]);
        put_global(states + (i64)t * SLOTS * H + 8, v[1]);
      }
      if (is_leader) {
        put_global(y + (i64)t * a.y_step, w[0]);
        put_global(y + (i64)t * a.y_step + 8, w[1]);
      }
    }
  };
  auto read_reset = [&](bool (&is_reset)[2], int t) {
#pragma unroll
    for (int c = 0; c < 2; c++) is_reset[c] = t < length[c] && a.reset[(i64)(slot[c] / SLOTS) * a.T + t];
  };
  auto load_x = [&](u32(&v)[2], u32 stage) { load_common(v, stage, l); };
  run_steps<RING, AT_RING, STAGE>(step, h, mask, slot, length, end, memory, a, load_x, read_reset, fetch,
                                  copy_output, put);
#pragma unroll
  for (int i = 0; i < 4; i++)
    if (slot[i & 1] >= 0) a.last[(i64)slot[i & 1] * H + l.unit[i >> 1]] = h[i];
}
