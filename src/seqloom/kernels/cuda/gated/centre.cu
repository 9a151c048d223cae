// Weights without their mean over the units of a gate, rounded so that the sum over these units stays near 0:
// what one unit loses is added to the next.
#include "runtime/pairs.cuh"

#ifndef HIDDEN     // Python gives it with -D; the value here serves editors
#define HIDDEN 64  // units, a multiple of 16
#endif
constexpr int H = HIDDEN, THREADS = 128, CENTRE_BYTES = 0;
constexpr int PIECE = 64, TOGETHER = 16;  // units that hand on what they lose, and that are loaded together
constexpr int PIECES = (H + PIECE - 1) / PIECE;

struct Centre {
  const Element* weight;  // (matrices, H, H)
  const float* mean;      // (matrices, H)
  Element* to;
  int matrices;
};
KERNEL(centre, Centre, THREADS) {
  const int i = block() * THREADS + thread(), column = i % (H / 2) * 2, piece = i / (H / 2) % PIECES,
            matrix = i / (H / 2) / PIECES;
  if (matrix >= a.matrices) return;
  float mean[2], lost[2] = {};
  get_global(mean[0], mean[1], a.mean + (i64)matrix * H + column);
#pragma unroll 1
  for (int first = PIECE * piece; first < PIECE * (piece + 1) && first < H; first += TOGETHER) {
    const i64 at = ((i64)matrix * H + first) * H + column;
    Pair all[TOGETHER];
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) all[j] = get_pair(a.weight + at + j * H);
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
      put_pair(a.to + at + j * H, rounded);
    }
  }
}
