// AttnRNN forward: each block runs all steps of its 8 rows; the state stays in float32 registers.
#include "attn_rnn/step.cuh"

constexpr int RING = 4;  // steps whose inputs are in flight
constexpr int STREAMS = 1 + KEEP;
constexpr int AT_RING = STEP_BYTES;
constexpr int STAGE = STREAMS * SEQUENCE;
constexpr int FORWARD_BYTES = AT_RING + RING * STAGE;

KERNEL(attn_rnn_forward, Forward, THREADS) {
  const Lane l;
  const u32 memory = shared_memory();
  const int first = 8 * block();
  Step step(l, memory, a.w);
  int column[2], length[2];
  float h[4], mask[4];
  load_rows(column, length, h, mask, a.h0, a, l);
  // Thread k < H loads 16 bytes of x for row k / (H / 8); thread H + k loads the same part of keep.
  const int fetch_index = l.thread < H ? l.thread : l.thread - H, fetch_row = fetch_index / (H / 8),
            part = fetch_index % (H / 8) * 8;
  const bool in_batch = first + fetch_row < a.B, second = l.thread >= H;
  const u16* from = second ? a.keep + (in_batch && KEEP ? ((i64)(first + fetch_row) * a.T) * H + part : 0)
                           : a.x + (in_batch ? (i64)(first + fetch_row) * a.x_row + part : 0);
  const i64 stride = second ? H : a.x_step;
  const u32 to = memory + AT_RING + (second ? SEQUENCE : 0) + fetch_row * ROW + part * 2;
  auto fetch = [&](int t) {
    if ((KEEP || !second) && t < a.T)
      cp_async16(to + t % RING * STAGE, from + (i64)t * stride, in_batch ? 16 : 0);
    cp_async_commit();
  };
  const int row = first + l.row, row_length = row >= a.B ? 0 : a.lengths ? (int)a.lengths[row] : a.T;
  u16* y = a.y + (row < a.B ? (i64)row * a.y_row + 16 * l.warp + 2 * l.pair : 0);
  u32 out[2];
  int end = 0;  // length of the longest of these rows
  for (int i = 0; i < 8; i++)
    if (first + i < a.B) {
      const int n = a.lengths ? (int)a.lengths[first + i] : a.T;
      end = n > end ? n : end;
    }
  auto put = [&](int t) {
    const u32 v = transpose(out[0]), w = transpose(out[1]);
    if (t >= 0 && t < row_length) {
      put_global(y + (i64)t * a.y_step, v);
      put_global(y + (i64)t * a.y_step + 8, w);
    }
  };
  auto read_reset = [&](bool (&is_reset)[2], int t) {
#pragma unroll
    for (int c = 0; c < 2; c++) is_reset[c] = t < length[c] && a.reset[(i64)column[c] * a.T + t];
  };
  auto load_x = [&](u32(&v)[2], u32 stage) { load_sequence(v, stage, l); };
  auto copy_output = [&] { narrow(out, h); };
  run_steps<RING, AT_RING, STAGE>(step, h, mask, column, length, end, memory, a, load_x, read_reset, fetch,
                                  copy_output, put);
#pragma unroll
  for (int i = 0; i < 4; i++)
    if (column[i & 1] < a.B) a.last[(i64)column[i & 1] * H + l.unit[i >> 1]] = h[i];
}
