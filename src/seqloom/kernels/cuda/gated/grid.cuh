// Gated cells on a group of blocks anywhere on the GPU, which runs all time steps of some rows of the batch.
// A block owns 32 units (16 or 32 in float32) and holds their rows of all weights, as operand A of mma. A
// source is 16 words of a row of the state: 32 units in 16 bits, 16 in float32, where a block of 32 units is
// two sources. A warp has all unit tiles of the block (HALVED: one of two) and a split-K slice of four
// sources per round: their words are its operand B of mma as they arrive, each lane's from one source.
// Pointwise work uses 16 lanes per row. A row of a source is sent as six packets (runtime/packet.cuh) of
// three words: words 0 .. 7 in the first three, 8 .. 15 in the others. Float32 without TF32 is sent as an
// fp16 hi/lo split (runtime/hi_lo.cuh): two words hold the high and the low parts of two units, and the
// spare word of the third packet holds the inverse of their scale (`unit` in the code). Packets are
// double-buffered (two sides): a block writes one side only after it has received all of the other. Sums over
// units are sent as packets, too, or (CLUSTERED: the group is a cluster) through distributed shared memory.
#pragma once
#include "gated/cell.cuh"
#if CLUSTERED
#include "runtime/clustered_grid.cuh"
#endif
#include "runtime/hi_lo.cuh"
#include "runtime/packets.cuh"
#include "runtime/pairs.cuh"
#include "runtime/sums.cuh"

#ifndef TALL    // set by Python with -D; this default is for editors
#define TALL 2  // tiles of 16 units per block
#endif
#define HELPS 0
constexpr bool HI_LO = TYPE == FP32 && !TF32;
constexpr int H = HIDDEN, NTILES = ROWS / 8, SOURCES = 4, PACKETS = 6;
constexpr int UNITS = 16 * TALL, SOURCE_UNITS = 64 / SIZE, BLOCK_SOURCES = UNITS / SOURCE_UNITS,
              ALL_SOURCES = (H + SOURCE_UNITS - 1) / SOURCE_UNITS;
// SPLIT warps split K; with few sources, each half of the warps takes one of the two tiles of units.
constexpr int WARPS = 8, HALVED = TALL == 2 && ALL_SOURCES <= WARPS * SOURCES / 2,
              SPLIT = WARPS / (1 + HALVED), WARP_TALL = TALL / (1 + HALVED);
// A warp receives from SOURCES sources at a time, in two rounds if there are more than SPLIT * SOURCES.
constexpr int ROUNDS = ALL_SOURCES > SPLIT *SOURCES ? 2 : 1, WIDE = 8,
              DEEP = WIDE * ROUNDS;  // K tiles per round, and of all rounds
constexpr int THREADS = 32 * WARPS;
// Values sent per unit, and products per unit.
constexpr int UNIT_VALUES = BACK ? GATES : 1, UNIT_PRODUCTS = BACK ? 1 : GATES;
constexpr int LINE = UNITS + 4, PARTS = 4 * SPLIT * ROWS * LINE;  // [slice][row][unit], floats
constexpr int SPREAD = GATES * NORM + 2 * MEMORY;
constexpr int MESSAGE = ROWS * SPLIT * ROUNDS * PACKETS * SOURCES, SIDE = UNIT_VALUES * MESSAGE;  // packets
constexpr int AT_SUMS = 2 * SIDE;
// Whether only the lanes of one row poll when a group has many rows. Forward pass in bf16 with 1,024 units
// and 64 rows: 2.3 us per step, 2.9 us if all poll. The backward pass and float32 without TF32 are up to 6 %
// faster if all poll. Backward pass of LN-LSTM with 512 units: 3.4 us with this setting, 4.2 us with the
// opposite one.
constexpr bool ONE_POLLS = NORM ? BACK && MEMORY && HALVED : !BACK && !HI_LO;
// One packet per row and block holds sums over units; those of the gates are double-buffered.
constexpr int SUMS = ROWS * CLUSTER, SUM_SIDES = 2 * NORM + MEMORY;
constexpr int GROUP = AT_SUMS + (CLUSTERED ? 0 : SUM_SIDES * SUMS);
constexpr int AT_WEIGHTS = UNIT_PRODUCTS * PARTS, AT_NEAR_SUMS = AT_WEIGHTS + IN_SHARED * WARPS * 512,
              AT_BARRIERS = AT_NEAR_SUMS + CLUSTERED * SUM_SIDES * SUMS * 16;
constexpr int GATED_BYTES = AT_BARRIERS + CLUSTERED * 32;
static_assert(ALL_SOURCES <= SPLIT * SOURCES * ROUNDS && UNITS * CLUSTER >= H && UNITS <= 32 &&
                  UNITS % SOURCE_UNITS == 0,
              "no such group");

struct Block {
  Packet *packets, *inbox;  // the group's packets, and the first that this lane receives
  int thread, lane, warp, row, pair, rank, base;
  int slice, tall;              // this warp's split-K slice, and its first tile of units
  int first, group_rows, rows;  // the group's first row, maximum and actual number of rows
  int column, unit;             // this lane's row (from `first`) and first unit
  bool has_row, sends, active;  // whether this warp has a row; this lane has one; this lane has units
  static constexpr bool helps = false;
  u32 memory;
  template <class Args>
  DEV Block(const Args& a) {
    thread = ::thread();
    memory = shared_memory();
    lane = thread & 31;
    warp = thread >> 5;
    row = lane >> 2;
    pair = lane & 3;
    slice = warp % SPLIT;
    tall = warp / SPLIT;
    rank = block() % CLUSTER;
    base = rank * UNITS;
    group_rows = a.group_rows;
    first = a.begin + group_rows * (block() / CLUSTER);
    rows = a.B - first < group_rows ? (a.B > first ? a.B - first : 0) : group_rows;
    packets = a.packets + (i64)(block() / CLUSTER) * GROUP;
    inbox = keep_in_register(packets + (8 * slice * ROUNDS * PACKETS + row) * SOURCES + pair);
    has_row = NTILES * warp < rows;
    column = NTILES == 2 ? 2 * warp + lane / 16 : warp;
    sends = column < rows && (NTILES == 2 || lane < 16);
    active = sends && 2 * (lane % 16) < UNITS && base + 2 * (lane % 16) < H;
    unit = active ? base + 2 * (lane % 16) : base;
  }
  DEV bool is_leader() const { return rank == 0 && lane % 16 == 0; }  // one lane per row
  // Return the source whose words this lane receives in a round.
  DEV int source(int round) const { return SOURCES * (ROUNDS * slice + round) + pair; }
#if CLUSTERED
  DEV u32 barrier(int side) const { return memory + AT_BARRIERS + 8 * side; }
  // Initialise one barrier for each side of the sums, and wait for all blocks of the cluster.
  DEV void open() const {
    if (thread == 0) {
#pragma unroll
      for (int i = 0; i < SUM_SIDES; i++) make_barrier(barrier(i));
      show_barriers();
    }
    wait_cluster();
  }
  // Wait for the cluster: a block must not exit while others still write to its shared memory.
  DEV void close() const { wait_cluster(); }
  // Set the byte counts that the barriers expect in step i, counted from 0.
  DEV void expect_all(int i) const {
    if (thread != 0) return;
    expect(barrier(find_side(0, i)), 16 * CLUSTER * rows);
    if constexpr (MEMORY) expect(barrier(find_side(1, i)), 16 * CLUSTER * rows);
  }
#else
  DEV void open() const {}
  DEV void close() const {}
  DEV void expect_all(int) const {}
#endif
  // Receive messages k .. k + N - 1 of step i; a message is one value per unit for eight rows and the sources
  // of a round. With the hi/lo split, unit[n] is the inverse scale of this lane's words of the n-th message
  // received.
  template <int N>
  DEV void take(u32 (&v)[N][WIDE][2], float (&unit)[N], int i, int k) const {
    u32 p[N * PACKETS][4] = {}, numbers[N * PACKETS];
    const Packet* from[N * PACKETS];
#pragma unroll
    for (int j = 0; j < N * PACKETS; j++) {
      const int n = k + j / PACKETS, tile = n % NTILES, round = n / NTILES % ROUNDS,
                message = n / NTILES / ROUNDS;
      from[j] = inbox + (i & 1) * SIDE + message * MESSAGE +
                8 * ((tile * SPLIT * ROUNDS + round) * PACKETS + j % PACKETS) * SOURCES;
      numbers[j] = 8 * tile + row < rows && source(round) < ALL_SOURCES ? i + 1 : 0u;
    }
    collect<ONE_POLLS>(p, from, numbers, rows, row);
#pragma unroll
    for (int n = 0; n < N; n++) {
      if constexpr (HI_LO) unit[n] = to_float(p[PACKETS * n + 2][2]);
#pragma unroll
      for (int w = 0; w < 16; w++) v[n][w / 2][w % 2] = p[PACKETS * n + 3 * (w / 8) + w % 8 / 3][w % 8 % 3];
    }
  }
  // Return a word of this row's state: two units, or one in float32.
  DEV float get_word(Pair mine, int word) const {
    const int row = lane & 16;
#if FORMAT == 2
    const float low = shuffle(mine.low, row + word / 2 % 16), high = shuffle(mine.high, row + word / 2 % 16);
    return word % 2 ? high : low;
#else
    return shuffle(to_float(mine), row + word % 16);
#endif
  }
  // Send the values of this lane's two units to all blocks in step i.
  DEV void share(const Pair (&v)[UNIT_VALUES], int i) const {
    const bool has_packet = lane % 16 < BLOCK_SOURCES * PACKETS;
    const int which = has_packet ? lane % 16 / PACKETS : 0, j = has_packet ? lane % 16 % PACKETS : 0;
    const int from = 16 * which + 8 * (j / 3) + 3 * (j % 3);  // the packet's first word in the row
    const int source = BLOCK_SOURCES * rank + which;
    Packet* to =
        packets + (i & 1) * SIDE +
        (8 * ((column / 8 * SPLIT * ROUNDS + source / SOURCES) * PACKETS + j) + column % 8) * SOURCES +
        source % SOURCES;
#pragma unroll
    for (int k = 0; k < UNIT_VALUES; k++) {
      Pair mine = active ? round_factors(v[k]) : Pair{};
      float unit = 0.f;
#if FORMAT == 2
      if constexpr (HI_LO) {
        const float scale = find_scale(max_of_lanes<8>(find_size(mine.low, mine.high)), unit);
        u32 high, low;
        split_hi_lo(high, low, scale * mine.low, scale * mine.high);
        mine = {to_float(high), to_float(low)};
        unit = shuffle(unit, (lane & 16) + 8 * which);
      }
#endif
      const float a = get_word(mine, from), b = get_word(mine, from + 1), word = get_word(mine, from + 2),
                  c = HI_LO && j % 3 == 2 ? unit : word;
      if (sends && has_packet) put_packet(to + k * MESSAGE, to_bits(a), to_bits(b), to_bits(c), i + 1);
    }
  }
  // Sum N values over this block's units and send the sums of step i to all blocks. WHICH 0: sums of the
  // gates, double-buffered; 1: sums of the memory. A packet holds three words, so four sums are rounded to 24
  // bits.
  template <int WHICH, int N>
  DEV void send_sums(float (&v)[N], int i) const {
    sum_lanes<16>(v, lane);
#if CLUSTERED
    const float all[4] = {v[0], N > 1 ? v[N > 1] : 0.f, N > 2 ? v[N > 2 ? 2 : 0] : 0.f,
                          N > 3 ? v[N > 3 ? 3 : 0] : 0.f};
    if (sends && lane % 16 < CLUSTER) {
      const u32 peer = map_to_block(memory, lane % 16);
      send(peer + AT_NEAR_SUMS + 16 * (find_side(WHICH, i) * SUMS + column * CLUSTER + rank),
           peer + AT_BARRIERS + 8 * find_side(WHICH, i), all);
    }
#else
    u32 w[3] = {};
    if constexpr (N == 4) {
      u32 cut[4];
#pragma unroll
      for (int k = 0; k < N; k++) cut[k] = to_bits(v[k]) + 128u >> 8;
      w[0] = cut[0] | cut[1] << 24;
      w[1] = cut[1] >> 8 | cut[2] << 16;
      w[2] = cut[2] >> 16 | cut[3] << 8;
    } else
#pragma unroll
      for (int k = 0; k < N; k++) w[k] = to_bits(v[k]);
    if (sends && lane % 16 == 0)
      put_packet(find_sums(WHICH, i) + column * CLUSTER + rank, w[0], w[1], w[2], i + 1);
#endif
  }
  // Packets of sums, read early by look_for_sums, and read again by take_sums if they had not arrived.
  struct Inbox {
    u32 p[(CLUSTER + 15) / 16][4] = {};
  };
  template <int WHICH>
  DEV void look_for_sums(Inbox& in, int i) const {
#pragma unroll
    for (int j = 0; j < (CLUSTER + 15) / 16; j++)
      if (!CLUSTERED && sends && lane % 16 + 16 * j < CLUSTER && in.p[j][3] != i + 1)
        get_packet(in.p[j], find_sums(WHICH, i) + column * CLUSTER + lane % 16 + 16 * j);
  }
  // Wait for these sums and add them up.
  template <int WHICH, int N>
  DEV void take_sums(float (&v)[N], Inbox& in, int i) const {
#if CLUSTERED
    float w[4] = {};
    await(barrier(find_side(WHICH, i)), WHICH ? i & 1 : i >> 1 & 1);
    if (sends && lane % 16 < CLUSTER)
      get_shared(w, memory + AT_NEAR_SUMS + 16 * (find_side(WHICH, i) * SUMS + column * CLUSTER + lane % 16));
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = w[k];
#else
    constexpr int TIMES = (CLUSTER + 15) / 16;
    const Packet* from[TIMES];
    u32 numbers[TIMES];
#pragma unroll
    for (int j = 0; j < TIMES; j++) {
      const int other = lane % 16 + 16 * j;
      const bool arrives = sends && other < CLUSTER;
      from[j] = arrives ? find_sums(WHICH, i) + column * CLUSTER + other : packets;
      numbers[j] = arrives ? i + 1 : 0u;
    }
    collect<false>(in.p, from, numbers, rows, row);
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = 0.f;
#pragma unroll
    for (int j = 0; j < TIMES; j++) {
      const u32(&w)[4] = in.p[j];
      if constexpr (N == 4) {
        v[0] += to_float(w[0] << 8);
        v[1] += to_float(w[0] >> 24 << 8 | w[1] << 16);
        v[2] += to_float(w[1] >> 16 << 8 | w[2] << 24);
        v[3] += to_float(w[2] >> 8 << 8);
      } else
#pragma unroll
        for (int k = 0; k < N; k++) v[k] += to_float(w[k]);
    }
#endif
    sum_lanes<16>(v, lane);
  }
  // Sum N values over all units of this row in step i; `meanwhile` runs while the sums are in flight.
  template <int WHICH, int N, class F>
  DEV void sum_row(float (&v)[N], int i, F meanwhile) const {
    Inbox in;
    send_sums<WHICH>(v, i);
    meanwhile();
    take_sums<WHICH>(v, in, i);
  }
  // Return the side of the sums of the gates (0) or the memory (1) in step i.
  DEV int find_side(int which, int i) const { return which ? 2 : i & 1; }
  DEV Packet* find_sums(int which, int i) const { return packets + AT_SUMS + find_side(which, i) * SUMS; }
  // Write this warp's split-K slice of one product of eight rows to shared memory (put_part); add the slices
  // for this lane's units (get_sums).
  DEV void put_part(const float (&c)[WARP_TALL][4], int which, int tile) const {
#pragma unroll
    for (int i = 0; i < WARP_TALL; i++) {
      const u32 at =
          memory + which * PARTS + 4 * ((slice * ROWS + 8 * tile + 2 * pair) * LINE + 16 * (tall + i) + row);
      put_transposed(at, c[i], LINE);
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
          get_shared(p, q, memory + m * PARTS + 4 * ((i * ROWS + column) * LINE + 2 * (lane % 16)));
          u[0][m] += p;
          u[1][m] += q;
        }
    }
  }
};
