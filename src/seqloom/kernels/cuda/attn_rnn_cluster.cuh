// What the kernels share that run AttnRNN on a cluster of blocks. Compiled for one setting of the cell:
//   HIDDEN (a multiple of 16)   HEADS   FORMAT   CONTEXT   NORM   MASK   KEEP   RESET   as in attn_rnn.cuh
//   ROWS (of the batch that a cluster carries: 8 or 16)   CLUSTER (blocks)   EACH (tiles of 16 units to a block)
//   SPLIT (warps that share the sum of one tile's product)   KEPT (how many of the four weights lie in shared memory)
//   TF32 (whether products of float32 may see 19 bits alone)
// Each block has some units of everything, and their rows of all weights as A of mma. A product runs in all warps: a warp has
// a tile of units and a part of the sum. Its parts are added up through shared memory by as many warps as there are rows,
// one to a row of the batch, whose lanes have two units each: they do all that is pointwise, keep the state in float32,
// and send what they find to every block, this one included.
// So whoever has waited for a buffer knows that all blocks are done with the one before it; none is written too early.
// Buffers are [row][unit], as B of mma, padded so that no two lanes of a load meet in a bank.
constexpr int H = HIDDEN, D = H / HEADS, TILES = H / 16, NTILES = ROWS / 8;
constexpr int UNITS = 16 * EACH, WARPS = EACH * SPLIT, THREADS = 32 * WARPS, DEEP = (TILES + SPLIT - 1) / SPLIT;
constexpr int WORDS = 2 * SIZE;                                 // of a lane in a tile of A
constexpr int ROW = TYPE == FP32 ? 64 * (SPLIT * DEEP | 1) : 32 * SPLIT * DEEP + 16, BUFFER = ROWS * ROW;   // bytes
constexpr int LINE = UNITS + 4, PARTS = 4 * SPLIT * ROWS * LINE;  // [part][row][unit], floats
constexpr int CHUNKS = UNITS * SIZE / 16, SENDS = (CHUNKS * CLUSTER + 31) / 32, STAGE = ROWS * SIZE * UNITS;
constexpr bool CROSSED = UNITS % D != 0 && CLUSTER > 1;         // heads lie in several blocks
constexpr int PIECES = UNITS % D == 0 ? UNITS / D : D % UNITS == 0 ? 1 : (UNITS + D - 2) / D + 1;  // heads that a block meets
constexpr int SPAN = D % UNITS == 0 ? D / UNITS : (D + 2 * UNITS - 2) / UNITS;                    // blocks that a head meets
constexpr int SCORES = 16 * ROWS * PIECES * (CROSSED ? CLUSTER : 1), STATISTICS = 8 * ROWS * CLUSTER;
constexpr int PER = D % 2 ? 2 : 1;                              // heads that the two units of a lane may have
// Shared memory: three buffers, then what all kernels have, and weights that no register holds.
constexpr int AT_PARTS = 3 * BUFFER, AT_STAGE = AT_PARTS + PARTS, AT_SCORES = AT_STAGE + STAGE, AT_STATISTICS = AT_SCORES + SCORES;
constexpr int AT_BARRIERS = AT_STATISTICS + STATISTICS, AT_WEIGHTS = AT_BARRIERS + 32;
constexpr int CLUSTER_BYTES = AT_WEIGHTS + KEPT * WARPS * DEEP * WORDS * 128;
constexpr int FIRST = 0, SECOND = 1, THIRD = 2, HEAD = 3;       // barriers: of the three buffers, and of the sums over heads
static_assert(WARPS >= ROWS && UNITS <= 64 && EACH * CLUSTER >= TILES, "no such cluster");

struct Weights {
  const Element *q, *bias_q, *o, *bias_o, *g, *bias_g, *scale, *bias;  // g: (H, 2H), the half for h first
};

struct Block {
  int thread, lane, warp, row, pair, rank, base, tile, slice;
  int column, unit, from, to;  // this warp's row of the cluster's, this lane's first unit; the blocks that share heads with this one
  bool works, there;           // whether this warp has a row, and this lane units
  u32 memory;
  DEV Block() {
    thread = ::thread();
    memory = shared_memory();
    lane = thread & 31; warp = thread >> 5; row = lane >> 2; pair = lane & 3;
    rank = block() % CLUSTER; base = rank * UNITS;
    tile = warp % EACH; slice = warp / EACH;
    works = warp < ROWS; column = works ? warp : 0;
    there = works && 2 * lane < UNITS && base + 2 * lane < H;
    unit = there ? base + 2 * lane : base;
    const int end = base + UNITS < H ? base + UNITS : H;
    from = base < H ? base / D * D / UNITS : 1;
    to = base < H ? ((end - 1) / D * D + D - 1) / UNITS : 0;
  }
  DEV u32 barrier(int which) const { return memory + AT_BARRIERS + 8 * which; }

  // Zeros where no unit is, barriers, and every block at this point.
  DEV void open() const {
    for (int i = thread; i < 3 * BUFFER / 4; i += THREADS) put_shared(memory + 4 * i, 0u);
    if (thread == 0) {
#pragma unroll
      for (int i = 0; i < 4; i++) make_barrier(barrier(i));
      show_barriers();
    }
    wait_cluster();
  }
  // What a phase of each barrier brings; sums over a row come with one of the buffers.
  DEV void expect_all(int with_sums) const {
    if (CLUSTER > 1 && thread == 0) {
#pragma unroll
      for (int i = 0; i < 3; i++) expect(barrier(i), ROWS * SIZE * H + (NORM && i == with_sums ? STATISTICS : 0));
      if constexpr (CROSSED) expect(barrier(HEAD), (to - from + 1) * PIECES * ROWS * 12);
    }
  }
  // Until all of a buffer is there.
  DEV void take(int buffer, u32 parity) const {
    if constexpr (CLUSTER == 1) wait_block();
    else await(barrier(buffer), parity);
  }
  // Two units of this lane into a buffer of all blocks.
  DEV void share(int buffer, Pair v) const {
#if FORMAT == 2 && TF32
    v = {number(to_tf32(v.low)), number(to_tf32(v.high))};
#endif
    if constexpr (CLUSTER == 1) {
      if (there) put_pair_shared(memory + buffer * BUFFER + column * ROW + 2 * SIZE * lane, v);
    } else {
      const u32 stage = memory + AT_STAGE + column * SIZE * UNITS;
      if (2 * lane < UNITS) put_pair_shared(stage + 2 * SIZE * lane, v);
      wait_warp();
#pragma unroll
      for (int i = 0; i < SENDS; i++) {
        const int other = (lane + 32 * i) / CHUNKS, piece = (lane + 32 * i) % CHUNKS;
        if (other < CLUSTER && base + 16 / SIZE * piece < H) {
          float w[4];
          const u32 peer = in_block(memory, other);
          get_shared(w, stage + 16 * piece);
          send(peer + buffer * BUFFER + column * ROW + SIZE * base + 16 * piece, peer + AT_BARRIERS + 8 * buffer, w);
        }
      }
      wait_warp();
    }
  }
  DEV void put_pair_shared(u32 at, Pair v) const {
#if FORMAT == 2
    put_shared(at, v.low, v.high);
#else
    put_shared(at, v);
#endif
  }
  // A part of a product to shared memory, and the sum of the parts for the units of this lane.
  DEV void put_part(const float (&c)[NTILES][4]) const {
#pragma unroll
    for (int n = 0; n < NTILES; n++) {
      const u32 at = memory + AT_PARTS + 4 * ((slice * ROWS + 8 * n + 2 * pair) * LINE + 16 * tile + row);
      put_shared(at, c[n][0]); put_shared(at + 4 * LINE, c[n][1]);
      put_shared(at + 32, c[n][2]); put_shared(at + 4 * LINE + 32, c[n][3]);
    }
  }
  DEV void get_sum(float (&v)[2], const float (&start)[2]) const {
    v[0] = start[0]; v[1] = start[1];
    if (there)
#pragma unroll
      for (int i = 0; i < SPLIT; i++) {
        float p, q;
        get_shared(p, q, memory + AT_PARTS + 4 * ((i * ROWS + column) * LINE + 2 * lane));
        v[0] += p; v[1] += q;
      }
  }
  // One of two numbers, by the half of the lanes, to all blocks, with a buffer.
  DEV void share_number(int buffer, float s) const {
    const u32 at = AT_STATISTICS + 4 * ((rank * ROWS + column) * 2 + (lane >> 4));
    if constexpr (CLUSTER == 1) { if ((lane & 15) == 0) put_shared(memory + at, s); }
    else if ((lane & 15) < CLUSTER) send(in_block(memory, lane & 15) + at, in_block(memory, lane & 15) + AT_BARRIERS + 8 * buffer, s);
  }
  // Sums of two over all units of this row, in two steps: of this block to all blocks, then over the blocks.
  DEV void share_sums(int buffer, float v, float w) const {
    const bool second = (lane & 16) != 0;
    float s = (second ? w : v) + from_other(second ? v : w, 16);
    share_number(buffer, over_half(s));
  }
  DEV void get_sums(float &v, float &w) const {
    const bool second = (lane & 16) != 0;
    float s = (lane & 15) < CLUSTER ? get_shared(memory + AT_STATISTICS + 4 * (((lane & 15) * ROWS + column) * 2 + second)) : 0.f;
    s = over_half(s);
    const float other = from_other(s, 16);
    v = second ? other : s; w = second ? s : other;
  }
  DEV float over_half(float s) const {
#pragma unroll
    for (int bits = 8; bits; bits /= 2) s += from_other(s, bits);
    return s;
  }
  DEV int units_of(int rank) const { return rank * UNITS >= H ? 0 : rank * UNITS + UNITS > H ? H - rank * UNITS : UNITS; }
  // Mean and 1 / deviation of a row. In float32 a difference of large sums would cost digits: each block has a mean of its own, from
  // which it takes its squares.
  DEV void share_spread(int buffer, const float (&z)[2]) const {
    if constexpr (TYPE == FP32) {
      float sum = there ? z[0] + z[1] : 0.f;
      sum = over_half(sum + from_other(sum, 16));
      const float mine = there ? sum / units_of(rank) : 0.f, v = there ? z[0] - mine : 0.f, w = there ? z[1] - mine : 0.f;
      float square = v * v + w * w;
      square = over_half(square + from_other(square, 16));
      share_number(buffer, lane & 16 ? square : sum);
    } else share_sums(buffer, z[0] + z[1], z[0] * z[0] + z[1] * z[1]);
  }
  DEV void get_spread(float &mean, float &r) const {
    if constexpr (TYPE == FP32) {
      float sum = 0.f, square = 0.f;
      const int n = (lane & 15) < CLUSTER ? units_of(lane & 15) : 0;
      if (n) get_shared(sum, square, memory + AT_STATISTICS + 8 * ((lane & 15) * ROWS + column));
      mean = over_half(sum) * (1.0f / H);
      const float off = n ? sum / n - mean : 0.f;
      r = 1.f / sqrtf(over_half(square + n * off * off) * (1.0f / H) + 1e-5f);
    } else {
      get_sums(mean, r);
      mean *= 1.0f / H;
      r = inverse_root(larger(r * (1.0f / H) - mean * mean, 0.f) + 1e-5f);
    }
  }
  // Sums of three over the units of the lane's head.
  DEV void head_sums(float (&s)[PER][3], const float (&p)[3][2], u32 parity) const {
    const int which = lane < 8 ? 0 : lane < 16 ? 1 : 2;
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
      float v[3];
#pragma unroll
      for (int k = 0; k < 3; k++) {
        const bool first = PIECES == 1 || unit / D == base / D + j, second = PIECES == 1 || (unit + 1) / D == base / D + j;
        v[k] = there ? (first ? p[k][0] : 0.f) + (second ? p[k][1] : 0.f) : 0.f;
      }
      const float sum = fold(v);
      const u32 at = AT_SCORES + 4 * (((CROSSED ? rank * PIECES : 0) + j) * 4 * ROWS + column * 4 + which);
      if constexpr (CROSSED) {
        if (lane < 24)
          for (int other = from + (lane & 7); other <= to; other += 8) send(in_block(memory, other) + at, in_block(memory, other) + AT_BARRIERS + 8 * HEAD, sum);
      } else if (lane < 24 && lane % 8 == 0) put_shared(memory + at, sum);
    }
    if constexpr (CROSSED) await(barrier(HEAD), parity); else wait_warp();
#pragma unroll
    for (int e = 0; e < PER; e++) {
      const int head = (unit + e) / D, first = CROSSED ? head * D / UNITS : 0, last = CROSSED ? (head * D + D - 1) / UNITS : 0;
      s[e][0] = s[e][1] = s[e][2] = 0.f;
#pragma unroll
      for (int i = 0; i < (CROSSED ? SPAN : 1); i++)
        if (there && first + i <= last) {
          float v[4];
          const int home = CROSSED ? (first + i) * UNITS / D : base / D;
          get_shared(v, memory + AT_SCORES + 16 * ((CROSSED ? (first + i) * PIECES : 0) + head - home) * ROWS + 16 * column);
#pragma unroll
          for (int k = 0; k < 3; k++) s[e][k] += v[k];
        }
    }
  }
  // Sums over the lanes: of the first in lanes 0..7, of the second in 8..15, of the third in the others.
  DEV float fold(const float (&v)[3]) const {
    const bool upper = (lane & 16) != 0, odd = (lane & 8) != 0;
    const float a = (upper ? v[2] : v[0]) + from_other(upper ? v[0] : v[2], 16), b = v[1] + from_other(v[1], 16);
    float s = (upper || !odd ? a : b) + from_other(upper || odd ? a : b, 8);
#pragma unroll
    for (int bits = 4; bits; bits /= 2) s += from_other(s, bits);
    return s;
  }
};
