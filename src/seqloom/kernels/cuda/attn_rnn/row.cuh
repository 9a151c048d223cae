// AttnRNN with one row of the batch per block. Products use FMAs in float32, whatever the type. A warp has
// 16 units, and 8 lanes share the dot products of four of them: lane s has the quad of elements
// 32i + 4s .. 32i + 4s + 3 of each, for all i. So a vector in shared memory is read once for four units, and
// a sum takes three shuffles. Each lane orders the four units as k ^ (s / 2), so that every shuffle keeps the
// first half and sends the other; two lanes end up with the sum of one unit and do its pointwise work. Lanes
// that read the same quads are neighbours: if lanes 2i and 2i + 1 read the same 16 bytes, shared memory
// serves a warp twice as fast.
#pragma once
#ifndef FORMAT
#define FORMAT 2
#define QUADS_IN_SHARED 0  // a thread's quads of each weight that lie in shared memory
#define CLUSTER 2          // blocks per row (row_pair.cuh)
#endif
#include "attn_rnn/arguments.cuh"

constexpr int LINE = SIZE * H / 16;  // threads that load H elements of one tensor (a plane), 16 bytes each
constexpr int WARPS = H / 16, THREADS = 32 * WARPS;
// DEEP, QUADS: a lane's quads of a vector, and of a weight. If 32 does not divide H, half of the lanes
// have zeros as the last quad of a row.
constexpr int DEEP = (H + 31) / 32, QUADS = 4 * DEEP;
// Units of a head that are summed by shuffles, inside a warp.
constexpr int PIECE = D % 4 ? 1 : D % 8 ? 4 : D % 16 ? 8 : 16;
constexpr bool SPLIT_HEADS = PIECE != D;  // partial sums of a head are added up in shared memory
// Steps in the ring buffer that cp.async fills from global memory.
constexpr int STAGES = 4;
// Shared memory layout in bytes: five vectors, partial sums over heads, the ring and, last, the weights
// that do not fit in registers. The padding of VECTOR puts vectors that are written at the same time in
// different banks.
constexpr int VECTOR = 128 * DEEP + 64;
constexpr int AT_PIECES = 5 * VECTOR, AT_RING = AT_PIECES + (SPLIT_HEADS ? 16 * (H / PIECE) : 0);
constexpr int WEIGHT_BYTES = 16 * THREADS * QUADS_IN_SHARED;  // of one weight in shared memory

struct Lane {
  // share: index among the eight lanes; first: first of the four units; unit: the one whose sum this lane
  // gets
  int thread, lane, share, first, unit;
  bool odd;  // which of the two lanes that get this unit's sum
  u32 memory;
  u32 quads, four[4];  // addresses in the first vector: this lane's first quad, its four units
  // holds_share: keep `share` in a register. Otherwise the compiler recomputes it where needed; which is
  // faster depends on the register pressure of the kernel.
  DEV Lane(bool holds_share) {
    thread = ::thread();
    lane = thread & 31;
    memory = shared_memory();
    share = lane >> 2;
    if (holds_share) share = (int)hold((u32)share);
    first = thread >> 5 << 4 | (lane & 3) << 2;
    unit = first + (share >> 1);
    odd = share & 1;
    quads = hold(memory + 16 * share);
#pragma unroll
    for (int k = 0; k < 4; k++) four[k] = hold(memory + 4 * unit_at(k));
  }
  DEV int unit_at(int k) const { return first + (k ^ share >> 1); }  // the k-th of the four units
  DEV u32 vector(int which) const { return memory + which * VECTOR; }
  DEV void clear() const {
    for (int i = thread; i < 5 * VECTOR / 4; i += THREADS) put_shared(memory + 4 * i, 0.f);
  }
  DEV void put(int which, float v) const { put_shared(four[0] + which * VECTOR, v); }
  // Write an element of two vectors at once, one by each of the unit's two lanes.
  DEV void put(int which, float v, int other, float w) const {
    put_shared(four[0] + (odd ? other : which) * VECTOR, odd ? w : v);
  }
  DEV void get(float (&v)[DEEP][4], int which) const {
#pragma unroll
    for (int i = 0; i < DEEP; i++) get_shared(v[i], quads + which * VECTOR + 128 * i);
  }
  // Load the elements of the four units; `at`: byte offset from the first vector.
  DEV void get_four(float (&v)[4], u32 at) const {
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = get_shared(four[k] + at);
  }
  // Load from a plane (H elements of type Element) the element of this lane's unit, or those of the four
  // units.
  DEV float get_element(u32 plane) const {
#if FORMAT == 2
    return get_shared(four[0] + plane);
#else
    float low, high;
    unpack<TYPE>(low, high, to_bits(get_shared(memory + plane + 2 * (unit & ~1))));
    return unit & 1 ? high : low;
#endif
  }
  DEV void get_elements(float (&v)[4], u32 plane) const {
#if FORMAT == 2
    get_four(v, plane);
#else
    float one, two, w[4];
    get_shared(one, two, memory + plane + 2 * first);
    const bool crossed = share & 4, odd_first = share & 2;
    unpack<TYPE>(w[0], w[1], to_bits(crossed ? two : one));
    unpack<TYPE>(w[2], w[3], to_bits(crossed ? one : two));
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = odd_first ? w[k ^ 1] : w[k];
#endif
  }
  // Return the first of four sums over the eight lanes that share them (reduce-scatter).
  DEV float scatter(const float (&c)[4]) const {
    const float v = c[0] + shuffle_xor(c[2], 16), w = c[1] + shuffle_xor(c[3], 16), s = v + shuffle_xor(w, 8);
    return s + shuffle_xor(s, 4);
  }
  // Sum q h, q x and q h x over the units of the head, times `scale`; c is this lane's partial sums of q. If
  // APART, the warps of a head do not wait for those of other heads (named barrier).
  template <bool APART = false>
  DEV void sum_heads(float (&s)[3], const float (&c)[4], const float (&h)[4], const float (&x)[4],
                     float scale) const {
    if constexpr (PIECE == 1) {
      const float q = scale * scatter(c);
      s[0] = q * h[0];
      s[1] = q * x[0];
      s[2] = q * (h[0] * x[0]);
    } else {
      s[0] = s[1] = s[2] = 0.f;
#pragma unroll
      for (int k = 0; k < 4; k++) {
        s[0] += c[k] * h[k];
        s[1] += c[k] * x[k];
        s[2] += c[k] * (h[k] * x[k]);
      }
      if constexpr (SPLIT_HEADS) {  // each lane gets one of four sums, the last of which is 0
        const bool in_second = share & 2;
        const float v = (in_second ? s[2] : s[0]) + shuffle_xor(in_second ? s[0] : s[2], 8),
                    w = (in_second ? 0.f : s[1]) + shuffle_xor(in_second ? s[1] : 0.f, 8);
        s[0] = (odd ? w : v) + shuffle_xor(odd ? v : w, 4);
#pragma unroll
        for (int bits = 16; bits < 8 * PIECE; bits *= 2)
          s[0] += shuffle_xor(s[0], bits < 32 ? bits : bits / 32);
      } else
#pragma unroll
        for (int bits = 4; bits < 8 * PIECE; bits *= 2)  // the eight lanes of four units, then the next four
#pragma unroll
          for (int m = 0; m < 3; m++) s[m] += shuffle_xor(s[m], bits < 32 ? bits : bits / 32);
      if constexpr (!SPLIT_HEADS)
#pragma unroll
        for (int m = 0; m < 3; m++) s[m] *= scale;
    }
    if constexpr (SPLIT_HEADS) {  // lanes that write to the same address write the same value
      const u32 at = memory + AT_PIECES + 16 * (unit / PIECE);
      if constexpr (PIECE == 1) {
        put_shared(at + 4 * odd, odd ? s[1] : s[0]);
        put_shared(at + 8, s[2]);
      } else
        put_shared(at + 4 * (share & 3), scale * s[0]);
      if constexpr (APART && PIECE == 16)
        wait_threads(1 + unit / D, 2 * D);
      else
        wait_block();
      s[0] = s[1] = s[2] = 0.f;
#pragma unroll
      for (int i = 0; i < D / PIECE; i++) {
        float v[4];
        get_shared(v, memory + AT_PIECES + 16 * (unit / D * (D / PIECE) + i));
#pragma unroll
        for (int m = 0; m < 3; m++) s[m] += v[m];
      }
    }
  }
};

// Load four consecutive elements.
DEV void get_quad(float (&v)[4], const Element* from) {
#if FORMAT == 2
  get_global(v, from);
#else
  float one, two;
  get_global(one, two, (const float*)from);
  unpack<TYPE>(v[0], v[1], to_bits(one));
  unpack<TYPE>(v[2], v[3], to_bits(two));
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = hold(v[i]);
#endif
}

// The rows of a weight for a lane's four units, as quads. The last QUADS_IN_SHARED quads lie in shared
// memory, with those of neighbouring lanes side by side.
struct Weight {
  static constexpr int IN_REGISTERS = QUADS - QUADS_IN_SHARED;
  float w[IN_REGISTERS][4];
  u32 in_shared;
  DEV void load(const Element* W, int stride, const Lane& l, u32 to) {
    in_shared = to + 16 * l.thread;
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
      const int column = 32 * (i / 4) + 4 * l.share;
      float v[4] = {};
      if (column < H) get_quad(v, W + (i64)l.unit_at(i % 4) * stride + column);
      if (i >= IN_REGISTERS)
        put_shared(in_shared + 16 * THREADS * (i - IN_REGISTERS), v);
      else
#pragma unroll
        for (int e = 0; e < 4; e++) w[i][e] = v[e];
    }
  }
};

// c += this lane's part of W v.
DEV void multiply(float (&c)[4], const Weight& W, const float (&v)[DEEP][4]) {
  float shared_quads[QUADS_IN_SHARED + 1][4];
#pragma unroll
  for (int i = 0; i < QUADS_IN_SHARED; i++) get_shared(shared_quads[i], W.in_shared + 16 * THREADS * i);
#pragma unroll
  for (int i = 0; i < QUADS; i++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      c[i % 4] += (i < W.IN_REGISTERS ? W.w[i][e] : shared_quads[i - W.IN_REGISTERS][e]) * v[i / 4][e];
}

// The 16 bytes of one plane that a thread loads for each step, some steps ahead.
struct Source {
  const u8* from;  // address for step 0
  i64 stride;      // bytes from one step to the next
  u32 to;          // address in the ring's first stage
  bool has_source;
  DEV void fetch(int t, int slot, bool valid) const {
    if (valid && has_source) cp_async16(to + (t & STAGES - 1) * slot, from + t * stride, 16);
  }
};
