// AttnRNN's units divided among blocks that take many rows of the batch: products of tiles in shared memory.
// A group of BLOCKS blocks anywhere on the GPU carries ROWS rows; a block has UNITS units. What a product
// needs of other blocks lies in the GPU's memory, and counters say when it is complete. Both factors of a
// product are fetched in chunks of 128 bytes of a row, those of a weight before the others are known. Eight
// warps: two halves of the rows, and four quarters of every chunk, whose sums meet in shared memory. Then a
// thread has EACH units of one row, in all that is pointwise.
//
// In float32 a number is two halves of fp16 in two planes (IN_HALVES): those of a block's units in a row have
// one power of 2, and so have 32 rows of a weight. With TF32 it is one number of 19 bits.
#pragma once
#include "attn_rnn/arguments.cuh"
#include "attn_rnn/math.cuh"
#include "runtime/counter.cuh"
#include "runtime/halves.cuh"
#include "runtime/packets.cuh"

#ifndef ROWS        // Python gives these with -D; the values here serve editors
#define ROWS 64     // of a group: 32 or 64
#define CLUSTER 2   // blocks of a group
#define UNITS 32    // of a block: 16 or 32
#define STAGES 4    // chunks on their way
#define RESIDENT 0  // the last chunks of every weight, which stay in shared memory
#define TF32 0      // whether products of float32 may see 19 bits alone
#endif

constexpr bool IN_HALVES = TYPE == FP32 && !TF32;
constexpr int THREADS = 256, BLOCKS = CLUSTER, EACH = ROWS * UNITS / THREADS, SHARE = THREADS / ROWS;
constexpr int PLANES = IN_HALVES ? 2 : 1, NUMBER = IN_HALVES ? 2 : SIZE;  // bytes of a number in a plane
constexpr int CHUNK = 128, CHUNKS = H * NUMBER / CHUNK, QUARTERS = 4, TALL = ROWS / 32;
constexpr int WIDEST = 2 * UNITS;  // columns of the widest product
constexpr int STAGE = (ROWS + WIDEST) * CHUNK * PLANES;
constexpr int SCALE_LINE = BLOCKS + 4;  // floats of a row's units in shared memory
constexpr int AT_SCALES = STAGES * STAGE, AT_PARTS = AT_SCALES + (IN_HALVES ? 4 * ROWS * SCALE_LINE : 0);
constexpr int AT_CONSTANTS = AT_PARTS + 4 * QUARTERS * ROWS * (WIDEST + 8),
              CONSTANTS = 5;  // biases and scales
constexpr int AT_RESIDENT = AT_CONSTANTS + 4 * CONSTANTS * UNITS, FLEETING = CHUNKS - RESIDENT;
constexpr int TILES_BYTES = AT_RESIDENT + RESIDENT * 4 * UNITS * CHUNK * PLANES;
constexpr int SPAN = D / UNITS;  // blocks of a head
static_assert(D % UNITS == 0 && H * NUMBER % CHUNK == 0 && EACH % 2 == 0 && BLOCKS % 4 == 0 &&
                  UNITS * BLOCKS == H && BLOCKS % SHARE == 0,
              "no such division");

// What a group shares, in bytes from its begin: a counter, for each of three messages its numbers and their
// units, sums over heads as packets, sums over rows.
constexpr int AT_NUMBERS = 128, NUMBERS = ROWS * H * NUMBER * PLANES, AT_UNITS = AT_NUMBERS + 3 * NUMBERS,
              ALL_UNITS = 4 * ROWS * BLOCKS, AT_SCORES = AT_UNITS + 3 * ALL_UNITS,
              AT_MOMENTS = AT_SCORES + 16 * ROWS * BLOCKS,
              GROUP_BYTES = (AT_MOMENTS + 8 * ROWS * BLOCKS + 16 * ROWS - 1) / (16 * ROWS) * (16 * ROWS);

// UNITS rows of a weight.
struct WeightRows {
  const u8* at;
  i64 stride, plane;  // bytes from row to row, and from plane to plane
  float unit;
};
// Those that a product takes: the second ones if it is twice as wide.
struct Factor {
  WeightRows part[2];
  int before;  // rows of all weights that are resident before it
};

template <int N>
struct Sums {
  float c[TALL][N / 8][4];
};

struct Block {
  int thread, lane, warp, quarter, half, rank, base, first, rows;
  int row, column, unit;  // this thread's row of the group, and its first unit in the block and at all
  bool active;            // whether there is such a row
  u32 memory, count = 0;
  u8* shared_by_all;
  template <class Args>
  DEV Block(const Args& a) {
    thread = ::thread();
    lane = thread & 31;
    warp = thread >> 5;
    quarter = warp & 3;
    half = warp >> 2;
    memory = shared_memory();
    rank = block() % BLOCKS;
    base = rank * UNITS;
    first = a.begin + a.group_rows * (block() / BLOCKS);
    rows = a.B - first < a.group_rows ? (a.B > first ? a.B - first : 0) : a.group_rows;
    row = thread / SHARE;
    column = thread % SHARE * EACH;
    unit = base + column;
    active = row < rows;
    shared_by_all = (u8*)a.packets + (i64)(block() / BLOCKS) * GROUP_BYTES;
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
    wait_block();
    if (thread == 0) count_up((u32*)shared_by_all);
  }
  DEV void await_all() {
    count += BLOCKS;
    if (thread == 0)
      for (int i = 0; (int)(read_counter((const u32*)shared_by_all) - count) < 0; i++)
        if (i == MOST_POLLS) give_up();
    wait_block();
  }

  // Return where a chunk of a weight lies.
  template <int N>
  DEV u32 find_weight(const Factor& w, int chunk) const {
    const u32 stage = memory + chunk % STAGES * STAGE + ROWS * CHUNK * PLANES;
    if (RESIDENT == 0 || chunk < FLEETING) return stage;
    return memory + AT_RESIDENT + (w.before * RESIDENT + (chunk - FLEETING) * N) * CHUNK * PLANES;
  }
  // Fetch a chunk of N rows of a weight.
  template <int N>
  DEV void fetch_weight(const Factor& w, int chunk, int end = FLEETING) const {
    if (chunk >= end) return;
    const u32 to = find_weight<N>(w, chunk);
#pragma unroll
    for (int i = 0; i < (N * 8 * PLANES + THREADS - 1) / THREADS; i++) {
      const int which = thread + THREADS * i, line = which / 8 % N, plane = which / (8 * N),
                eight = which % 8;
      if (plane < PLANES) {
        const bool is_second = N > UNITS && line >= UNITS;
        const i64 stride = is_second ? w.part[1].stride : w.part[0].stride,
                  other = is_second ? w.part[1].plane : w.part[0].plane;
        const u8* from = (is_second ? w.part[1].at : w.part[0].at) + line % UNITS * stride;
        fetch16(to + (plane * N + line) * CHUNK + 16 * (eight ^ (line & 7)),
                from + plane * other + chunk * CHUNK + 16 * eight, 16);
      }
    }
  }
  // Fetch a chunk of a message's rows.
  DEV void fetch_numbers(int message, int chunk) const {
    if (chunk >= CHUNKS) return;
    const u32 to = memory + chunk % STAGES * STAGE;
    const u8* numbers = shared_by_all + AT_NUMBERS + message * NUMBERS;
#pragma unroll
    for (int i = 0; i < ROWS * 8 * PLANES / THREADS; i++) {
      const int line = thread / 8 + THREADS / 8 * i, eight = thread % 8;  // of all planes
      fetch16(to + line * CHUNK + 16 * (eight ^ (line & 7)),
              numbers + line * (H * NUMBER) + chunk * CHUNK + 16 * eight, 16);
    }
  }
  DEV void fetch_scales(int message) const {
    if constexpr (IN_HALVES) {
      const u8* units = shared_by_all + AT_UNITS + message * ALL_UNITS;
      for (int i = thread; i < ROWS * BLOCKS / 4; i += THREADS)
        fetch16(memory + AT_SCALES + 4 * (i / (BLOCKS / 4) * SCALE_LINE) + i % (BLOCKS / 4) * 16,
                units + 16 * i, 16);
    }
  }
  // Fetch the chunks of a weight that stay.
  template <int N>
  DEV void load_resident(const Factor& w) const {
#pragma unroll 1
    for (int chunk = FLEETING; chunk < CHUNKS; chunk++) fetch_weight<N>(w, chunk, CHUNKS);
    fetch_commit();
  }
  // Begin to fetch a weight, before the other factor is known.
  template <int N>
  DEV void prepare(const Factor& w) const {
#pragma unroll 1
    for (int chunk = 0; chunk < STAGES - 1; chunk++) fetch_weight<N>(w, chunk);
  }
  // Multiply a message by a weight that was prepared; the parts of the sums lie in shared memory then, and
  // all threads have met.
  template <int N>
  DEV void multiply(int message, const Factor& w) const {
    Sums<N> s = {};
    fetch_scales(message);
#pragma unroll 1
    for (int chunk = 0; chunk < STAGES - 1; chunk++) {
      fetch_numbers(message, chunk);
      fetch_commit();
    }
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
      fetch_wait<STAGES - 2>();
      wait_block();  // all have fetched their part, and read the stage that is fetched next
      fetch_weight<N>(w, chunk + STAGES - 1);
      fetch_numbers(message, chunk + STAGES - 1);
      fetch_commit();
      multiply_chunk<N>(s, w, chunk);
    }
#pragma unroll
    for (int i = 0; i < TALL; i++)
#pragma unroll
      for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
          const int row = ROWS / 2 * half + 16 * i + 8 * k + lane / 4;
          put_shared(memory + AT_PARTS + 4 * ((quarter * ROWS + row) * (N + 8) + 8 * j + 2 * (lane & 3)),
                     s.c[i][j][2 * k], s.c[i][j][2 * k + 1]);
        }
    wait_block();
  }
  // This warp's quarter of a chunk: 32 bytes of each row, which are one mma.
  template <int N>
  DEV void multiply_chunk(Sums<N>& s, const Factor& w, int chunk) const {
    const u32 stage = memory + chunk % STAGES * STAGE, weight = find_weight<N>(w, chunk);
    u32 a[PLANES][TALL][4];
    float scale[TALL][2];
#pragma unroll
    for (int p = 0; p < PLANES; p++)
#pragma unroll
      for (int i = 0; i < TALL; i++) {
        const int line = ROWS / 2 * half + 16 * i + (lane & 15);
        load4(a[p][i][0], a[p][i][1], a[p][i][2], a[p][i][3],
              stage + (p * ROWS + line) * CHUNK + 16 * (2 * quarter + (lane >> 4) ^ (line & 7)));
      }
    if constexpr (IN_HALVES)
#pragma unroll
      for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int k = 0; k < 2; k++)
          scale[i][k] = get_shared(memory + AT_SCALES +
                                   4 * ((ROWS / 2 * half + 16 * i + 8 * k + lane / 4) * SCALE_LINE +
                                        (CHUNK / 2 * chunk + 16 * quarter) / UNITS));
#pragma unroll
    for (int j = 0; j < N / 8; j += 2) {
      u32 b[PLANES][2][2];
#pragma unroll
      for (int p = 0; p < PLANES; p++) {
        const int line = 8 * j + 8 * (lane >> 4) + (lane & 7);
        load4(b[p][0][0], b[p][0][1], b[p][1][0], b[p][1][1],
              weight + (p * N + line) * CHUNK + 16 * (2 * quarter + (lane >> 3 & 1) ^ (line & 7)));
      }
#if FORMAT == 2 && !TF32
      float part[TALL][2][4];
#pragma unroll
      for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int k = 0; k < 2; k++)
          mma_from_zero<FP16>(part[i][k], a[1][i][0], a[1][i][1], a[1][i][2], a[1][i][3], b[0][k][0],
                              b[0][k][1]);
#pragma unroll
      for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int k = 0; k < 2; k++)
          mma<FP16>(part[i][k], a[0][i][0], a[0][i][1], a[0][i][2], a[0][i][3], b[1][k][0], b[1][k][1]);
#pragma unroll
      for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int k = 0; k < 2; k++)
          mma<FP16>(part[i][k], a[0][i][0], a[0][i][1], a[0][i][2], a[0][i][3], b[0][k][0], b[0][k][1]);
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
          const u32(&own)[4] = a[0][i];
#if FORMAT == 2
          mma_tf32(s.c[i][j + k], own[0], own[1], own[2], own[3], to_tf32_finite(to_float(b[0][k][0])),
                   to_tf32_finite(to_float(b[0][k][1])));
#else
          mma<TYPE>(s.c[i][j + k], own[0], own[1], own[2], own[3], b[0][k][0], b[0][k][1]);
#endif
        }
#endif
    }
  }
  // Add up the parts of a product of N columns for this thread's units, from column `from` on.
  template <int N>
  DEV void get_sum(float (&v)[EACH], float unit, int from = 0) const {
#pragma unroll
    for (int e = 0; e < EACH; e++) v[e] = 0.f;
#pragma unroll
    for (int k = 0; k < QUARTERS; k++) {
      const u32 at = memory + AT_PARTS + 4 * ((k * ROWS + row) * (N + 8) + from + column);
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
  // Write this thread's units of a message.
  DEV void put_numbers(int message, const float (&v)[EACH]) const {
    u8* to = shared_by_all + AT_NUMBERS + message * NUMBERS + ((i64)row * H + unit) * NUMBER;
    if constexpr (IN_HALVES) {
      float largest = 0.f, power;
#pragma unroll
      for (int e = 0; e < EACH; e += 2) largest = maximum(largest, find_size(v[e], v[e + 1]));
      const float scale = find_scale(max_of_lanes<SHARE>(largest), power);
      if (column == 0)
        ((float*)(shared_by_all + AT_UNITS + message * ALL_UNITS))[row * BLOCKS + rank] = power;
#pragma unroll
      for (int e = 0; e < EACH; e += 2) {
        u32 high, low;
        split_halves(high, low, scale * v[e], scale * v[e + 1]);
        put_global((u16*)to + e, high);
        put_global((u16*)(to + NUMBERS / 2) + e, low);
      }
    } else {
#pragma unroll
      for (int e = 0; e < EACH; e += 2) put_pair((Element*)to + e, round_factors(to_pair(v[e], v[e + 1])));
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

// Load and store a thread's units.
DEV void load_units(float (&v)[EACH], const Element* from, bool exists) {
#pragma unroll
  for (int e = 0; e < EACH; e += 2) {
    v[e] = v[e + 1] = 0.f;
    if (exists) from_pair(v[e], v[e + 1], get_pair(from + e));
  }
}
DEV void store_units(Element* to, const float (&v)[EACH]) {
#pragma unroll
  for (int e = 0; e < EACH; e += 2) put_pair(to + e, to_pair(v[e], v[e + 1]));
}
// Return UNITS rows of a weight of so many rows and columns, from a row and a column on. `at`: where its
// halves begin; `unit`: where its units of 32 rows do.
DEV WeightRows find_rows(const Element* w, int rows, int columns, int row, int column, const u16* halves,
                         i64 at, const float* units, int unit) {
  WeightRows r;
  r.stride = (i64)columns * NUMBER;
  r.plane = rows * r.stride;
  r.at = (IN_HALVES ? (const u8*)(halves + at) : (const u8*)w) + row * r.stride + column * NUMBER;
  r.unit = IN_HALVES ? units[unit + row / 32] : 1.f;
  return r;
}
