// Load tiles of a hi/lo-split matrix into shared memory.
#pragma once
#include "runtime/device.cuh"

#ifndef TRANSPOSED  // set by Python with -D; this default is for editors
#define TRANSPOSED 0
#endif

constexpr int DEPTH = 32, THREADS = 256;  // values of K per step; threads per block

// Loader of one operand tile, step by step: a thread copies MANY groups of eight values of each of the two
// planes to the offsets that find_place returns.
template <int TILE, u32 (*find_place)(int line, int eight)>
struct Source {
  static constexpr int EIGHTS = TRANSPOSED ? TILE / 8 : DEPTH / 8, LINES = THREADS / EIGHTS,
                       MANY = TILE * DEPTH / 8 / THREADS;
  const u16* at;
  int line, eight, lines;  // lines: number of the tile's lines inside the matrix
  bool has_eight;
  // `first`: the tile's first line (transposed: column) of `count`; `from`: its first value of K.
  DEV Source(const u16* matrix, i64 first, i64 count, int from, int width) {
    line = thread() / EIGHTS;
    eight = thread() % EIGHTS;
    const i64 rest = count - first;
    has_eight = 8 * eight < rest;
    lines = rest < TILE ? (int)rest : TILE;
    at = TRANSPOSED ? matrix + (i64)(from + line) * width + first + 8 * eight
                    : matrix + (first + line) * width + from + 8 * eight;
  }
  // Start the cp.async loads of a step with `rest` values of K left; elements outside the matrix become 0.
  DEV void fetch(u32 to, i64 plane, int width, int rest) {
#pragma unroll
    for (int j = 0; j < MANY; j++) {
      const int own = line + LINES * j;
      const bool is_inside = TRANSPOSED ? own < rest && has_eight : own < lines && 8 * eight < rest;
      const u16* from = is_inside ? at + (i64)LINES * j * width : at;
      const u32 place = to + find_place(own, eight);
      cp_async16(place, from, is_inside ? 16 : 0);
      cp_async16(place + 2 * TILE * DEPTH, from + (is_inside ? plane : 0), is_inside ? 16 : 0);
    }
    at += TRANSPOSED ? (i64)DEPTH * width : DEPTH;
  }
};
