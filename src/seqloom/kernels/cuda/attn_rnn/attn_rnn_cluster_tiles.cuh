// Weights and what was shared as a cluster's warps take them.
// Rows of this warp's tile, columns of its slice. In float32 a tile is two of mma.m16n8k8, which take its columns in an order of their own:
// lane `pair` has the columns 4pair .. 4pair + 3, the first two for the first mma. A sum does not mind.
DEV void load_tile(u32 (&w)[WORDS], const Element *W, int stride, int k, const Block &b) {
  const int r = b.base + 16 * b.tile + b.row, c = 16 * (b.slice * DEEP + k) + SIZE * b.pair;
  const bool there = r < H && c < H;
  const Element *p = W + (there ? (i64)r * stride + c : 0);
#if FORMAT == 2
#pragma unroll
  for (int i = 0; i < 8; i++) {  // (row, c), (row + 8, c), (row, c + 1), (row + 8, c + 1), and again from c + 2
    const float v = there ? p[(i64)(i & 1) * 8 * stride + i / 2] : 0.f;
    w[i] = TF32 ? to_tf32(v) : bits(v);
  }
#else
  w[0] = there ? get_global(p) : 0u; w[1] = there ? get_global(p + 8 * stride) : 0u;
  w[2] = there ? get_global(p + 8) : 0u; w[3] = there ? get_global(p + 8 * stride + 8) : 0u;
#endif
}
// A warp's slice of a team's rows of a buffer, as B.
template <int SOME> DEV void load_rows(u32 (&v)[SOME][SIZE], int buffer, int g, int from, const Block &b) {
#if FORMAT == 2
  const u32 at = b.memory + AT_BUFFERS + buffer * BUFFER + (8 * g + b.row) * ROW + 64 * (b.slice * DEEP + from) + 16 * b.pair;
#pragma unroll
  for (int k = 0; k < SOME; k++) get_shared(v[k], at + 64 * k);
#else
  const u32 at = b.memory + AT_BUFFERS + buffer * BUFFER + (8 * g + (b.lane & 7)) * ROW + 32 * (b.slice * DEEP + from);
#pragma unroll
  for (int k = 0; k + 1 < SOME; k += 2) load4(v[k][0], v[k][1], v[k + 1][0], v[k + 1][1], at + 32 * k + (b.lane >> 3) * 16);
  if constexpr (SOME % 2) load2(v[SOME - 1][0], v[SOME - 1][1], at + 32 * (SOME - 1) + (b.lane >> 3 & 1) * 16);
#endif
}
// The same, where it may be made of h and x.
template <int SOME> DEV void load_buffer(u32 (&v)[SOME][SIZE], int buffer, int g, int from, const Block &b) {
  load_rows(v, buffer == MIXTURE ? FIRST : buffer, g, from, b);
  if (buffer == MIXTURE) {
    u32 x[SOME][SIZE];
    load_rows(x, SECOND, g, from, b);
#pragma unroll
    for (int k = 0; k < SOME; k++) {
      const u32 (&of)[3] = b.coefficients[MET == 1 ? 0 : 16 * (from + k) / D];
#pragma unroll
      for (int i = 0; i < SIZE; i++) v[k][i] = mixed(of, v[k][i], x[k][i]);
    }
  }
}
