// Weights and what was shared as a grid's warps take them.
// Of the tiles with the same columns, rows of one of the block's two. A lane's columns are the words of `source`, four units here.
DEV void load_tile(u32 (&w)[WORDS], const Element *W, int stride, int k, const Block &b) {
  const int r = b.base + 16 * (k % TALL) + b.row, c = UNITS * b.source() + 4 * (k / TALL);
  const bool there = r < H && c < H;
  const Element *p = W + (there ? (i64)r * stride + c : 0);
  float v[4] = {};
  if (there) { get_global(v[0], v[2], (const float *)p); get_global(v[1], v[3], (const float *)(p + 8 * stride)); }
#pragma unroll
  for (int i = 0; i < 4; i++) w[i] = bits(v[i]);
}
template <int SOME> DEV void load_buffer(u32 (&v)[SOME][SIZE], int, int, int from, const Block &b) {
#pragma unroll
  for (int k = 0; k < SOME; k++) { v[k][0] = b.v[from + k][0]; v[k][1] = b.v[from + k][1]; }
}
