// AttnRNN's units divided among blocks, with many rows of the batch: products of tiles in shared memory. A
// group of BLOCKS blocks anywhere on the GPU runs ROWS rows; a block has UNITS units. Blocks exchange the
// operands of products as messages in global memory; a counter per group says when a message is complete.
// Both operands of a product are loaded in chunks of 128 or 256 bytes of K per row, the weight's before the
// message is complete. Split-K partial sums are added up in shared memory: tiles_mma.cuh, or
// tiles_wgmma.cuh on Hopper. In pointwise work a thread has EACH units of one row.
//
// A float32 value is an fp16 hi/lo pair in two planes (HI_LO). The values of a block's units in one row
// share a power-of-2 scale, as do 32 rows of a weight; the code calls the inverse of a scale `unit`. With
// TF32 a value has 19 bits and one plane.
#pragma once
#include "attn_rnn/arguments.cuh"
#include "attn_rnn/math.cuh"
#include "runtime/counter.cuh"
#include "runtime/hi_lo.cuh"
#include "runtime/packets.cuh"

#ifndef ROWS             // Python defines these with -D; the defaults are for editors
#define ROWS 64          // rows per group: 32 or 64
#define CLUSTER 4        // blocks (or pairs of blocks) per group
#define UNITS 16         // units per block or pair: 16, 32 or 64
#define CHUNK 128        // bytes of a row in a chunk: 128 or 256
#define STAGES 4         // stages for chunks of messages
#define WEIGHT_STAGES 4  // stages for chunks of weights
#define RESIDENT 0       // number of chunks of every weight, the last ones, that stay in shared memory
#define TF32 0           // whether products of float32 may round to 19 bits (TF32)
#define WGMMA 0          // whether to use wgmma (Hopper), with 64 rows
#define BULK 0           // with WGMMA: whether one thread loads whole chunks
#endif

constexpr bool HI_LO = TYPE == FP32 && !TF32;
// Number of blocks that share the same units. With two, each block computes half of every sum (split-K) and
// finishes half of the rows.
constexpr int PAIR = WGMMA ? 2 : 1;
constexpr int THREADS = 256, BLOCKS = CLUSTER, OWN_ROWS = ROWS / PAIR, EACH = OWN_ROWS * UNITS / THREADS,
              SHARE = THREADS / OWN_ROWS;
constexpr int PLANES = HI_LO ? 2 : 1, NUMBER = HI_LO ? 2 : SIZE;  // NUMBER: bytes per value and plane
// CHUNKS: per row and block. EIGHTS, LINES: groups of 16 bytes and lines of 128 bytes per chunk.
constexpr int CHUNKS = H * NUMBER / CHUNK / PAIR, EIGHTS = CHUNK / 16, LINES = CHUNK / 128;
// DIVIDED: split-K slices of a sum in a block; each has STEPS steps of 32 bytes in every chunk. With wgmma
// the two warp groups divide the steps, or the columns if there are many. QUARTERS: slices in all blocks of a
// PAIR. TALL: tiles of 16 rows per warp, with mma.
constexpr int DIVIDED = !WGMMA       ? 4
                        : UNITS < 64 ? 2
                                     : 1,
              QUARTERS = DIVIDED * PAIR, STEPS = EIGHTS / 2 / DIVIDED, TALL = ROWS / 32;
constexpr int WIDEST = 2 * UNITS;  // columns of the widest product
constexpr int STAGE = ROWS * CHUNK * PLANES, WEIGHT_STAGE = WIDEST * CHUNK * PLANES;
constexpr int PARTS =
    (4 * DIVIDED * OWN_ROWS * (WIDEST + 8) + 1023) / 1024 * 1024;  // bytes; overlaid on the message's stages
constexpr int AT_PARTS = 0, AT_WEIGHTS = STAGES * STAGE > PARTS ? STAGES * STAGE : PARTS;
constexpr int AT_RESIDENT = AT_WEIGHTS + WEIGHT_STAGES * WEIGHT_STAGE, FLEETING = CHUNKS - RESIDENT;
// AT_OTHERS: sums from the other block of the pair.
constexpr int AT_OTHERS = AT_RESIDENT + RESIDENT * 4 * UNITS * CHUNK * PLANES;
constexpr int AT_SCALES = AT_OTHERS + (PAIR - 1) * PARTS;
constexpr int AT_CONSTANTS = AT_SCALES + (HI_LO ? 4 * ROWS * BLOCKS / PAIR : 0), CONSTANTS = 5;
constexpr int AT_BARRIERS = AT_CONSTANTS + 4 * CONSTANTS * UNITS,
              TILES_BYTES = AT_BARRIERS + (BULK ? 128 : 0) + (WGMMA ? 1024 : 0);
// Chunks in flight. Asynchronous products (wgmma) may still read the stage before the current one.
constexpr int LEAD = (RESIDENT == CHUNKS || STAGES < WEIGHT_STAGES ? STAGES : WEIGHT_STAGES) -
                     (WGMMA && !HI_LO && !BULK ? 2 : 1);
constexpr int SPAN = D / UNITS;  // blocks per head
static_assert(D % UNITS == 0 && H * NUMBER % CHUNK == 0 && EACH % 2 == 0 && BLOCKS % 4 == 0 &&
                  UNITS * BLOCKS == H && BLOCKS % SHARE == 0 && (!WGMMA || ROWS == 64) && LEAD > 0 &&
                  (!BULK || STAGES < 16 && (RESIDENT == CHUNKS || STAGES == WEIGHT_STAGES)),
              "no such division");

// Global memory that a group shares, as byte offsets: a counter, the values of three messages, the inverse
// scales of these values, sums over heads as 16-byte messages, sums over rows.
constexpr int AT_NUMBERS = 128, NUMBERS = ROWS * H * NUMBER * PLANES, AT_UNITS = AT_NUMBERS + 3 * NUMBERS,
              ALL_UNITS = 4 * ROWS * BLOCKS, AT_SCORES = AT_UNITS + 3 * ALL_UNITS,
              AT_MOMENTS = AT_SCORES + 16 * ROWS * BLOCKS,
              GROUP_BYTES = (AT_MOMENTS + 8 * ROWS * BLOCKS + 16 * ROWS - 1) / (16 * ROWS) * (16 * ROWS);

// A weight operand: one of the three consecutive ranges of rows in each chunk of a block.
struct Factor {
  const u8* at;   // its first chunk; the next one follows ALL_ROWS bytes later
  int before;     // rows that precede it in a chunk
  float unit[2];  // 1 / scale of its float32 values: in the first UNITS rows, and in the others
};
constexpr int ALL_ROWS = 4 * UNITS * CHUNK * PLANES;  // bytes

// Convert a thread's units of a row to 32-bit words.
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
// Store words with the widest possible instructions.
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
// Load a thread's units, or zeros if they do not exist. `from` is aligned to their size, or to 16 bytes if
// they are larger.
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
// Load a thread's units from unaligned data.
DEV void load_pairs(float (&v)[EACH], const Element* from, bool exists) {
#pragma unroll
  for (int e = 0; e < EACH; e += 2) {
    v[e] = v[e + 1] = 0.f;
    if (exists) from_pair(v[e], v[e + 1], get_pair(from + e));
  }
}

struct Block {
  int thread, lane, warp, quarter, half, side, rank, base, first, rows;
  int row, column, unit;  // this thread's row in the group; its first unit, in the block and overall
  bool active;            // whether this row exists
  u32 memory, count = 0;
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
  // Put a parameter vector's values for this block's units into shared memory; get those of this thread's
  // units.
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
  // Announce that this block has written its part of a message (call from all threads). await_all() waits
  // until all blocks of the group have.
  DEV void announce() const {
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

  // Return the address in shared memory of a chunk of N rows of a weight.
  template <int N>
  DEV u32 find_weight(const Factor& w, int chunk) const {
    if (RESIDENT == 0 || chunk < FLEETING)
      return memory + AT_WEIGHTS + chunk % (WEIGHT_STAGES ? WEIGHT_STAGES : 1) * WEIGHT_STAGE;
    return memory + AT_RESIDENT + (w.before * RESIDENT + (chunk - FLEETING) * N) * CHUNK * PLANES;
  }
  // Add up the split-K slices of a product of N columns for this thread's units, from column `from` on.
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
    if constexpr (HI_LO)
#pragma unroll
      for (int e = 0; e < EACH; e++) v[e] *= unit;
  }
  // Write this thread's units of a message in the layout of a stage: [chunk][plane][line][row][128 bytes],
  // swizzled in groups of 16 bytes.
  DEV void put_numbers(int message, const float (&v)[EACH]) const {
    u8* numbers = shared_by_all + AT_NUMBERS + message * NUMBERS;
    float scale = 1.f;
    if constexpr (HI_LO) {
      float largest = 0.f, power;
#pragma unroll
      for (int e = 0; e < EACH; e += 2) largest = maximum(largest, find_size(v[e], v[e + 1]));
      scale = find_scale(max_of_lanes<SHARE>(largest), power);
      if (column == 0) ((float*)(shared_by_all + AT_UNITS + message * ALL_UNITS))[rank * ROWS + row] = power;
    }
    constexpr int COUNT = EACH * NUMBER / 4, PIECE = COUNT < 4 ? COUNT : 4;  // words per plane, and per store
    u32 words[PLANES][COUNT];
#if FORMAT == 2 && !TF32
#pragma unroll
    for (int e = 0; e < EACH; e += 2)
      split_hi_lo(words[0][e / 2], words[1][e / 2], scale * v[e], scale * v[e + 1]);
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
  // Send three sums over this block's units of a row as one 16-byte message; get_scores() waits for those of
  // all blocks of the head and adds them up.
  DEV void put_scores(const float (&p)[3], u32 number) const {
    const float v = sum_row(p[0]), w = sum_row(p[1]), z = sum_row(p[2]);
    if (column == 0)
      put_packet((Packet*)(shared_by_all + AT_SCORES) + row * BLOCKS + rank, to_bits(v), to_bits(w),
                 to_bits(z), number);
  }
  DEV void get_scores(float (&s)[3], u32 number) const {
    constexpr int MANY = (SPAN + SHARE - 1) / SHARE;  // messages per thread
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
  // Write two sums over this block's units of a row; get_moments() loads those of all blocks, each thread of
  // the row some of them.
  DEV void put_moments(float v, float w) const {
    if (column == 0) put_global((float*)(shared_by_all + AT_MOMENTS) + 2 * (row * BLOCKS + rank), v, w);
  }
  DEV void get_moments(float (&v)[BLOCKS / SHARE], float (&w)[BLOCKS / SHARE]) const {
    const float* from = (const float*)(shared_by_all + AT_MOMENTS) + 2 * row * BLOCKS;
#pragma unroll
    for (int i = 0; i < BLOCKS / SHARE; i++) get_fresh(v[i], w[i], from + 2 * (SHARE * i + thread % SHARE));
  }
};

// Return the operand of the packed weights (tiles_pack.cu) that begins `before` rows into a block's rows.
// `first` and `second` are indices into `units`, used with HI_LO.
DEV Factor find_factor(const u8* packed, const float* units, int before, int first, int second,
                       const Block& b) {
  Factor f;
  f.at = packed + (i64)(b.rank * PAIR + b.side) * CHUNKS * ALL_ROWS + before * CHUNK * PLANES;
  f.before = before;
  f.unit[0] = HI_LO ? units[first] : 1.f;
  f.unit[1] = HI_LO ? units[second] : 1.f;
  return f;
}
