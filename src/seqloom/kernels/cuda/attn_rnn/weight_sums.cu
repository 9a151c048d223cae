// The gradients of AttnRNN's weights. attn_rnn_sums computes those that are plain sums instead of matrix
// products: of dq, ds, dg, dn and dn * n. The reference loop sums over rows and then over steps; these
// kernels sum over the steps of a row first, where large terms have not cancelled yet, so float32 is summed
// in float64.
#include "attn_rnn/setting.cuh"
#include "runtime/pairs.cuh"

#if FORMAT == 2
typedef double Wide;
#else
typedef float Wide;
#endif
struct Sums {
  const Element *dq, *ds, *dg, *dn, *n;  // (rows, H)
  Wide* partial;                         // (blocks, 5, H)
  i64 rows;
  int first;  // 1: overwrite partial, 0: add to it
};
// Threads are rounded up to whole warps.
constexpr int PAIRS = H / 2;
constexpr int GROUPS = FORMAT == 2 ? 1 : H > 512 ? 2 : 4;
constexpr int THREADS = (GROUPS * PAIRS + 31) / 32 * 32;
constexpr int SUMS_BYTES = GROUPS == 1 ? 0 : GROUPS * 10 * PAIRS * 4, FINISH_BYTES = 0;

KERNEL(attn_rnn_sums, Sums, THREADS) {
  const int pair = thread() % PAIRS, group = thread() / PAIRS;
  const i64 block_rows = (a.rows + blocks() - 1) / blocks(), from = block_rows * block(),
            to = from + block_rows < a.rows ? from + block_rows : a.rows;
  Wide sum[10] = {};
#pragma unroll 4
  for (i64 r = from + group; r < to; r += GROUPS) {
    const i64 at = r * H + 2 * pair;
    float v, w, n, m;
    from_pair(v, w, get_pair(a.dq + at));
    sum[0] += v;
    sum[1] += w;
    from_pair(v, w, get_pair(a.ds + at));
    sum[2] += v;
    sum[3] += w;
    from_pair(v, w, get_pair(a.dg + at));
    sum[4] += v;
    sum[5] += w;
    from_pair(v, w, get_pair(a.dn + at));
    sum[6] += v;
    sum[7] += w;
    if constexpr (NORM) {
      from_pair(n, m, get_pair(a.n + at));
      sum[8] += (Wide)v * n;
      sum[9] += (Wide)w * m;
    }
  }
  auto put = [&](int k, int at, Wide total) {
    Wide* to = a.partial + ((i64)block() * 5 + k / 2) * H + 2 * at + k % 2;
    *to = a.first ? total : *to + total;
  };
  if constexpr (GROUPS == 1) {
#pragma unroll
    for (int k = 0; k < 10; k++)
      if (group < GROUPS) put(k, pair, sum[k]);
  } else {
    const u32 memory = shared_memory();
#pragma unroll
    for (int k = 0; k < 10; k++)
      if (group < GROUPS) put_shared(memory + ((group * 10 + k) * PAIRS + pair) * 4, (float)sum[k]);
    wait_block();
    for (int i = thread(); i < 10 * PAIRS; i += THREADS) {
      float total = 0.f;
#pragma unroll
      for (int g = 0; g < GROUPS; g++) total += get_shared(memory + (g * 10 * PAIRS + i) * 4);
      put(i / PAIRS, i % PAIRS, total);
    }
  }
}

// attn_rnn_finish adds up the partial sums and stores them in the type of the weights.
struct Finish {
  // (4, slices, H, H): split-K slices of the products dq seen, ds aC, dg o and dg seen
  const float* products;
  const Wide* partial;  // (parts, 5, H)
  Element *q, *bias_q, *o, *bias_o, *g, *bias_g, *scale, *bias;
  int slices, parts;
};
KERNEL(attn_rnn_finish, Finish, THREADS) {
  for (int column = thread(); column < H; column += THREADS) {
    Wide total = 0;
    if (block() < 4 * H) {
      const int which = block() / H, row = block() % H;
#pragma unroll 16
      // Keep many loads in flight: one load takes longer than all additions.
      for (int i = 0; i < a.slices; i++)
        total += a.products[(((i64)which * a.slices + i) * H + row) * H + column];
      if (which < 2)
        put_one((which ? a.o : a.q) + (i64)row * H + column, (float)total);
      else
        put_one(a.g + (i64)row * 2 * H + (which == 2 ? H : 0) + column, (float)total);
    } else {
      const int which = block() - 4 * H;
#pragma unroll 16
      for (int i = 0; i < a.parts; i++) total += a.partial[((i64)i * 5 + which) * H + column];
      Element* to = which == 0   ? a.bias_q
                    : which == 1 ? a.bias_o
                    : which == 2 ? a.bias_g
                    : which == 3 ? a.bias
                                 : a.scale;
      if (NORM || which < 3) put_one(to + column, (float)total);
    }
  }
}
