// Gated cells on one block or a cluster of blocks, which runs all time steps of some rows of the batch. A
// block owns some of the units and holds their rows of all weights, as operand A of mma. All warps compute
// the product: a warp has one tile of 16 units and one of SPLIT split-K slices. SPANS warps per row of the
// batch then add the slices through shared memory, two units per lane; they do all pointwise work, keep the
// state in float32, and send the operand of the next product to every block, including their own. The operand
// buffer is double-buffered (two sides): a block that has received all of one side knows that all blocks have
// finished reading the other. A block without units sends nothing, so it could not signal that: it runs no
// steps, and no block sends to it. A side is [row][unit], as operand B of mma, padded to avoid bank
// conflicts.
#pragma once
#include "gated/cell.cuh"
#include "runtime/cluster.cuh"
#include "runtime/pairs.cuh"
#include "runtime/sums.cuh"

#ifndef EACH          // Python defines these with -D; the defaults are for editors
#define EACH 4        // tiles of 16 units per block
#define SPLIT 2       // split-K slices: warps per tile of units
#define FROM_CACHE 0  // weight tiles per warp that are reloaded from the cache in every step
#endif

#if CLUSTER == 1  // also runs on GPUs without clusters
#undef CLUSTER_KERNEL
#define CLUSTER_KERNEL(name, Args, threads, size) KERNEL(name, Args, threads)
#endif
#ifndef HELPS
#define HELPS 0  // whether warps without a row load, prepare and store the steps of row-owning warps
#endif
constexpr int H = HIDDEN, TILES = H / 16, NTILES = ROWS / 8;
constexpr int UNITS = 16 * EACH;
constexpr int WORKING = (H + UNITS - 1) / UNITS;  // blocks that have units
constexpr int WARPS = EACH * SPLIT;
constexpr int THREADS = 32 * WARPS;
constexpr int DEEP = (TILES + SPLIT - 1) / SPLIT;
constexpr int SPANS = (UNITS + 63) / 64, SPAN = UNITS < 64 ? UNITS : 64;  // warps per row, and units of each
// Values per unit in a side of the buffer, and products per unit.
constexpr int UNIT_VALUES = BACK ? GATES : 1, UNIT_PRODUCTS = BACK ? 1 : GATES;
constexpr int ROW = TYPE == FP32 ? 64 * (SPLIT * DEEP | 1) : 32 * SPLIT * DEEP + 16;  // bytes, padded
constexpr int BUFFER = ROWS * ROW, SIDE = UNIT_VALUES * BUFFER;
constexpr int LINE = UNITS + 4, PARTS = 4 * SPLIT * ROWS * LINE;  // [slice][row][unit], floats
constexpr int CHUNK = 16 / SIZE, CHUNKS = SPAN / CHUNK;  // units per 16-byte message, messages per warp
constexpr int STAGE = SIZE * UNIT_VALUES * SPAN;
// A slot holds four sums; those of the gates are double-buffered.
constexpr int SLOTS = CLUSTER * SPANS, SUMS = 32 * NORM * SLOTS * ROWS,
              MEMORY_SUMS = 16 * MEMORY * SLOTS * ROWS;
// Slots of all rows, and those in use.
constexpr int SLOTS_OF_ROWS = SLOTS * ROWS, SENDERS = WORKING * SPANS * TAKEN;
constexpr int SPREAD = GATES * NORM + 2 * MEMORY;
constexpr int AT_PARTS = 2 * SIDE;
constexpr int AT_STAGE = AT_PARTS + UNIT_PRODUCTS * PARTS;
constexpr int AT_SUMS = AT_STAGE + ROWS * SPANS * STAGE;
constexpr int AT_MEMORY_SUMS = AT_SUMS + SUMS, AT_BARRIERS = AT_MEMORY_SUMS + MEMORY_SUMS,
              AT_HANDED = AT_BARRIERS + 48;
// Words per lane that a helper warp passes to the row owner, and that it gets back; double-buffered.
constexpr int HANDED = !HELPS ? 0
                       : BACK ? (7 * GATES + 2 * STATES + 10 + 3 * MEMORY) / 4 * 4
                              : (2 * GATES + STATES + 4) / 4 * 4,
              HANDED_BACK = !HELPS ? 0
                            : BACK ? (2 * GATES + 2 * MEMORY + 5) / 4 * 4
                                   : 4,
              AT_HANDED_BACK = AT_HANDED + 2 * TAKEN * SPANS * 128 * HANDED,
              AT_WEIGHTS = AT_HANDED_BACK + 2 * TAKEN * SPANS * 128 * HANDED_BACK;
constexpr int WORDS = 2 * SIZE;  // words per lane in a weight tile
constexpr int GATED_BYTES = AT_WEIGHTS + IN_SHARED * WARPS * 128 * WORDS;
// Barriers 0 and 1 belong to the two sides of the buffer, 2 and 3 to those of the gates' sums.
constexpr int SUMS_BARRIER = 2, MEMORY_BARRIER = 4;
static_assert(WARPS >= ROWS * SPANS && UNITS <= 128 && EACH * CLUSTER >= TILES &&
                  IN_SHARED + FROM_CACHE <= GATES * DEEP,
              "no such division");

struct Block {
  int thread, lane, warp, row, pair, rank, base, tile, slice;
  int first, group_rows;        // the cluster's first row, and its maximum number of rows
  int column, span, unit;       // this warp's row (from `first`) and span of units; this lane's first unit
  bool has_row, helps, active;  // whether this warp owns a row; helps a row owner; this lane has units
  u32 memory;
  template <class Args>
  DEV Block(const Args&) {
    thread = ::thread();
    memory = shared_memory();
    lane = thread & 31;
    warp = thread >> 5;
    row = lane >> 2;
    pair = lane & 3;
    rank = block() % CLUSTER;
    base = rank * UNITS;
    group_rows = TAKEN;
    first = TAKEN * (block() / CLUSTER);
    tile = warp % EACH;
    slice = warp / EACH;
    has_row = warp < ROWS * SPANS && warp % ROWS < TAKEN;
    helps = HELPS && !has_row && warp < ROWS * SPANS && warp % ROWS < 2 * TAKEN;
    column = warp % ROWS - (helps ? TAKEN : 0);
    span = has_row || helps ? warp / ROWS : 0;
    active = (has_row || helps) && 2 * lane < SPAN && base + 64 * span + 2 * lane < H;
    unit = active ? base + 64 * span + 2 * lane : base;
  }
  DEV bool is_first() const { return rank == 0 && span == 0; }  // true for one warp per row
  DEV bool is_leader() const { return is_first() && lane == 0; }
  DEV u32 barrier(int which) const { return memory + AT_BARRIERS + 8 * which; }

  // Clear the buffers, initialise the barriers, and wait for all blocks of the cluster.
  DEV void open() const {
    for (int i = thread; i < 2 * SIDE / 4; i += THREADS) put_shared(memory + 4 * i, 0u);
    if constexpr (CLUSTER == 1)
      wait_block();
    else {
      if (thread == 0) {
#pragma unroll
        for (int i = 0; i < 5; i++) make_barrier(barrier(i));
        show_barriers();
      }
      wait_cluster();
    }
  }
  // Wait for the cluster: a block must not exit while others still write to its shared memory.
  DEV void close() const {
    if constexpr (CLUSTER > 1) wait_cluster();
  }
  // Set the byte counts that the barriers expect in step i, counted from 0.
  DEV void expect_all(int i) const {
    if (CLUSTER > 1 && thread == 0) {
      expect(barrier(i & 1), UNIT_VALUES * TAKEN * SIZE * H);
      if constexpr (NORM) expect(barrier(SUMS_BARRIER + (i & 1)), SUMS / 2 / SLOTS_OF_ROWS * SENDERS);
      if constexpr (MEMORY) expect(barrier(MEMORY_BARRIER), MEMORY_SUMS / SLOTS_OF_ROWS * SENDERS);
    }
  }
  // Wait until all of step i's side has arrived.
  DEV void take(int i) const {
    if constexpr (CLUSTER == 1)
      wait_block();
    else
      await(barrier(i & 1), i >> 1 & 1);
  }
  // Return the address of the k-th group of four words that a helper passes to this lane in step i
  // (find_handed), and of the words that the row owner returns to its helper (find_handed_back).
  DEV u32 find_handed(int i, int k) const {
    const int slot = ((i & 1) * SPANS + span) * TAKEN + column;
    return memory + AT_HANDED + 16 * ((slot * (HANDED / 4) + k) * 32 + lane);
  }
  DEV u32 find_handed_back(int i) const {
    return memory + AT_HANDED_BACK + (((i & 1) * SPANS + span) * TAKEN + column) * 128 * HANDED_BACK;
  }
  // Return the k-th value of this lane's units that the row owner shared in step i, from this block's buffer.
#if FORMAT != 2
  DEV Pair get_shared_pair(int i, int k) const {
    return to_bits(get_shared(memory + (i & 1) * SIDE + k * BUFFER + column * ROW + SIZE * unit));
  }
#endif
  // Write the values of this lane's two units into step i's side of all blocks.
  DEV void share(const Pair (&pairs)[UNIT_VALUES], int i) const {
    Pair v[UNIT_VALUES];
#pragma unroll
    for (int k = 0; k < UNIT_VALUES; k++) v[k] = round_factors(pairs[k]);
    const u32 side = (i & 1) * SIDE + column * ROW;
    if constexpr (CLUSTER == 1) {
#pragma unroll
      for (int k = 0; k < UNIT_VALUES; k++)
        if (active) put_pair_shared(memory + side + k * BUFFER + SIZE * unit, v[k]);
    } else {
      const u32 stage = memory + AT_STAGE + warp * STAGE;
#pragma unroll
      for (int k = 0; k < UNIT_VALUES; k++)
        if (2 * lane < SPAN) put_pair_shared(stage + SIZE * (SPAN * k + 2 * lane), v[k]);
      wait_warp();
#pragma unroll
      for (int n = 0; n < (UNIT_VALUES * CHUNKS * WORKING + 31) / 32; n++) {
        const int other = (lane + 32 * n) / (UNIT_VALUES * CHUNKS),
                  piece = (lane + 32 * n) % (UNIT_VALUES * CHUNKS);
        const int first = base + 64 * span + CHUNK * (piece % CHUNKS);
        if (other < WORKING && first < H) {
          float w[4];
          const u32 peer = map_to_block(memory, other);
          get_shared(w, stage + 16 * piece);
          send(peer + side + piece / CHUNKS * BUFFER + SIZE * first, peer + AT_BARRIERS + 8 * (i & 1), w);
        }
      }
      wait_warp();
    }
  }
  // Sum N values over this warp's units and send the sums of step i to the warps of all blocks that own this
  // row. WHICH 0: sums of the gates, double-buffered; 1: sums of the memory. With CLUSTER 1 the sums are in
  // shared memory, and the caller synchronises the warps of the row.
  template <int WHICH, int N>
  DEV void send_sums(float (&v)[N], int i) const {
    sum_lanes<32>(v, lane);
    if constexpr (SLOTS > 1) {
      const float all[4] = {v[0], N > 1 ? v[N > 1] : 0.f, N > 2 ? v[N > 2 ? 2 : 0] : 0.f,
                            N > 3 ? v[N > 3 ? 3 : 0] : 0.f};
      const u32 slot = find_sums(WHICH, i) + ((rank * SPANS + span) * ROWS + column) * 16;
      if constexpr (CLUSTER == 1) {
        if (lane == 0) put_shared(memory + slot, all);
      } else if (lane < WORKING) {
        const u32 peer = map_to_block(memory, lane);
        send(peer + slot, peer + AT_BARRIERS + 8 * find_barrier(WHICH, i), all);
      }
    }
  }
  // Placeholders: only the grid version (grid.cuh) polls for sums early; here st.async delivers them.
  struct Inbox {};
  template <int WHICH>
  DEV void look_for_sums(Inbox&, int) const {}
  // Wait for these sums and add them up. Every lane reads all slots if they are few; else groups of four
  // lanes share them.
  template <int WHICH, int N>
  DEV void take_sums(float (&v)[N], Inbox&, int i) const {
    constexpr int MANY = WORKING * SPANS, TURNS = MANY > 8 ? 4 : 1;
    if constexpr (SLOTS == 1) return;
    if constexpr (CLUSTER > 1) await(barrier(find_barrier(WHICH, i)), WHICH ? i & 1 : i >> 1 & 1);
    const u32 at = memory + find_sums(WHICH, i) + 16 * column;
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = 0.f;
#pragma unroll
    for (int n = 0; n < MANY; n += TURNS) {
      const int from = n + lane % TURNS;
      float w[4] = {};
      if (from < MANY) get_shared(w, at + from * ROWS * 16);
#pragma unroll
      for (int j = 0; j < N; j++) v[j] += w[j];
    }
#pragma unroll
    for (int bits = 1; bits < TURNS; bits *= 2)
#pragma unroll
      for (int j = 0; j < N; j++) v[j] += shuffle_xor(v[j], bits);
  }
  // Sum N values over all units of this row in step i; `meanwhile` runs while the sums are in flight.
  template <int WHICH, int N, class F>
  DEV void sum_row(float (&v)[N], int i, F meanwhile) const {
    Inbox none;
    send_sums<WHICH>(v, i);
    meanwhile();
    if constexpr (CLUSTER == 1 && SPANS > 1) wait_threads(1 + column, 32 * SPANS);
    take_sums<WHICH>(v, none, i);
  }
  DEV int find_sums(int which, int i) const { return which ? AT_MEMORY_SUMS : AT_SUMS + (i & 1) * SUMS / 2; }
  DEV int find_barrier(int which, int i) const { return which ? MEMORY_BARRIER : SUMS_BARRIER + (i & 1); }
  // Write this warp's split-K slice of the products to shared memory (put_parts); add the slices for this
  // lane's units (get_sums).
  DEV void put_parts(const float (&c)[UNIT_PRODUCTS][NTILES][4]) const {
#pragma unroll
    for (int m = 0; m < UNIT_PRODUCTS; m++)
#pragma unroll
      for (int n = 0; n < NTILES; n++) {
        const u32 at =
            memory + AT_PARTS + m * PARTS + 4 * ((slice * ROWS + 8 * n + 2 * pair) * LINE + 16 * tile + row);
        put_transposed(at, c[m][n], LINE);
      }
  }
  DEV void get_sums(float (&u)[2][UNIT_PRODUCTS]) const {
#pragma unroll
    for (int m = 0; m < UNIT_PRODUCTS; m++) {
      u[0][m] = u[1][m] = 0.f;
      if (active)
#pragma unroll
        for (int i = 0; i < SPLIT; i++) {
          float p, q;
          get_shared(p, q,
                     memory + AT_PARTS + m * PARTS + 4 * ((i * ROWS + column) * LINE + 64 * span + 2 * lane));
          u[0][m] += p;
          u[1][m] += q;
        }
    }
  }
};
