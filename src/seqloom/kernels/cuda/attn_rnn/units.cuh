// AttnRNN's units divided among blocks. Each block holds some of the units and their rows of all weights, as
// the A operand of mma. All warps compute a product: a warp has tiles of units and a split-K slice of the
// sum. One warp per row of the batch adds up the slices through shared memory, two units per lane; the warp
// does the pointwise work, keeps the state in float32 and sends its results to every block, including its
// own. Rows form 8-row groups, `row_group` in the code: while the values of one group are in transit, all
// warps compute the products of the other. cluster.cuh and grid.cuh implement the exchange: each defines
// Block, load_tile (of a weight) and load_buffer (of received values). A value of the form c_h h + c_x x +
// c_hx h x, with three coefficients for each head, does not have to be sent: a block that has the sums over
// heads, h and x can compute it (CAN_MIX). aC has this form. The gradient of q has it too, but computing that
// is slower than sending it.
#pragma once
#include "attn_rnn/arguments.cuh"
#include "runtime/sums.cuh"

#ifndef ROWS       // Python defines these with -D; the defaults are for editors
#define GRID 0     // 1: blocks anywhere on the GPU (attn_rnn/grid.cuh), 0: a cluster (attn_rnn/cluster.cuh)
#define ROWS 8     // rows of the batch per group of blocks: 8 or 16
#define CLUSTER 2  // blocks per group
#define EACH 2     // tiles of 16 units per block
#define SPLIT 4    // split-K slices: warps per tile of units
#define TALL 1     // tiles per warp
#define WEIGHTS_IN_SHARED 0  // how many of the four weights lie in shared memory
#define TILES_IN_SHARED 0    // tiles of one more weight that lie there
#define LANES 32             // lanes per row in pointwise work
#define ROUNDS 1             // with GRID: a warp receives from four sources in each round
#define TF32 0               // whether products of float32 may round to 19 bits (TF32)
#endif

constexpr int TILES = H / 16, ROW_GROUPS = ROWS / 8;
constexpr int UNITS = 16 * EACH, WARPS = EACH / TALL * SPLIT, THREADS = 32 * WARPS;
constexpr int WORDS = 2 * SIZE;                                   // words per lane in a tile of A
constexpr int LINE = UNITS + 4, PARTS = 4 * SPLIT * ROWS * LINE;  // bytes: [part][row][unit], floats
// Heads with units in one block, at most.
constexpr int PIECES = UNITS % D == 0 ? UNITS / D : D % UNITS == 0 ? 1 : (UNITS + D - 2) / D + 1;
// Blocks with units of one head, at most.
constexpr int SPAN = D % UNITS == 0 ? D / UNITS : (D + 2 * UNITS - 2) / UNITS;
constexpr int PER = D % 2 ? 2 : 1;               // heads that a lane's two units may belong to
constexpr int FIRST = 0, SECOND = 1, THIRD = 2;  // the messages of a step
static_assert(32 * WARPS >= LANES * ROWS && 2 * LANES >= UNITS && EACH * CLUSTER >= TILES,
              "no such division");
typedef float Sums[TALL][4];  // a lane's accumulators of a product

// Convert a value to a word: in 16-bit types the word holds two copies of it. mix() computes
// c[0] h + x (c[1] + c[2] h) on words.
#if FORMAT == 2
DEV u32 to_word(float v) { return to_bits(v); }
DEV u32 mix(const u32 (&c)[3], u32 h, u32 x) {
  return to_bits(to_float(x) * (to_float(c[2]) * to_float(h) + to_float(c[1])) +
                 to_float(c[0]) * to_float(h));
}
#else
DEV u32 to_word(float v) { return pack<TYPE>(v, v); }
DEV u32 mix(const u32 (&c)[3], u32 h, u32 x) {
  return fma_pairs<TYPE>(x, fma_pairs<TYPE>(c[2], h, c[1]), fma_pairs<TYPE>(c[0], h, 0u));
}
#endif

#define EACH_ROW_GROUP(g, b) \
  _Pragma("unroll") for (int g = 0; g < ROW_GROUPS; g++) if (ROW_GROUPS == 1 || g < (b).row_groups)

struct Units {
  int thread, lane, warp, row, pair, rank, base, tile, slice;
  int first, column, unit;  // the group's first row, this warp's row in the group, this lane's first unit
  int row_group;            // the 8-row group of `column`
  bool has_row, active;     // whether this warp has a row, and whether this lane has units
  u32 memory, parts;        // split-K slices of sums start at the base of shared memory
  int group_rows;           // rows per group of blocks, at most
  DEV Units(int begin, int group_rows) : group_rows(group_rows) {
    thread = ::thread();
    memory = parts = shared_memory();
    lane = thread & 31;
    warp = thread >> 5;
    row = lane >> 2;
    pair = lane & 3;
    rank = block() % CLUSTER;
    base = rank * UNITS;
    tile = warp % (EACH / TALL) * TALL;
    slice = warp / (EACH / TALL);
    first = begin + group_rows * (block() / CLUSTER);
    has_row = warp < ROWS;
    column = has_row ? warp : 0;
    row_group = column / 8;
    active = has_row && 2 * lane < UNITS && base + 2 * lane < H;
    unit = active ? base + 2 * lane : base;
  }
  // Find the length of this row, and the longest length of the group's rows.
  DEV void read_lengths(int& length, int& end, const i64* lengths, int B, int T) const {
    length = end = 0;
    for (int i = 0; i < group_rows; i++)
      if (first + i < B) {
        const int n = lengths ? (int)lengths[first + i] : T;
        end = n > end ? n : end;
        if (has_row && i == column) length = n;
      }
    if (base >= H) end = 0;  // a block without units takes no steps
  }
  DEV bool is_member(int g) const { return has_row && row_group == g; }
  // Wait until all split-K slices of a product are written. With one 8-row group all warps wait; with two,
  // only those that need the sum wait and the others just arrive.
  DEV void gather(bool needs, int name) const {
    if (ROW_GROUPS == 1)
      wait_block();
    else if (needs)
      wait_threads(name, THREADS);
    else
      arrive_threads(name, THREADS);
  }
  // Write this warp's slice of an 8-row group's product to shared memory; get_sum adds up the slices of this
  // lane's units.
  DEV void put_part(const Sums& c, int g) const {
#pragma unroll
    for (int i = 0; i < TALL; i++) {
      const u32 at = parts + 4 * ((slice * ROWS + 8 * g + 2 * pair) * LINE + 16 * (tile + i) + row);
      put_transposed(at, c[i], LINE);
    }
  }
  DEV void get_sum(float (&v)[2], Pair start) const {
    from_pair(v[0], v[1], start);
    if (active)
#pragma unroll
      for (int i = 0; i < SPLIT; i++) {
        float p, q;
        get_shared(p, q, parts + 4 * ((i * ROWS + column) * LINE + 2 * (lane % LANES)));
        v[0] += p;
        v[1] += q;
      }
  }
  // Sum over the lanes of a row. The first half of the lanes gets the sum of v, the other half that of w.
  DEV float sum_lanes(float v, float w) const {
    const bool second = (lane & LANES / 2) != 0;
    float s = (second ? w : v) + shuffle_xor(second ? v : w, LANES / 2);
#pragma unroll
    for (int bits = LANES / 4; bits; bits /= 2) s += shuffle_xor(s, bits);
    return s;
  }
  // Convert the sum (mean) and the sum of squares (r) to the mean and 1 / deviation.
  DEV void find_moments(float& mean, float& r) const {
    mean *= 1.0f / REAL_H;
    r = inverse_root(maximum(r * (1.0f / REAL_H) - mean * mean, 0.f) + 1e-5f);
  }
  // Sum three values over the lanes of a row, counting only units of the block's j-th head. The first quarter
  // of the lanes gets the first sum, the second quarter the second, the other half the third.
  DEV float sum_head(const float (&p)[3][2], int j) const {
    float v[3];
#pragma unroll
    for (int k = 0; k < 3; k++) {
      const bool low = PIECES == 1 || unit / D == base / D + j,
                 high = PIECES == 1 || (unit + 1) / D == base / D + j;
      v[k] = active ? (low ? p[k][0] : 0.f) + (high ? p[k][1] : 0.f) : 0.f;
    }
    const bool upper = (lane & LANES / 2) != 0, odd = (lane & LANES / 4) != 0;
    const float a = (upper ? v[2] : v[0]) + shuffle_xor(upper ? v[0] : v[2], LANES / 2),
                b = v[1] + shuffle_xor(v[1], LANES / 2);
    float s = (upper || !odd ? a : b) + shuffle_xor(upper || odd ? a : b, LANES / 4);
#pragma unroll
    for (int bits = LANES / 8; bits; bits /= 2) s += shuffle_xor(s, bits);
    return s;
  }
};
