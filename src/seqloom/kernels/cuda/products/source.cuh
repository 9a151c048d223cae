// A tile of a hi/lo-split matrix in shared memory.
#pragma once
#include "runtime/device.cuh"

#ifndef TURNED  // Python gives it with -D; the value here serves editors
#define TURNED 0
#endif

constexpr int DEPTH = 32, THREADS = 256;  // numbers of K in a step; threads of a block

// A tile of two planes that is fetched step by step: a thread has MANY times eight numbers of each, which
// lie where find_place says.
template <int TILE, u32 (*find_place)(int line, int eight)>
struct Source {
  static constexpr int EIGHTS = TURNED ? TILE / 8 : DEPTH / 8, LINES = THREADS / EIGHTS,
                       MANY = TILE * DEPTH / 8 / THREADS;
  const u16* at;
  int line, eight, lines;  // lines: those that exist, from the tile's first one on
  bool has_eight;
  // `first`: of the lines, or with TURNED of the columns, of which there are `count`; `from`: the first of K.
  DEV Source(const u16* matrix, i64 first, i64 count, int from, int width) {
    line = thread() / EIGHTS;
    eight = thread() % EIGHTS;
    const i64 rest = count - first;
    has_eight = 8 * eight < rest;
    lines = rest < TILE ? (int)rest : TILE;
    at = TURNED ? matrix + (i64)(from + line) * width + first + 8 * eight
                : matrix + (first + line) * width + from + 8 * eight;
  }
  // Load a step, in which `rest` numbers of K remain; elements outside the matrix become 0.
  DEV void fetch(u32 to, i64 plane, int width, int rest) {
#pragma unroll
    for (int j = 0; j < MANY; j++) {
      const int own = line + LINES * j;
      const bool is_inside = TURNED ? own < rest && has_eight : own < lines && 8 * eight < rest;
      const u16* from = is_inside ? at + (i64)LINES * j * width : at;
      const u32 place = to + find_place(own, eight);
      fetch16(place, from, is_inside ? 16 : 0);
      fetch16(place + 2 * TILE * DEPTH, from + (is_inside ? plane : 0), is_inside ? 16 : 0);
    }
    at += TURNED ? (i64)DEPTH * width : DEPTH;
  }
};
