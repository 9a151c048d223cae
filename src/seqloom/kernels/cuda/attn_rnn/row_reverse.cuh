// Shared parts of the backward kernels that give each row to one block or to two. Letters as in
// block_reverse.cu.
#pragma once
#include "attn_rnn/row.cuh"

// Vectors in shared memory: dgate, dx, dx * n, ds, dq.
constexpr int DGATE = 0, DX = 1, DXN = 2, DS = 3, DQ = 4;
// The planes (H values each) of a step; the attention follows them.
constexpr int PAST = 0, INPUT = 1, DY = 2, G = 3, N = 4, SLOPE = 5, Q = 6, KEEP_PLANE = 7, PLANES = 7 + KEEP;
// Bytes of the planes: PAST (states) is float32, the others have the type Element.
constexpr int PLANE_BYTES = 4 * H + SIZE * H * (PLANES - 1);
DEV constexpr int find_plane(int plane) { return plane == PAST ? 0 : 4 * H + SIZE * H * (plane - 1); }

// Addresses in global memory of the 16 bytes that a thread loads of a step's planes.
struct PlaneSource {
  int plane;
  i64 stride;      // bytes from one step to the next
  const u8* from;  // address for step 0
  // steps: index of this row's step 0 in tensors that hold the chunk's steps only
  DEV PlaneSource(const Reverse& a, const Lane& l, i64 row, i64 steps) {
    constexpr int STATE_LINE = H / 4;  // threads that load the states
    plane = l.thread < STATE_LINE ? PAST : 1 + (l.thread - STATE_LINE) / LINE;
    const int row_stride = plane == Q ? 2 * H : H;
    const bool is_input = plane == INPUT || plane == DY || plane == KEEP_PLANE;
    const Element* planes = plane == INPUT   ? a.x
                            : plane == DY    ? a.dy
                            : plane == G     ? a.g
                            : plane == N     ? a.n
                            : plane == SLOPE ? a.slope
                            : plane == Q     ? a.q
                                             : a.keep;
    from = plane == PAST ? (const u8*)(a.past + steps * H) + 16 * l.thread
                         : (const u8*)(planes + (is_input ? row * a.T : steps) * row_stride) +
                               16 * ((l.thread - STATE_LINE) % LINE);
    stride = plane == PAST ? 4 * H : SIZE * row_stride;
  }
};

// Addresses to which the two lanes of a unit write the gradients of a step, each lane some of them.
struct Gradients {
  Element *gate, *sum, *query;
  DEV Gradients(const Reverse& a, const Lane& l, i64 row) {
    const i64 whole = row * a.T * H,
              piece = (row * a.steps - a.from) * H;  // offset of step 0 in the chunk's tensors
    gate = (l.odd ? a.dn : a.dg) + piece + l.unit;
    sum = a.ds + piece + l.unit;
    query = l.odd ? a.du + whole + l.unit : a.dq + piece + l.unit;
  }
  // Write zeros for the steps t .. last - 1, which the row does not have.
  DEV void clear(const Lane& l, int t, int last) const {
    for (; t < last; t++) {
      const i64 i = (i64)t * H;
      put_one(gate + i, 0.f);
      put_one(query + i, 0.f);
      if (!l.odd) put_one(sum + i, 0.f);
    }
  }
};
