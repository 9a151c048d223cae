// Weights and what was shared as a grid's warps take them.
// Of the tiles with the same columns, rows of one of the block's. A lane's columns are words of a source: four units here.
DEV void load_tile(u32 (&w)[WORDS], const Element *W, int stride, int k, const Block &b) {
  const int n = k / TALL, r = b.base + 16 * (k % TALL) + b.row, c = UNITS * b.source(4 * n * SIZE / 64) + 4 * n % UNITS;
  const bool there = r < H && c < H;
  const Element *p = W + (there ? (i64)r * stride + c : 0);
#if FORMAT == 2
  float v[2][4] = {};
  if (there) { get_global(v[0], p); get_global(v[1], p + (i64)8 * stride); }
#pragma unroll
  for (int i = 0; i < 8; i++) w[i] = TF32 ? to_tf32(v[i & 1][i / 2]) : bits(v[i & 1][i / 2]);
#else
  float v[4] = {};
  if (there) { get_global(v[0], v[2], (const float *)p); get_global(v[1], v[3], (const float *)(p + 8 * stride)); }
#pragma unroll
  for (int i = 0; i < 4; i++) w[i] = bits(v[i]);
#endif
}
template <int SOME> DEV void load_buffer(u32 (&v)[SOME][SIZE], int, int, int from, const Block &b) {
#pragma unroll
  for (int k = 0; k < SOME; k++)
#pragma unroll
    for (int i = 0; i < SIZE; i++) v[k][i] = b.v[from + k][i];
}
