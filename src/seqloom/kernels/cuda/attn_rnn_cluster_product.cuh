// Products on a cluster of blocks: a weight's share of a warp, and its product with a buffer.
// Tiles of A and B are 16 wide. In float32 they are two of mma.m16n8k8, which take the columns of a tile in an order of their own:
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

// Rows of the warp's tile, columns of its slice: in registers, or in shared memory, where a lane reads what it wrote itself.
template <bool IN_SHARED> struct Weight {
  u32 w[IN_SHARED ? 1 : DEEP][WORDS], at;
  DEV void load(const Element *W, int stride, const Block &b, int which = 0) {
    at = b.memory + AT_WEIGHTS + ((which * WARPS + b.warp) * DEEP * WORDS / 4) * 512 + 16 * b.lane;
#pragma unroll
    for (int k = 0; k < DEEP; k++) {
      u32 v[WORDS];
      load_tile(v, W, stride, k, b);
#pragma unroll
      for (int i = 0; i < WORDS; i += 4) {
        const u32 four[4] = {v[i], v[i + 1], v[i + 2], v[i + 3]};
        if constexpr (IN_SHARED) put_shared(at + (k * WORDS + i) * 128, four);
        else
#pragma unroll
          for (int j = 0; j < 4; j++) w[k][i + j] = four[j];
      }
    }
  }
  DEV void get(u32 (&v)[4], int k, int i) const {  // the i-th four words of tile k
    if constexpr (IN_SHARED) get_shared(v, at + (k * WORDS + 4 * i) * 128);
    else
#pragma unroll
      for (int j = 0; j < 4; j++) v[j] = w[k][4 * i + j];
  }
};

// A warp's slice of 8 rows of a buffer, as B.
template <int SOME> DEV void load_buffer(u32 (&v)[SOME][SIZE], int buffer, int n, int from, const Block &b) {
#if FORMAT == 2
  const u32 at = b.memory + buffer * BUFFER + (8 * n + b.row) * ROW + 64 * (b.slice * DEEP + from) + 16 * b.pair;
#pragma unroll
  for (int k = 0; k < SOME; k++) get_shared(v[k], at + 64 * k);
#else
  const u32 at = b.memory + buffer * BUFFER + (8 * n + (b.lane & 7)) * ROW + 32 * (b.slice * DEEP + from);
#pragma unroll
  for (int k = 0; k + 1 < SOME; k += 2) load4(v[k][0], v[k][1], v[k + 1][0], v[k + 1][1], at + 32 * k + (b.lane >> 3) * 16);
  if constexpr (SOME % 2) load2(v[SOME - 1][0], v[SOME - 1][1], at + 32 * (SOME - 1) + (b.lane >> 3 & 1) * 16);
#endif
}
// Two numbers of 19 bits whose sum is v to all of its digits but one or two. Of weights they are made in every step where no
// registers are left to keep them.
constexpr bool KEEP_SPLIT = 2 * 4 * DEEP * WORDS * WARPS <= 8 * 128 && WARPS < 16;
DEV void split(u32 &big, u32 &small, u32 v, bool keep) {
  big = keep ? to_tf32(number(v)) : to_tf32_here(number(v));
  small = bits(number(v) - number(big));
}
// c += W times a buffer, in sums that overlap.
template <bool IN_SHARED> DEV void product(float (&c)[NTILES][4], const Weight<IN_SHARED> &W, int buffer, const Block &b) {
  constexpr int AHEAD = NTILES == 1 ? DEEP : TYPE == FP32 ? 1 : DEEP < 4 ? DEEP : 4;  // tiles of B that there are registers for
  u32 v[NTILES][AHEAD][SIZE];
  float other[NTILES][4] = {};
#pragma unroll
  for (int k = 0; k < DEEP; k++) {
    if (k % AHEAD == 0)
#pragma unroll
      for (int n = 0; n < NTILES; n++) load_buffer<AHEAD>(v[n], buffer, n, k, b);
#pragma unroll
    for (int i = 0; i < WORDS / 4; i++) {
      u32 w[4];
      W.get(w, k, i);
#if FORMAT == 2 && !TF32
      u32 big[4], small[4];
#pragma unroll
      for (int j = 0; j < 4; j++) split(big[j], small[j], w[j], KEEP_SPLIT);
#pragma unroll
      for (int n = 0; n < NTILES; n++) {  // all of float32 but small * small; mma cuts its sums off, so they are added up outside of it
        u32 x[2], y[2];
        float sum[4] = {};
        split(x[0], y[0], v[n][k % AHEAD][2 * i], true); split(x[1], y[1], v[n][k % AHEAD][2 * i + 1], true);
        mma_tf32(sum, big[0], big[1], big[2], big[3], x[0], x[1]);
        mma_tf32(other[n], small[0], small[1], small[2], small[3], x[0], x[1]);
        mma_tf32(other[n], big[0], big[1], big[2], big[3], y[0], y[1]);
#pragma unroll
        for (int j = 0; j < 4; j++) c[n][j] += sum[j];
      }
#else
#pragma unroll
      for (int n = 0; n < NTILES; n++) {
        float (&sum)[4] = (k * WORDS / 4 + i) % 2 ? other[n] : c[n];
#if FORMAT == 2
        mma_tf32(sum, w[0], w[1], w[2], w[3], v[n][k % AHEAD][2 * i], v[n][k % AHEAD][2 * i + 1]);
#else
        mma<TYPE>(sum, w[0], w[1], w[2], w[3], v[n][k % AHEAD][0], v[n][k % AHEAD][1]);
#endif
      }
#endif
    }
  }
#pragma unroll
  for (int n = 0; n < NTILES; n++)
#pragma unroll
    for (int j = 0; j < 4; j++) c[n][j] += other[n][j];
}
DEV void clear(float (&c)[NTILES][4]) {
#pragma unroll
  for (int i = 0; i < 4 * NTILES; i++) c[i / 4][i % 4] = 0.f;
}
// Two numbers of this lane's units; zeros where it has none.
DEV void load_pair(float (&v)[2], const Element *from, bool there) {
#pragma unroll
  for (int e = 0; e < 2; e++) v[e] = there ? get_one(from + e) : 0.f;
}
