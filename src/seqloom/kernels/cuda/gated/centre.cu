// Subtract from the weights of normalised gates, column by column, their mean over the units of a gate, and
// the same mean from their gradient. A block handles 2 COLUMN_PAIRS columns of one matrix; a thread handles
// two columns of every AT_ONCE-th unit.
#include "runtime/pairs.cuh"

#ifndef HIDDEN     // set by Python with -D; this default is for editors
#define HIDDEN 64  // units, a multiple of 16
#endif
constexpr int H = HIDDEN, WARPS = 16, THREADS = 32 * WARPS, COLUMN_PAIRS = 8, GROUPS = H / (2 * COLUMN_PAIRS);
constexpr int AT_ONCE = THREADS / COLUMN_PAIRS;     // units that a block handles at a time
constexpr int UNITS = (H + AT_ONCE - 1) / AT_ONCE;  // units per thread
constexpr int PIECE = 64,
              TOGETHER = 16;  // units in a chain of error feedback; units loaded at once
constexpr int PIECES = (H + PIECE - 1) / PIECE;
constexpr int CENTRE_BYTES = 8 * WARPS * COLUMN_PAIRS, CENTRE_GRADIENT_BYTES = CENTRE_BYTES;

struct Place {
  int matrix, unit, column;  // first unit and first column of this thread
  DEV Place() {
    matrix = block() / GROUPS;
    unit = thread() / COLUMN_PAIRS;
    column = 2 * (block() % GROUPS * COLUMN_PAIRS + thread() % COLUMN_PAIRS);
  }
  DEV i64 at(int unit) const { return ((i64)matrix * H + unit) * H + column; }
};
// Sum each of two columns over all threads of the block that share it, and divide by the number of units.
DEV void find_means(float (&v)[2]) {
  const u32 at = shared_memory() + thread() % COLUMN_PAIRS * 8;
#pragma unroll
  for (int e = 0; e < 2; e++)
#pragma unroll
    for (int bits = COLUMN_PAIRS; bits < 32; bits *= 2) v[e] += shuffle_xor(v[e], bits);
  if (thread() % 32 < COLUMN_PAIRS) put_shared(at + thread() / 32 * COLUMN_PAIRS * 8, v[0], v[1]);
  wait_block();
  v[0] = v[1] = 0.f;
#pragma unroll
  for (int warp = 0; warp < WARPS; warp++) {
    float low, high;
    get_shared(low, high, at + warp * COLUMN_PAIRS * 8);
    v[0] += low;
    v[1] += high;
  }
  v[0] *= 1.0f / H;
  v[1] *= 1.0f / H;
}

struct Centre {
  const Element* weight;  // (matrices, H, H)
  Element* to;
};
// Round with error feedback, so that the sum over units stays near 0: the rounding error of a unit is added
// to the next unit, within chains of PIECE units.
KERNEL(centre, Centre, THREADS) {
  const Place p;
  float mean[2] = {}, lost[2] = {};
  Pair some[UNITS];
#pragma unroll
  for (int n = 0; n < UNITS; n++)
    some[n] = p.unit + n * AT_ONCE < H ? get_pair(a.weight + p.at(p.unit + n * AT_ONCE)) : Pair{};
#pragma unroll
  for (int n = 0; n < UNITS; n++) {
    float v[2];
    from_pair(v[0], v[1], some[n]);
    mean[0] += v[0];
    mean[1] += v[1];
  }
  find_means(mean);
  if (p.unit >= PIECES) return;
#pragma unroll 1
  for (int first = PIECE * p.unit; first < PIECE * (p.unit + 1) && first < H; first += TOGETHER) {
    Pair all[TOGETHER];
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) all[j] = get_pair(a.weight + p.at(first + j));
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) {
      float v[2], w[2];
      from_pair(v[0], v[1], all[j]);
#pragma unroll
      for (int e = 0; e < 2; e++) v[e] = v[e] - mean[e] + lost[e];
      const Pair rounded = to_pair(v[0], v[1]);
      from_pair(w[0], w[1], rounded);
#pragma unroll
      for (int e = 0; e < 2; e++) lost[e] = v[e] - w[e];
      put_pair(a.to + p.at(first + j), rounded);
    }
  }
}

struct CentreGradient {
  const float* parts;  // (count, matrices, H, H): partial gradients of the centred weights, to be summed
  Element* to;         // (matrices, H, H)
  int count;           // number of partial gradients
  int matrices;
};
KERNEL(centre_gradient, CentreGradient, THREADS) {
  constexpr int AHEAD = UNITS < 8 ? 8 / UNITS : 1;  // partial gradients loaded at once
  const Place p;
  float v[UNITS][2] = {}, mean[2] = {};
#pragma unroll 1
  for (int first = 0; first < a.count; first += AHEAD) {
    float w[AHEAD][UNITS][2] = {};
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
#pragma unroll
      for (int n = 0; n < UNITS; n++)
        if (first + k < a.count && p.unit + n * AT_ONCE < H)
          get_global(w[k][n][0], w[k][n][1],
                     a.parts + (i64)(first + k) * a.matrices * H * H + p.at(p.unit + n * AT_ONCE));
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
#pragma unroll
      for (int n = 0; n < UNITS; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) v[n][e] += w[k][n][e];
  }
#pragma unroll
  for (int n = 0; n < UNITS; n++)
#pragma unroll
    for (int e = 0; e < 2; e++) mean[e] += v[n][e];
  find_means(mean);
#pragma unroll
  for (int n = 0; n < UNITS; n++)
    if (p.unit + n * AT_ONCE < H)
      put_pair(a.to + p.at(p.unit + n * AT_ONCE), to_pair(v[n][0] - mean[0], v[n][1] - mean[1]));
}
