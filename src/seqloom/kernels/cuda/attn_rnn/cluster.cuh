// AttnRNN's units divided among the blocks of a cluster, which write to each other's shared memory. A block
// that has received a complete buffer knows that every block has read the previous one, so no buffer is
// overwritten too early. A block without units runs no steps, and no block sends to it. Buffers are
// [row][unit], the B operand of mma, padded so that loads have no bank conflicts. The code calls 8 rows of
// the batch, the n = 8 of mma, a row_group; the comments call them an 8-row group.
#pragma once
#include "attn_rnn/units.cuh"
#include "runtime/cluster.cuh"

constexpr int DEEP = (TILES + SPLIT - 1) / SPLIT;  // weight tiles per warp
// bytes
constexpr int ROW = TYPE == FP32 ? 64 * (SPLIT * DEEP | 1) : 32 * SPLIT * DEEP + 16, BUFFER = ROWS * ROW;
constexpr int WORKING = (H + UNITS - 1) / UNITS;  // blocks that have units
constexpr int CHUNKS = UNITS * SIZE / 16, SENDS = (CHUNKS * WORKING + 31) / 32, STAGE = ROWS * SIZE * UNITS;
constexpr bool SPLIT_HEADS = UNITS % D != 0 && CLUSTER > 1;  // a head may span several blocks
// If heads span several blocks and there is no second 8-row group to overlap the exchange with, aC is not
// sent: every block computes it from the sums over heads, h and x. PART: units of a warp's split-K slice;
// PART_HEADS: heads with units in that slice.
constexpr int PART = 16 * DEEP, PART_HEADS = PART % D == 0 ? PART / D : 1;
constexpr bool CAN_MIX =
    SPLIT_HEADS && ROW_GROUPS == 1 && (PART % D == 0 || D % PART == 0) && PART_HEADS <= 4;
// Pseudo-buffer for aC, which is computed from h (the first buffer) and x (the second) when it is loaded.
constexpr int MIXTURE = 3;
constexpr int BUFFERS = 3;
constexpr int SCORES = 16 * ROWS * PIECES * (SPLIT_HEADS ? CLUSTER : 1), STATISTICS = 8 * ROWS * CLUSTER;
// Shared memory: split-K partial sums, buffers, staging, sums over heads, LayerNorm sums, mbarriers, and the
// weights that do not fit in registers.
constexpr int AT_BUFFERS = PARTS;
constexpr int AT_STAGE = AT_BUFFERS + BUFFERS * BUFFER;
constexpr int AT_SCORES = AT_STAGE + STAGE;
constexpr int AT_STATISTICS = AT_SCORES + SCORES;
constexpr int AT_BARRIERS = AT_STATISTICS + STATISTICS, AT_WEIGHTS = AT_BARRIERS + 32 * ROW_GROUPS;
constexpr int CLUSTER_BYTES = AT_WEIGHTS + (WEIGHTS_IN_SHARED * DEEP + TILES_IN_SHARED) * WARPS * WORDS * 128;
// No registers are left to preload weights from shared memory.
constexpr int PRELOAD_TILES = 0, PRELOAD_TILES_BACK = 0;
// Barriers of an 8-row group: 0 to 2 for its three buffers, 3 for its sums over heads.
constexpr int HEAD = 3;
// The backward pass has no registers left to hold two steps.
constexpr bool FETCH_LATE = WARPS > 8;
constexpr bool EARLY_SUMS = true;  // the sums over a row arrive together with their buffer

struct Block : Units {
  int from, to, senders;            // first, last and number of the blocks that share heads with this one
  int row_groups;                   // 8-row groups that have rows
  u32 coefficients[PART_HEADS][3];  // of h, x and h * x, as words of a buffer (to_word)
  template <class Args>
  DEV Block(const Args& a) : Units(0, ROWS) {
    row_groups = ROW_GROUPS > 1 && first + 8 >= a.B ? 1 : ROW_GROUPS;
    has_row = has_row && row_group < row_groups;
    const int end = base + UNITS < H ? base + UNITS : H;
    from = base < H ? base / D * D / UNITS : 1;
    to = base < H ? ((end - 1) / D * D + D - 1) / UNITS : 0;
    senders = to - from + 1;
  }
  // Make share_scores send the sums over heads to every block.
  DEV void send_to_all() {
    from = base < H ? 0 : 1;
    to = base < H ? WORKING - 1 : 0;
    senders = WORKING;
  }
  DEV u32 barrier_offset(int which, int g) const { return AT_BARRIERS + 8 * (4 * g + which); }
  DEV u32 barrier(int which, int g) const { return memory + barrier_offset(which, g); }

  // Clear the buffers, initialise the barriers, and wait for every block.
  DEV void open() const {
    for (int i = thread; i < BUFFERS * BUFFER / 4; i += THREADS) put_shared(memory + AT_BUFFERS + 4 * i, 0u);
    if (thread == 0) {
#pragma unroll
      for (int i = 0; i < 4 * ROW_GROUPS; i++) make_barrier(barrier(i, 0));
      show_barriers();
    }
    wait_cluster();
  }
  DEV void close() const { wait_cluster(); }
  // Set the bytes that each barrier expects in this step (expect_tx). Buffer `with_sums` also brings the sums
  // over a row; buffer `unsent` is not sent.
  DEV void expect_all(int with_sums, int unsent = -1) const {
    if (CLUSTER > 1 && thread == 0) {
#pragma unroll
      for (int g = 0; g < ROW_GROUPS; g++)
        if (g < row_groups) {
#pragma unroll
          for (int i = 0; i < 3; i++)
            if (i != unsent)
              expect(
                  barrier(i, g),
                  8 * SIZE * H + (NORM && i == with_sums ? STATISTICS / CLUSTER * WORKING / ROW_GROUPS : 0));
          if constexpr (SPLIT_HEADS) expect(barrier(HEAD, g), senders * PIECES * 8 * 16);
        }
    }
  }
  // Wait until all rows of 8-row group g have arrived in a buffer.
  DEV void take(int buffer, u32 parity, int g) const {
    if constexpr (CLUSTER == 1)
      wait_block();
    else
      await(barrier(buffer, g), parity);
  }
  DEV void gather(int g) const { Units::gather(is_member(g), 1 + g); }
  // Write this lane's two units to a buffer of every block.
  DEV void share(int buffer, Pair v) const {
    v = round_factors(v);
    if constexpr (CLUSTER == 1) {
      if (active) put_pair_shared(memory + AT_BUFFERS + buffer * BUFFER + column * ROW + 2 * SIZE * lane, v);
    } else {
      const u32 stage = memory + AT_STAGE + column * SIZE * UNITS;
      if (2 * lane < UNITS) put_pair_shared(stage + 2 * SIZE * lane, v);
      wait_warp();
#pragma unroll
      for (int i = 0; i < SENDS; i++) {
        const int other = (lane + 32 * i) / CHUNKS, piece = (lane + 32 * i) % CHUNKS;
        if (other < WORKING && base + 16 / SIZE * piece < H) {
          float w[4];
          const u32 peer = map_to_block(memory, other);
          get_shared(w, stage + 16 * piece);
          send(peer + AT_BUFFERS + buffer * BUFFER + column * ROW + SIZE * base + 16 * piece,
               peer + barrier_offset(buffer, row_group), w);
        }
      }
      wait_warp();
    }
  }
  // Send one of two sums to all blocks along with a buffer: the first by lanes 0-15, the second by 16-31.
  DEV void share_number(int buffer, float s) const {
    const u32 at = AT_STATISTICS + 4 * ((rank * ROWS + column) * 2 + (lane >> 4));
    if constexpr (CLUSTER == 1) {
      if ((lane & 15) == 0) put_shared(memory + at, s);
    } else if ((lane & 15) < WORKING) {
      const u32 peer = map_to_block(memory, lane & 15);
      send(peer + at, peer + barrier_offset(buffer, row_group), s);
    }
  }
  // Sum two values over all units of this row: share_sums sends this block's sums to all blocks, get_sums
  // adds up those of all blocks.
  DEV void share_sums(int buffer, float v, float w) const { share_number(buffer, sum_lanes(v, w)); }
  DEV void get_sums(float& v, float& w) const {
    const bool second = (lane & 16) != 0;
    float s = (lane & 15) < WORKING
                  ? get_shared(memory + AT_STATISTICS + 4 * (((lane & 15) * ROWS + column) * 2 + second))
                  : 0.f;
    s = sum_half(s);
    const float other = shuffle_xor(s, 16);
    v = second ? other : s;
    w = second ? s : other;
  }
  DEV float sum_half(float s) const {
#pragma unroll
    for (int bits = 8; bits; bits /= 2) s += shuffle_xor(s, bits);
    return s;
  }
  // If aC is not sent: start a cp.async of all units of this warp's row of x into the buffer that would
  // otherwise receive aC.
  DEV void fetch_units(const Element* line, int buffer) const {
    for (int i = lane; i < H * SIZE / 16; i += 32)
      cp_async16(memory + AT_BUFFERS + buffer * BUFFER + column * ROW + 16 * i, line + 16 / SIZE * i, 16);
    cp_async_commit();
  }
  DEV void wait_units() const { cp_async_wait<0>(); }
  DEV int find_head(int j) const { return slice * PART / D + j; }
  // Compute the coefficients for this lane's row of 8-row group g from the sums over the heads in this warp's
  // split-K slice.
  template <class F>
  DEV void take_mixture(const Element*, i64, u32 parity, int g, F find_coefficients) {
    await(barrier(HEAD, g), parity);
#pragma unroll
    for (int j = 0; j < PART_HEADS; j++) {
      const int head = find_head(j), first = head * D / UNITS, last = (head * D + D - 1) / UNITS;
      float s[3] = {}, c[3];
#pragma unroll
      for (int i = 0; i < SPAN; i++)
        if (head < HEADS && first + i <= last) {
          float v[4];
          get_shared(v,
                     memory + AT_SCORES +
                         16 * (((first + i) * PIECES + head - (first + i) * UNITS / D) * ROWS + 8 * g + row));
#pragma unroll
          for (int k = 0; k < 3; k++) s[k] += v[k];
        }
      find_coefficients(c, s, j);
#pragma unroll
      for (int k = 0; k < 3; k++) coefficients[j][k] = to_word(c[k]);
    }
  }
  DEV int count_units(int rank) const {
    return rank * UNITS >= H ? 0 : rank * UNITS + UNITS > H ? H - rank * UNITS : UNITS;
  }
  // Compute the mean and 1 / deviation of a row. In float32, E[z^2] - mean^2 would lose digits by
  // cancellation: each block sums squared deviations from its own mean, and get_moments combines these sums.
  DEV void share_moments(int buffer, const float (&z)[2]) const {
    if constexpr (TYPE == FP32) {
      float sum = active ? z[0] + z[1] : 0.f;
      sum = sum_half(sum + shuffle_xor(sum, 16));
      const float own_mean = active ? sum * (1.f / count_units(rank)) : 0.f,
                  v = active ? z[0] - own_mean : 0.f, w = active ? z[1] - own_mean : 0.f;
      float square = v * v + w * w;
      square = sum_half(square + shuffle_xor(square, 16));
      share_number(buffer, lane & 16 ? square : sum);
    } else
      share_sums(buffer, z[0] + z[1], z[0] * z[0] + z[1] * z[1]);
  }
  DEV void get_moments(float& mean, float& r) const {
    if constexpr (TYPE == FP32) {
      float sum = 0.f, square = 0.f;
      const int n = (lane & 15) < WORKING ? count_units(lane & 15) : 0;
      if (n) get_shared(sum, square, memory + AT_STATISTICS + 8 * ((lane & 15) * ROWS + column));
      mean = sum_half(sum) * (1.0f / REAL_H);
      const float difference = n ? sum * (1.f / n) - mean : 0.f;
      square = sum_half(square + n * difference * difference) - PADDING * mean * mean;
      r = 1.f / sqrtf(square * (1.0f / REAL_H) + 1e-5f);
    } else {
      get_sums(mean, r);
      find_moments(mean, r);
    }
  }
  // Sum three values over the units of the lane's head: share_scores sends this block's sums to all blocks
  // that share the head, get_scores adds up those of all.
  DEV void share_scores(const float (&p)[3][2]) const {
    const int which = lane < 8 ? 0 : lane < 16 ? 1 : 2;
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
      const float sum = sum_head(p, j);
      const u32 at = AT_SCORES + 16 * (((SPLIT_HEADS ? rank * PIECES : 0) + j) * ROWS + column);
      if constexpr (SPLIT_HEADS) {
        const float all[4] = {shuffle(sum, 0), shuffle(sum, 8), shuffle(sum, 16), 0.f};
        if (from + lane <= to) {
          const u32 peer = map_to_block(memory, from + lane);
          send(peer + at, peer + barrier_offset(HEAD, row_group), all);
        }
      } else if (lane < 24 && lane % 8 == 0)
        put_shared(memory + at + 4 * which, sum);
    }
  }
  DEV void get_scores(float (&s)[PER][3], u32 parity) const {
    if constexpr (SPLIT_HEADS)
      await(barrier(HEAD, row_group), parity);
    else
      wait_warp();
#pragma unroll
    for (int e = 0; e < PER; e++) {
      const int head = (unit + e) / D, first = SPLIT_HEADS ? head * D / UNITS : 0,
                last = SPLIT_HEADS ? (head * D + D - 1) / UNITS : 0;
      s[e][0] = s[e][1] = s[e][2] = 0.f;
#pragma unroll
      for (int i = 0; i < (SPLIT_HEADS ? SPAN : 1); i++)
        if (active && first + i <= last) {
          float v[4];
          const int home = SPLIT_HEADS ? (first + i) * UNITS / D : base / D;
          get_shared(v, memory + AT_SCORES +
                            16 * ((SPLIT_HEADS ? (first + i) * PIECES : 0) + head - home) * ROWS +
                            16 * column);
#pragma unroll
          for (int k = 0; k < 3; k++) s[e][k] += v[k];
        }
    }
  }
};
// Load tile k of this warp's rows and split-K slice as the A operand. In float32 a tile serves two
// mma.m16n8k8 with permuted columns: lane `pair` has columns 4pair .. 4pair + 3, the first two for the first
// mma. B is permuted in the same way (load_rows), so the product is the same.
DEV void load_tile(u32 (&w)[WORDS], const Element* W, int stride, int k, const Block& b) {
  const int r = b.base + 16 * b.tile + b.row, c = 16 * (b.slice * DEEP + k) + SIZE * b.pair;
  const bool active = r < H && c < H;
  const Element* p = W + (active ? (i64)r * stride + c : 0);
#if FORMAT == 2
#pragma unroll
  // (row, c), (row + 8, c), (row, c + 1), (row + 8, c + 1), then the same for c + 2 and c + 3
  for (int i = 0; i < 8; i++) {
    const float v = active ? p[(i64)(i & 1) * 8 * stride + i / 2] : 0.f;
    w[i] = TF32 ? to_tf32(v) : to_bits(v);
  }
#else
  w[0] = active ? get_global(p) : 0u;
  w[1] = active ? get_global(p + 8 * stride) : 0u;
  w[2] = active ? get_global(p + 8) : 0u;
  w[3] = active ? get_global(p + 8 * stride + 8) : 0u;
#endif
}
// Load this warp's split-K slice of the rows of 8-row group g of a buffer as the B operand.
template <int COUNT>
DEV void load_rows(u32 (&v)[COUNT][SIZE], int buffer, int g, int from, const Block& b) {
#if FORMAT == 2
  const u32 at = b.memory + AT_BUFFERS + buffer * BUFFER + (8 * g + b.row) * ROW +
                 64 * (b.slice * DEEP + from) + 16 * b.pair;
#pragma unroll
  for (int k = 0; k < COUNT; k++) get_shared(v[k], at + 64 * k);
#else
  const u32 at =
      b.memory + AT_BUFFERS + buffer * BUFFER + (8 * g + (b.lane & 7)) * ROW + 32 * (b.slice * DEEP + from);
#pragma unroll
  for (int k = 0; k + 1 < COUNT; k += 2)
    load4(v[k][0], v[k][1], v[k + 1][0], v[k + 1][1], at + 32 * k + (b.lane >> 3) * 16);
  if constexpr (COUNT % 2)
    load2(v[COUNT - 1][0], v[COUNT - 1][1], at + 32 * (COUNT - 1) + (b.lane >> 3 & 1) * 16);
#endif
}
// Like load_rows, but compute MIXTURE from h and x.
template <int COUNT>
DEV void load_buffer(u32 (&v)[COUNT][SIZE], int buffer, int g, int from, const Block& b) {
  load_rows(v, buffer == MIXTURE ? FIRST : buffer, g, from, b);
  if (buffer == MIXTURE) {
    u32 x[COUNT][SIZE];
    load_rows(x, SECOND, g, from, b);
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
      const u32(&c)[3] = b.coefficients[PART_HEADS == 1 ? 0 : 16 * (from + k) / D];
#pragma unroll
      for (int i = 0; i < SIZE; i++) v[k][i] = mix(c, v[k][i], x[k][i]);
    }
  }
}
