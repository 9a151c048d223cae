// Pack AttnRNN's weights in the order in which tiles_forward.cu and tiles_reverse.cu load them: for each
// block and chunk the rows of the three weight operands (2 UNITS, UNITS and UNITS rows), each as
// [plane][128-byte line][row][16-byte groups], swizzled as in shared memory.
#include "attn_rnn/tiles.cuh"

constexpr int TILES_PACK_BYTES = 0;

struct Pack {
  const u8 *q, *o, *g;  // weights, in float32 as fp16 hi/lo planes; transposed for the backward pass
  u8* to;
  int is_transposed;
};

KERNEL(attn_rnn_tiles_pack, Pack, THREADS) {
  const i64 which = (i64)THREADS * block() + thread();
  constexpr int EACH_UNIT = PLANES * LINES;  // 128-byte lines per row
  const int eight = which % 8, line = which / 8 % (4 * UNITS * EACH_UNIT);
  const int piece = which / (32 * UNITS * EACH_UNIT), chunk = piece % (CHUNKS * PAIR),
            rank = piece / (CHUNKS * PAIR);
  const int factor = line < 2 * UNITS * EACH_UNIT ? 0 : line < 3 * UNITS * EACH_UNIT ? 1 : 2;
  const int rows = factor ? UNITS : 2 * UNITS, own = line - (factor ? (factor + 1) * UNITS * EACH_UNIT : 0);
  const int plane = own / rows / LINES, part = own / rows % LINES, place = own % rows,
            row = rank * UNITS + place % UNITS;
  const bool is_second = place >= UNITS;  // whether this is the second half of the first operand
  const i64 square = (i64)H * H * NUMBER;
  // Forward operands: q and the first half of g; o; the second half of g. Backward operands: the second and
  // the first half of g; o; q.
  const bool of_g = a.is_transposed ? factor == 0 : factor == 2 || is_second;
  const u8* from = of_g ? a.g : factor == 1 ? a.o : a.q;
  if (of_g && a.is_transposed)
    from += plane * 2 * square + (i64)(row + (is_second ? 0 : H)) * H * NUMBER;
  else if (of_g)
    from += plane * 2 * square + (i64)row * 2 * H * NUMBER + (factor == 2 ? H * NUMBER : 0);
  else
    from += plane * square + (i64)row * H * NUMBER;
  u32 v[4];
  get_constant(v, from + chunk * CHUNK + 128 * part + 16 * (eight ^ (place & 7)));
#if FORMAT == 2 && TF32
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = to_tf32(to_float(v[i]));
#endif
  put_global((u16*)(a.to + 16 * which), v);
}
