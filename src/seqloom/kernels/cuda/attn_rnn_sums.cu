// The gradients of AttnRNN's weights, put together. First the sums over rows that are no products: of dq, ds, dg, dn and dn * n.
struct Sums {
  const u16 *dq, *ds, *dg, *dn, *n;  // (rows, H)
  float *partial;                    // (blocks, 5, H)
  i64 rows;
  int first;                         // whether what is in partial counts
};
constexpr int PAIRS = H / 2, GROUPS = 4, SUMS_BYTES = GROUPS * 10 * PAIRS * 4, FINISH_BYTES = 0;

KERNEL(attn_rnn_sums, Sums, THREADS) {
  const int pair = thread() % PAIRS, group = thread() / PAIRS;
  const i64 each = (a.rows + blocks() - 1) / blocks(), from = each * block(), to = from + each < a.rows ? from + each : a.rows;
  float sum[10] = {};
#pragma unroll 4
  for (i64 r = from + group; r < to; r += GROUPS) {
    const i64 at = r * H + 2 * pair;
    float v, w, n, m;
    unpack<TYPE>(v, w, get_global(a.dq + at)); sum[0] += v; sum[1] += w;
    unpack<TYPE>(v, w, get_global(a.ds + at)); sum[2] += v; sum[3] += w;
    unpack<TYPE>(v, w, get_global(a.dg + at)); sum[4] += v; sum[5] += w;
    unpack<TYPE>(v, w, get_global(a.dn + at)); sum[6] += v; sum[7] += w;
    if constexpr (NORM) { unpack<TYPE>(n, m, get_global(a.n + at)); sum[8] += v * n; sum[9] += w * m; }
  }
  const u32 memory = shared_memory();
#pragma unroll
  for (int k = 0; k < 10; k++) put_shared(memory + ((group * 10 + k) * PAIRS + pair) * 4, sum[k]);
  wait_block();
  for (int i = thread(); i < 10 * PAIRS; i += THREADS) {
    float total = 0.f;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) total += get_shared(memory + (g * 10 * PAIRS + i) * 4);
    const int k = i / PAIRS, unit = 2 * (i % PAIRS) + k % 2;
    float *to = a.partial + ((i64)block() * 5 + k / 2) * H + unit;
    *to = a.first ? total : *to + total;
  }
}

// Then the sums of the pieces, in the type of the weights.
struct Finish {
  const float *products;  // (4, pieces, H, H): of dq, ds, dg with seen, aC, o, and of dg with seen
  const float *partial;   // (parts, 5, H)
  u16 *q, *bias_q, *o, *bias_o, *g, *bias_g, *scale, *bias;
  int pieces, parts;
};
DEV void set(u16 *to, float v) { *to = (u16)pack<TYPE>(v, 0.f); }
KERNEL(attn_rnn_finish, Finish, THREADS) {
  for (int column = thread(); column < H; column += THREADS) {
    float total = 0.f;
    if (block() < 4 * H) {
      const int which = block() / H, row = block() % H;
      for (int i = 0; i < a.pieces; i++) total += a.products[(((i64)which * a.pieces + i) * H + row) * H + column];
      if (which < 2) set((which ? a.o : a.q) + (i64)row * H + column, total);
      else set(a.g + (i64)row * 2 * H + (which == 2 ? H : 0) + column, total);
    } else {
      const int which = block() - 4 * H;
      for (int i = 0; i < a.parts; i++) total += a.partial[((i64)i * 5 + which) * H + column];
      u16 *to = which == 0 ? a.bias_q : which == 1 ? a.bias_o : which == 2 ? a.bias_g : which == 3 ? a.bias : a.scale;
      if (NORM || which < 3) set(to + column, total);
    }
  }
}
