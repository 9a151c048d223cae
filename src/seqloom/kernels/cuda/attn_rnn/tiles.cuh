// AttnRNN's units divided among blocks that take many rows of the batch: products of tiles in shared memory.
// A group of BLOCKS blocks anywhere on the GPU carries ROWS rows; a block has UNITS units. What a product
// needs of other blocks lies in the GPU's memory, and counters say when it is complete. Both factors of a
// product are fetched in chunks of 128 or 256 bytes of a row, those of a weight before the others are known.
// Eight warps: two halves of the rows, and four quarters of every chunk, whose sums meet in shared memory.
// Then a thread has EACH units of one row, in all that is pointwise.
//
// In float32 a number is two halves of fp16 in two planes (IN_HALVES): those of a block's units in a row have
// one power of 2, and so have 32 rows of a weight. With TF32 it is one number of 19 bits.
#pragma once
#include "attn_rnn/arguments.cuh"
#include "attn_rnn/math.cuh"
#include "runtime/counter.cuh"
#include "runtime/halves.cuh"
#if PAIR == 2
#include "runtime/pair.cuh"
#endif
#if BULK
#include "runtime/bulk.cuh"
#endif
#include "runtime/packets.cuh"
#include "runtime/wgmma.cuh"

#ifndef ROWS             // Python gives these with -D; the values here serve editors
#define ROWS 64          // of a group: 32 or 64
#define CLUSTER 4        // blocks, or pairs of them, of a group
#define UNITS 16         // of a block or a pair: 16, 32 or 64
#define CHUNK 128        // bytes of a row in a chunk: 128 or 256
#define STAGES 4         // chunks of numbers on their way
#define WEIGHT_STAGES 4  // and of weights
#define RESIDENT 0       // the last chunks of every weight, which stay in shared memory
#define TF32 0           // whether products of float32 may see 19 bits alone
#define WGMMA 0          // whether four warps multiply together (Hopper): 64 rows
#define BULK 0           // whether one thread fetches whole chunks (Hopper)
#define PAIR 1  // blocks that have the same units; of two, each has half of every sum and of the rows
#endif

constexpr bool IN_HALVES = TYPE == FP32 && !TF32;
constexpr int THREADS = 256, BLOCKS = CLUSTER, OWN_ROWS = ROWS / PAIR, EACH = OWN_ROWS * UNITS / THREADS,
              SHARE = THREADS / OWN_ROWS;
constexpr int PLANES = IN_HALVES ? 2 : 1, NUMBER = IN_HALVES ? 2 : SIZE;  // bytes of a number in a plane
constexpr int CHUNKS = H * NUMBER / CHUNK / PAIR, EIGHTS = CHUNK / 16, LINES = CHUNK / 128;  // of 128 bytes
// Parts of a sum, each of some steps of 32 bytes in every chunk; tiles of 16 rows to a warp of mma. Two times
// four warps divide the steps, or the columns if these are many.
constexpr int DIVIDED = !WGMMA       ? 4
                        : UNITS < 64 ? 2
                                     : 1,
              QUARTERS = DIVIDED * PAIR, STEPS = EIGHTS / 2 / DIVIDED, TALL = ROWS / 32;
constexpr int WIDEST = 2 * UNITS;  // columns of the widest product
constexpr int STAGE = ROWS * CHUNK * PLANES, WEIGHT_STAGE = WIDEST * CHUNK * PLANES;
constexpr int SCALE_LINE = BLOCKS + 4;  // floats of a row's units in shared memory
constexpr int PARTS =
    (4 * DIVIDED * OWN_ROWS * (WIDEST + 8) + 1023) / 1024 * 1024;  // bytes; they lie where numbers were
constexpr int AT_PARTS = 0, AT_WEIGHTS = STAGES * STAGE > PARTS ? STAGES * STAGE : PARTS;
constexpr int AT_RESIDENT = AT_WEIGHTS + WEIGHT_STAGES * WEIGHT_STAGE, FLEETING = CHUNKS - RESIDENT;
constexpr int AT_OTHERS = AT_RESIDENT + RESIDENT * 4 * UNITS * CHUNK * PLANES;  // parts of the other block
constexpr int AT_SCALES = AT_OTHERS + (PAIR - 1) * PARTS;
constexpr int AT_CONSTANTS = AT_SCALES + (IN_HALVES ? 4 * ROWS * BLOCKS / PAIR : 0), CONSTANTS = 5;
constexpr int AT_BARRIERS = AT_CONSTANTS + 4 * CONSTANTS * UNITS,
              TILES_BYTES = AT_BARRIERS + (BULK ? 128 : 0) + (WGMMA ? 1024 : 0);
// Chunks on their way. Products in the background may still read the stage before the present one.
constexpr int LEAD = (RESIDENT == CHUNKS || STAGES < WEIGHT_STAGES ? STAGES : WEIGHT_STAGES) -
                     (WGMMA && !IN_HALVES && !BULK ? 2 : 1);
constexpr int SPAN = D / UNITS;  // blocks of a head
static_assert(D % UNITS == 0 && H * NUMBER % CHUNK == 0 && EACH % 2 == 0 && BLOCKS % 4 == 0 &&
                  UNITS * BLOCKS == H && BLOCKS % SHARE == 0 && (!WGMMA || ROWS == 64) &&
                  (PAIR == 1 || WGMMA) &&
                  (!BULK || WGMMA && STAGES < 16 && (RESIDENT == CHUNKS || STAGES == WEIGHT_STAGES)) &&
                  LEAD > 0,
              "no such division");

// What a group shares, in bytes from its begin: a counter, for each of three messages its numbers and their
// units, sums over heads as packets, sums over rows.
constexpr int AT_NUMBERS = 128, NUMBERS = ROWS * H * NUMBER * PLANES, AT_UNITS = AT_NUMBERS + 3 * NUMBERS,
              ALL_UNITS = 4 * ROWS * BLOCKS, AT_SCORES = AT_UNITS + 3 * ALL_UNITS,
              AT_MOMENTS = AT_SCORES + 16 * ROWS * BLOCKS,
              GROUP_BYTES = (AT_MOMENTS + 8 * ROWS * BLOCKS + 16 * ROWS - 1) / (16 * ROWS) * (16 * ROWS);

// A factor of a product: rows of a weight, of the three that a block has one after the other in each chunk.
struct Factor {
  const u8* at;   // its first chunk; the next one follows after ALL_ROWS of them
  int before;     // rows before it
  float unit[2];  // of its numbers in float32: of the first UNITS rows, and of the others
};
constexpr int ALL_ROWS = 4 * UNITS * CHUNK * PLANES;  // bytes

template <int N>
struct Sums {
  float c[TALL][N / 8][4];
};

// A thread's units of a row as words of 32 bits, and back.
constexpr int WORDS = EACH * SIZE / 4;
DEV void to_words(u32 (&w)[WORDS], const float (&v)[EACH]) {
#if FORMAT == 2
#pragma unroll
  for (int e = 0; e < EACH; e++) w[e] = to_bits(v[e]);
#else
#pragma unroll
  for (int e = 0; e < EACH; e += 2) w[e / 2] = pack<TYPE>(v[e], v[e + 1]);
#endif
}
// Store words, as many at a time as can be.
template <int N>
DEV void store_words(u8* to, const u32 (&w)[N]) {
  if constexpr (N % 4 == 0)
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const u32 four[4] = {w[i], w[i + 1], w[i + 2], w[i + 3]};
      put_global((u16*)(to + 4 * i), four);
    }
  else if constexpr (N == 2)
    put_global((float*)to, to_float(w[0]), to_float(w[1]));
  else
    put_global((u16*)to, w[0]);
}
DEV void store_units(Element* to, const float (&v)[EACH]) {
  u32 w[WORDS];
  to_words(w, v);
  store_words((u8*)to, w);
}
// Load a thread's units, zeros if they do not exist. They begin at a multiple of their size, or of 16 bytes.
DEV void load_units(float (&v)[EACH], const Element* from, bool exists) {
  u32 w[WORDS] = {};
  if (exists) {
    if constexpr (WORDS % 4 == 0)
#pragma unroll
      for (int i = 0; i < WORDS; i += 4) {
        u32 four[4];
        get_global(four, (const u16*)from + 2 * i);
#pragma unroll
        for (int k = 0; k < 4; k++) w[i + k] = four[k];
      }
    else if constexpr (WORDS == 2) {
      float p, q;
      get_global(p, q, (const float*)from);
      w[0] = to_bits(p);
      w[1] = to_bits(q);
    } else
      w[0] = get_global((const u16*)from);
  }
#if FORMAT == 2
#pragma unroll
  for (int e = 0; e < EACH; e++) v[e] = to_float(w[e]);
#else
#pragma unroll
  for (int e = 0; e < EACH; e += 2) unpack<TYPE>(v[e], v[e + 1], w[e / 2]);
#endif
}
DEV void load_floats(float (&v)[EACH], const float* from, bool exists) {
#pragma unroll
  for (int e = 0; e < EACH; e++) v[e] = 0.f;
  if (!exists) return;
  if constexpr (EACH % 4 == 0)
#pragma unroll
    for (int e = 0; e < EACH; e += 4) {
      float four[4];
      get_global(four, from + e);
#pragma unroll
      for (int k = 0; k < 4; k++) v[e + k] = four[k];
    }
  else
#pragma unroll
    for (int e = 0; e < EACH; e += 2) get_global(v[e], v[e + 1], from + e);
}
// The same for what begins anywhere.
DEV void load_pairs(float (&v)[EACH], const Element* from, bool exists) {
#pragma unroll
  for (int e = 0; e < EACH; e += 2) {
    v[e] = v[e + 1] = 0.f;
    if (exists) from_pair(v[e], v[e + 1], get_pair(from + e));
  }
}

struct Block {
  int thread, lane, warp, quarter, half, side, rank, base, first, rows;
  int row, column, unit;  // this thread's row of the group, and its first unit in the block and at all
  bool active;            // whether there is such a row
  u32 memory, count = 0, parities = 0;  // parities: of the barriers of stages
  u8* shared_by_all;
  template <class Args>
  DEV Block(const Args& a) {
    thread = ::thread();
    lane = thread & 31;
    warp = thread >> 5;
    quarter = warp & 3;
    half = warp >> 2;
    memory = WGMMA ? (shared_memory() + 1023u) & ~1023u : shared_memory();
    side = block() % PAIR;
    rank = block() / PAIR % BLOCKS;
    base = rank * UNITS;
    first = a.begin + a.group_rows * (block() / (BLOCKS * PAIR));
    rows = a.B - first < a.group_rows ? (a.B > first ? a.B - first : 0) : a.group_rows;
    row = side * OWN_ROWS + thread / SHARE;
    column = thread % SHARE * EACH;
    unit = base + column;
    active = row < rows;
    shared_by_all = (u8*)a.packets + (i64)(block() / (BLOCKS * PAIR)) * GROUP_BYTES;
  }
  DEV void read_lengths(int& length, int& end, const i64* lengths, int T) const {
    length = end = 0;
    for (int i = 0; i < rows; i++) {
      const int n = lengths ? (int)lengths[first + i] : T;
      end = n > end ? n : end;
      if (i == row) length = n;
    }
  }
  // Put numbers of this block's units into shared memory; get those of this thread's units.
  DEV void put_constants(int which, const Element* from, bool exists) const {
    if (thread < UNITS)
      put_shared(memory + AT_CONSTANTS + 4 * (which * UNITS + thread),
                 exists ? get_one(from + base + thread) : 0.f);
  }
  DEV void get_constants(float (&v)[EACH], int which) const {
    const u32 at = memory + AT_CONSTANTS + 4 * (which * UNITS + column);
#pragma unroll
    for (int e = 0; e < EACH; e += 2) get_shared(v[e], v[e + 1], at + 4 * e);
  }
  // All threads have written their part of a message: say so. Then wait until all blocks of the group have.
  DEV void announce() const {
#if BULK
    order_copies();
#endif
    wait_block();
    if (thread == 0) count_up((u32*)shared_by_all);
  }
  DEV void await_all() {
    count += BLOCKS * PAIR;
    if (thread == 0)
      for (int i = 0; (int)(read_counter((const u32*)shared_by_all) - count) < 0; i++)
        if (i == MOST_POLLS) give_up();
    wait_block();
  }

  // Return where a chunk of N rows of a weight lies.
  template <int N>
  DEV u32 find_weight(const Factor& w, int chunk) const {
    if (RESIDENT == 0 || chunk < FLEETING)
      return memory + AT_WEIGHTS + chunk % (WEIGHT_STAGES ? WEIGHT_STAGES : 1) * WEIGHT_STAGE;
    return memory + AT_RESIDENT + (w.before * RESIDENT + (chunk - FLEETING) * N) * CHUNK * PLANES;
  }
  // Fetch some bytes, by all threads.
  DEV void fetch_bytes(u32 to, const u8* from, int bytes) const {
    for (int i = 16 * thread; i < bytes; i += 16 * THREADS) fetch16(to + i, from + i, 16);
  }
#if BULK
  // Make the barriers of stages, and one for what stays.
  DEV void make_barriers() const {
    if (thread == 0)
      for (int i = 0; i <= STAGES; i++) make_barrier(memory + AT_BARRIERS + 8 * i);
    show_barriers();
    wait_block();
  }
  // Return the barrier of a chunk, and the bytes of a part of it.
  DEV u32 find_barrier(int chunk) const { return memory + AT_BARRIERS + 8 * (chunk % STAGES); }
  // Fetch chunks of a weight, and expect those of the numbers; by one thread.
  template <int N>
  DEV void fetch_weight(const Factor& w, int chunk) const {
    if (chunk >= CHUNKS) return;
    constexpr int BYTES = N * CHUNK * PLANES;
    expect(find_barrier(chunk),
           STAGE + (chunk < FLEETING ? BYTES : 0) + (IN_HALVES && chunk == 0 ? ALL_UNITS / PAIR : 0));
    if (chunk < FLEETING)
      fetch_bulk(find_weight<N>(w, chunk), w.at + (i64)chunk * ALL_ROWS, BYTES, find_barrier(chunk));
  }
  DEV void load_resident(const Factor& first, const Factor& second, const Factor& third) const {
    const u32 barrier = memory + AT_BARRIERS + 8 * STAGES;
    if (RESIDENT == 0) return;
    if (thread == 0) {
      expect(barrier, RESIDENT * ALL_ROWS);
      for (int chunk = FLEETING; chunk < CHUNKS; chunk++) {
        const i64 at = (i64)chunk * ALL_ROWS;
        fetch_bulk(find_weight<2 * UNITS>(first, chunk), first.at + at, ALL_ROWS / 2, barrier);
        fetch_bulk(find_weight<UNITS>(second, chunk), second.at + at, ALL_ROWS / 4, barrier);
        fetch_bulk(find_weight<UNITS>(third, chunk), third.at + at, ALL_ROWS / 4, barrier);
      }
    }
    await(barrier, 0);
  }
  DEV void fetch_numbers(int message, int chunk) const {
    if (chunk >= CHUNKS) return;
    if (IN_HALVES && chunk == 0)
      fetch_bulk(memory + AT_SCALES,
                 shared_by_all + AT_UNITS + message * ALL_UNITS + side * (ALL_UNITS / PAIR), ALL_UNITS / PAIR,
                 find_barrier(0));
    fetch_bulk(memory + chunk % STAGES * STAGE,
               shared_by_all + AT_NUMBERS + message * NUMBERS + (side * CHUNKS + chunk) * STAGE, STAGE,
               find_barrier(chunk));
  }
  template <int N>
  DEV void prepare(const Factor& w) const {
    if (thread == 0)
#pragma unroll 1
      for (int chunk = 0; chunk < LEAD; chunk++) fetch_weight<N>(w, chunk);
  }
  template <int N>
  DEV void fetch_next(int message, const Factor& w, int chunk) const {
    if (chunk + LEAD >= CHUNKS) return;
    wait_block();  // all have multiplied the stage that is fetched next
    if (thread == 0) {
      fetch_weight<N>(w, chunk + LEAD);
      fetch_numbers(message, chunk + LEAD);
    }
  }
#else
  // Fetch a chunk of N rows of a weight.
  template <int N>
  DEV void fetch_weight(const Factor& w, int chunk) const {
    if (chunk < FLEETING)
      fetch_bytes(find_weight<N>(w, chunk), w.at + (i64)chunk * ALL_ROWS, N * CHUNK * PLANES);
  }
  // Fetch the chunks of weights that stay.
  DEV void load_resident(const Factor& first, const Factor& second, const Factor& third) const {
    for (int chunk = FLEETING; chunk < CHUNKS; chunk++) {
      fetch_bytes(find_weight<2 * UNITS>(first, chunk), first.at + (i64)chunk * ALL_ROWS, ALL_ROWS / 2);
      fetch_bytes(find_weight<UNITS>(second, chunk), second.at + (i64)chunk * ALL_ROWS, ALL_ROWS / 4);
      fetch_bytes(find_weight<UNITS>(third, chunk), third.at + (i64)chunk * ALL_ROWS, ALL_ROWS / 4);
    }
    fetch_commit();
  }
  // Fetch a chunk of a message's rows; with the first one, the units of all numbers.
  DEV void fetch_numbers(int message, int chunk) const {
    if (chunk >= CHUNKS) return;
    if (IN_HALVES && chunk == 0)
      fetch_bytes(memory + AT_SCALES,
                  shared_by_all + AT_UNITS + message * ALL_UNITS + side * (ALL_UNITS / PAIR),
                  ALL_UNITS / PAIR);
    fetch_bytes(memory + chunk % STAGES * STAGE,
                shared_by_all + AT_NUMBERS + message * NUMBERS + (side * CHUNKS + chunk) * STAGE, STAGE);
  }
  // Begin to fetch a weight, before the other factor is known.
  template <int N>
  DEV void prepare(const Factor& w) const {
#pragma unroll 1
    for (int chunk = 0; chunk < LEAD; chunk++) fetch_weight<N>(w, chunk);
  }
  template <int N>
  DEV void fetch_next(int message, const Factor& w, int chunk) const {
    fetch_weight<N>(w, chunk + LEAD);
    fetch_numbers(message, chunk + LEAD);
    fetch_commit();
  }
#endif
  // Multiply a message by a weight that was prepared; the parts of the sums lie in shared memory then, and
  // all threads have met.
  template <int N>
  DEV void multiply(int message, const Factor& w) {
#if WGMMA
    float s[N * DIVIDED / 4] = {};
#else
    Sums<N> s = {};
#endif
#if BULK
    if (thread == 0) {
      order_copies();
#pragma unroll 1
      for (int chunk = 0; chunk < LEAD; chunk++) fetch_numbers(message, chunk);
    }
#else
#pragma unroll 1
    for (int chunk = 0; chunk < LEAD; chunk++) {
      fetch_numbers(message, chunk);
      fetch_commit();
    }
#endif
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
#if BULK
      await(find_barrier(chunk), parities >> chunk % STAGES & 1);
      parities ^= 1u << chunk % STAGES;
#else
      fetch_wait<LEAD - 1>();
      if constexpr (WGMMA) show_fetched();
      wait_block();  // all have fetched their part, and read the stages that are fetched next
#endif
#if WGMMA
      multiply_chunk<N>(s, message, w, chunk);
#else
      fetch_next<N>(message, w, chunk);
      multiply_chunk<N>(s, w, chunk);
#endif
    }
#if WGMMA
    if constexpr (!IN_HALVES) {
      await_products<0>();
      hold_sums(s);
    }
#endif
    wait_block();  // parts lie where numbers are
#pragma unroll
    for (int i = 0; i < (WGMMA ? 1 : TALL); i++)
#pragma unroll
      for (int j = 0; j < (WGMMA ? N * DIVIDED / 16 : N / 8); j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
#if WGMMA
          const int part = DIVIDED == 2 ? half : 0, row = (16 * quarter + 8 * k + lane / 4) % OWN_ROWS,
                    column = 8 * j + (DIVIDED == 2 ? 0 : N / 2 * half);
          const float v = s[4 * j + 2 * k], w = s[4 * j + 2 * k + 1];
#else
          const int part = quarter, row = ROWS / 2 * half + 16 * i + 8 * k + lane / 4, column = 8 * j;
          const float v = s.c[i][j][2 * k], w = s.c[i][j][2 * k + 1];
#endif
          const u32 at = 4 * ((part * OWN_ROWS + row) * (N + 8) + column + 2 * (lane & 3));
#if PAIR == 2
          if (quarter / 2 != side)
            put_other(memory + AT_OTHERS + at, v, w);
          else
#endif
            put_shared(memory + AT_PARTS + at, v, w);
        }
#if PAIR == 2
    wait_pair();
#else
    wait_block();
#endif
  }
#if WGMMA
  // Describe 32 bytes of lines in shared memory: of a plane of `rows` of them.
  DEV u64 describe(u32 at, int rows, int plane, int step) const {
    return describe_matrix(at + (plane * LINES + step / 4) * rows * 128 + 32 * (step % 4), SWIZZLE_128, 1024,
                           16);
  }
  // Add this half's steps of a chunk, in the background. In float32 the sums of UNITS numbers, which have one
  // unit in a row, are added up outside of tensor cores, which truncate sums, while the next are computed.
  template <int N>
  DEV void multiply_chunk(float (&s)[N * DIVIDED / 4], int message, const Factor& w, int chunk) const {
    const u32 numbers = memory + chunk % STAGES * STAGE,
              weight = find_weight<N>(w, chunk) + (DIVIDED == 2 ? 0 : N / 2 * 128 * half);
    const int first = DIVIDED == 2 ? STEPS * half : 0;
#if FORMAT == 2 && !TF32
    constexpr int DEEP = UNITS < 32 ? 1 : 2, MANY = STEPS / DEEP;
    float part[2][N * DIVIDED / 4];
#pragma unroll
    for (int i = 0; i <= MANY; i++) {
      if (i < MANY) {
        begin_products();
#pragma unroll
        for (int which = 0; which < 3; which++)  // low high, high low, high high
#pragma unroll
          for (int k = 0; k < DEEP; k++) {
            const int step = first + DEEP * i + k;
            const u64 of_numbers = describe(numbers, ROWS, which == 0, step),
                      of_weight = describe(weight, N, which == 1, step);
            if (which == 0 && k == 0)
              multiply_lines<FP16, 0>(part[i % 2], of_numbers, of_weight);
            else
              multiply_lines<FP16, 1>(part[i % 2], of_numbers, of_weight);
          }
        commit_products();
      }
      if (i == 0)
        fetch_next<N>(message, w, chunk);
      else {
        float scale[2];
#pragma unroll
        for (int k = 0; k < 2; k++)
          scale[k] = get_shared(memory + AT_SCALES +
                                4 * ((CHUNK / 2 * chunk + 16 * (first + DEEP * (i - 1))) / UNITS * ROWS +
                                     16 * quarter + 8 * k + lane / 4));
        if (i < MANY)
          await_products<1>();
        else
          await_products<0>();
        hold_sums(part[(i - 1) % 2]);
#pragma unroll
        for (int e = 0; e < N * DIVIDED / 4; e++) s[e] += scale[e / 2 % 2] * part[(i - 1) % 2][e];
      }
    }
#else
    begin_products();
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
      const int step = first + k;
      multiply_lines<TYPE, 1>(s, describe(numbers, ROWS, 0, step), describe(weight, N, 0, step));
    }
    commit_products();
    await_products<1>();
    fetch_next<N>(message, w, chunk);
#endif
  }
#else
  // Load 32 bytes of this warp's rows, and the units of their numbers.
  DEV void load_numbers(u32 (&a)[PLANES][TALL][4], float (&scale)[TALL][2], int chunk, int step) const {
    const u32 stage = memory + chunk % STAGES * STAGE;
#pragma unroll
    for (int p = 0; p < PLANES; p++)
#pragma unroll
      for (int i = 0; i < TALL; i++) {
        const int line = ROWS / 2 * half + 16 * i + (lane & 15);
        load4(a[p][i][0], a[p][i][1], a[p][i][2], a[p][i][3],
              stage + ((p * LINES + step / 4) * ROWS + line) * 128 +
                  16 * ((2 * step + (lane >> 4) ^ line) & 7));
      }
    if constexpr (IN_HALVES)
#pragma unroll
      for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int k = 0; k < 2; k++)
          scale[i][k] = get_shared(memory + AT_SCALES +
                                   4 * ((CHUNK / 2 * chunk + 16 * step) / UNITS * ROWS + ROWS / 2 * half +
                                        16 * i + 8 * k + lane / 4));
  }
  // Load 32 bytes of 16 rows of a weight.
  template <int N>
  DEV void load_weight(u32 (&b)[PLANES][2][2], u32 weight, int step, int j) const {
#pragma unroll
    for (int p = 0; p < PLANES; p++) {
      const int line = 16 * j + 8 * (lane >> 4) + (lane & 7);
      load4(b[p][0][0], b[p][0][1], b[p][1][0], b[p][1][1],
            weight + ((p * LINES + step / 4) * N + line) * 128 +
                16 * ((2 * step + (lane >> 3 & 1) ^ line) & 7));
    }
  }
  // This warp's quarter of a chunk. What the next mma needs is loaded before the present one.
  template <int N>
  DEV void multiply_chunk(Sums<N>& s, const Factor& w, int chunk) const {
    constexpr int WIDE = N / 16, ALL = STEPS * WIDE;
    const u32 weight = find_weight<N>(w, chunk);
    const int first = STEPS * quarter;
    u32 a[2][PLANES][TALL][4], b[2][PLANES][2][2];
    float scale[2][TALL][2];
    load_numbers(a[0], scale[0], chunk, first);
    load_weight<N>(b[0], weight, first, 0);
#pragma unroll
    for (int n = 0; n < ALL; n++) {
      const int next = n + 1, step = n / WIDE % 2;
      if (next < ALL) {
        if (next % WIDE == 0) load_numbers(a[1 - step], scale[1 - step], chunk, first + next / WIDE);
        load_weight<N>(b[next % 2], weight, first + next / WIDE, next % WIDE);
      }
      multiply_step<N>(s, a[step], scale[step], b[n % 2], 2 * (n % WIDE));
    }
  }
  template <int N>
  DEV void multiply_step(Sums<N>& s, const u32 (&a)[PLANES][TALL][4], const float (&scale)[TALL][2],
                         const u32 (&b)[PLANES][2][2], int j) const {
#if FORMAT == 2 && !TF32
    float part[TALL][2][4];
#pragma unroll
    for (int which = 0; which < 3; which++)  // low high, high low, high high
#pragma unroll
      for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
          const u32(&v)[4] = a[which == 0][i], (&u)[2] = b[which == 1][k];
          if (which == 0)
            mma_from_zero<FP16>(part[i][k], v[0], v[1], v[2], v[3], u[0], u[1]);
          else
            mma<FP16>(part[i][k], v[0], v[1], v[2], v[3], u[0], u[1]);
        }
#pragma unroll
    for (int i = 0; i < TALL; i++)
#pragma unroll
      for (int k = 0; k < 2; k++)
#pragma unroll
        for (int e = 0; e < 4; e++) s.c[i][j + k][e] += scale[i][e / 2] * part[i][k][e];
#else
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
      for (int i = 0; i < TALL; i++) {
        const u32(&v)[4] = a[0][i], (&u)[2] = b[0][k];
#if FORMAT == 2
        mma_tf32(s.c[i][j + k], v[0], v[1], v[2], v[3], u[0], u[1]);
#else
        mma<TYPE>(s.c[i][j + k], v[0], v[1], v[2], v[3], u[0], u[1]);
#endif
      }
#endif
  }
#endif
  // Add up the parts of a product of N columns for this thread's units, from column `from` on.
  template <int N>
  DEV void get_sum(float (&v)[EACH], float unit, int from = 0) const {
#pragma unroll
    for (int e = 0; e < EACH; e++) v[e] = 0.f;
#pragma unroll
    for (int k = 0; k < QUARTERS; k++) {
      const u32 at = memory + (k < DIVIDED ? AT_PARTS : AT_OTHERS) +
                     4 * ((k % DIVIDED * OWN_ROWS + thread / SHARE) * (N + 8) + from + column);
      if constexpr (EACH % 4 == 0)
#pragma unroll
        for (int e = 0; e < EACH; e += 4) {
          float four[4];
          get_shared(four, at + 4 * e);
#pragma unroll
          for (int i = 0; i < 4; i++) v[e + i] += four[i];
        }
      else
#pragma unroll
        for (int e = 0; e < EACH; e += 2) {
          float p, q;
          get_shared(p, q, at + 4 * e);
          v[e] += p;
          v[e + 1] += q;
        }
    }
    if constexpr (IN_HALVES)
#pragma unroll
      for (int e = 0; e < EACH; e++) v[e] *= unit;
  }
  // Write this thread's units of a message, in the order of a stage: chunks, planes, lines, rows, 128
  // bytes.
  DEV void put_numbers(int message, const float (&v)[EACH]) const {
    u8* numbers = shared_by_all + AT_NUMBERS + message * NUMBERS;
    float scale = 1.f;
    if constexpr (IN_HALVES) {
      float largest = 0.f, power;
#pragma unroll
      for (int e = 0; e < EACH; e += 2) largest = maximum(largest, find_size(v[e], v[e + 1]));
      scale = find_scale(max_of_lanes<SHARE>(largest), power);
      if (column == 0) ((float*)(shared_by_all + AT_UNITS + message * ALL_UNITS))[rank * ROWS + row] = power;
    }
    constexpr int COUNT = EACH * NUMBER / 4, PIECE = COUNT < 4 ? COUNT : 4;  // words of a plane, and together
    u32 words[PLANES][COUNT];
#if FORMAT == 2 && !TF32
#pragma unroll
    for (int e = 0; e < EACH; e += 2)
      split_halves(words[0][e / 2], words[1][e / 2], scale * v[e], scale * v[e + 1]);
#else
    to_words(words[0], v);
#if FORMAT == 2
#pragma unroll
    for (int e = 0; e < EACH; e++) words[0][e] = to_tf32(to_float(words[0][e]));
#endif
#endif
#pragma unroll
    for (int i = 0; i < COUNT; i += PIECE) {
      const int byte = unit * NUMBER + 4 * i, line = byte / 128 % LINES, eight = (byte / 16 ^ row) & 7;
      u8* to = numbers + byte / CHUNK * STAGE + (line * ROWS + row) * 128 + 16 * eight + byte % 16;
#pragma unroll
      for (int p = 0; p < PLANES; p++) {
        u32 some[PIECE];
#pragma unroll
        for (int k = 0; k < PIECE; k++) some[k] = words[p][i + k];
        store_words(to + p * ROWS * CHUNK, some);
      }
    }
  }
  // Sum over the threads of a row.
  DEV float sum_row(float v) const {
#pragma unroll
    for (int bits = 1; bits < SHARE; bits *= 2) v += shuffle_xor(v, bits);
    return v;
  }
  // Share three sums over this block's units of a row as a packet; wait for those of all blocks of the head.
  DEV void put_scores(const float (&p)[3], u32 number) const {
    const float v = sum_row(p[0]), w = sum_row(p[1]), z = sum_row(p[2]);
    if (column == 0)
      put_packet((Packet*)(shared_by_all + AT_SCORES) + row * BLOCKS + rank, to_bits(v), to_bits(w),
                 to_bits(z), number);
  }
  DEV void get_scores(float (&s)[3], u32 number) const {
    constexpr int MANY = (SPAN + SHARE - 1) / SHARE;  // of a thread
    const Packet* first = (const Packet*)(shared_by_all + AT_SCORES) + row * BLOCKS + rank / SPAN * SPAN;
    const Packet* from[MANY];
    u32 p[MANY][4] = {}, numbers[MANY];
#pragma unroll
    for (int i = 0; i < MANY; i++) {
      const int which = SHARE * i + thread % SHARE;
      from[i] = first + (which < SPAN ? which : 0);
      numbers[i] = which < SPAN ? number : 0u;
    }
    collect<false>(p, from, numbers, 0, 0);
#pragma unroll
    for (int k = 0; k < 3; k++) {
      s[k] = 0.f;
#pragma unroll
      for (int i = 0; i < MANY; i++) s[k] += to_float(p[i][k]);
      s[k] = sum_row(s[k]);
    }
  }
  // Share two sums over this block's units of a row; load those of all blocks, a part of them by each thread.
  DEV void put_moments(float v, float w) const {
    if (column == 0) put_global((float*)(shared_by_all + AT_MOMENTS) + 2 * (row * BLOCKS + rank), v, w);
  }
  DEV void get_moments(float (&v)[BLOCKS / SHARE], float (&w)[BLOCKS / SHARE]) const {
    const float* from = (const float*)(shared_by_all + AT_MOMENTS) + 2 * row * BLOCKS;
#pragma unroll
    for (int i = 0; i < BLOCKS / SHARE; i++) get_fresh(v[i], w[i], from + 2 * (SHARE * i + thread % SHARE));
  }
};

// Return rows of the weights that tiles_pack.cu has packed, from `before` of a block's rows on. `first`,
// `second`: places of their units, if they have some.
DEV Factor find_factor(const u8* packed, const float* units, int before, int first, int second,
                       const Block& b) {
  Factor f;
  f.at = packed + (i64)(b.rank * PAIR + b.side) * CHUNKS * ALL_ROWS + before * CHUNK * PLANES;
  f.before = before;
  f.unit[0] = IN_HALVES ? units[first] : 1.f;
  f.unit[1] = IN_HALVES ? units[second] : 1.f;
  return f;
}
