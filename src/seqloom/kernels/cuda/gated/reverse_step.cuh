// Values of a backward step of a gated cell, and their exchange between helper warps and row-owning warps.
#pragma once
#define BACK 1
#include "gated/units.cuh"

// Whether to correct for the sum over units after the product; within one block, waiting for the sum is
// faster.
constexpr bool LATE = NORM && CLUSTER > 1;
constexpr int PLANES = GATES - SUMMED;
DEV constexpr int find_root(int n) {
  int r = 1;
  while (r * r < n) r++;
  return r;
}
constexpr float ROOT = find_root(H);  // divisor that keeps U^T U h within the range of 16-bit types

// Unconverted values that a lane loads for a step; converting them at once would wait for the load.
struct StepInputs {
  Pair dy, x[INPUTS], u[GATES], keep[STATES], past[STATES];
  float spread[SPREAD ? SPREAD : 1];
  int is_reset;
};
// Values of a step that do not depend on later steps, computed from its inputs.
struct StepValues {
  float dy[2], keep[2][STATES], mhat[2], deviation_c, r[GATES];
  Pair u[GATES];  // with NORM: U h, for n and r times the scale, unless a helper warp passes those two
#if HELPS
  float n[2][GATES], gain[2][GATES];
#endif
#if NORM
  float factors[2][FACTORS];
#else
  Inside in[2];
  float past[2][STATES];
#endif
  bool is_reset = false;  // initialised, because warps without a row read it too
};
// Gradients of a step: of x, u and the output of the memory's norm, and the operand of the recurrent product.
struct StepGradients {
  float dx[2][INPUTS], du[2][GATES], dm[2];
  Pair all[GATES];
};
// How warps run the steps: all in one loop, or row-owning warps and helper warps in separate loops.
enum Role { EVERYONE, ROW_OWNER, HELPER };
#if HELPS
// Call `f` on every word that a helper passes to the row owner, in a fixed order.
template <class F>
DEV void visit_words(StepValues& n, F f) {
#pragma unroll
  for (int e = 0; e < 2; e++) {
    f(n.dy[e]);
    if constexpr (MEMORY) f(n.mhat[e]);
#pragma unroll
    for (int k = 0; k < FACTORS; k++) f(n.factors[e][k]);
  }
  if constexpr (MEMORY) f(n.deviation_c);
#pragma unroll
  for (int i = 0; i < 2 * GATES; i++) {
    f(n.gain[i % 2][i / 2]);
    f(n.n[i % 2][i / 2]);
  }
  if constexpr (LATE)
#pragma unroll
    for (int k = 0; k < GATES; k++) f(n.r[k]);
  if constexpr (RESET) {
    float is_reset = n.is_reset;
    f(is_reset);
    n.is_reset = is_reset != 0.f;
  }
  if constexpr (KEEP)
#pragma unroll
    for (int i = 0; i < 2 * STATES; i++) f(n.keep[i % 2][i / 2]);
}
// Pass the values of step i from a helper to the row owner (hand_over), and receive them there (take_over).
DEV void hand_over(StepValues& n, int i, const Block& b) {
  float w[HANDED] = {};
  int words = 0;
  visit_words(n, [&](float v) { w[words++] = v; });
#pragma unroll
  for (int k = 0; k < HANDED / 4; k++)
    if (4 * k < words) {
      const float four[4] = {w[4 * k], w[4 * k + 1], w[4 * k + 2], w[4 * k + 3]};
      put_shared(b.find_handed(i, k), four);
    }
}
DEV void take_over(StepValues& n, int i, const Block& b) {
  float w[HANDED];
  int words = 0;
  visit_words(n, [&](float) { words++; });
#pragma unroll
  for (int k = 0; k < HANDED / 4; k++)
    if (4 * k < words) {
      float four[4];
      get_shared(four, b.find_handed(i, k));
#pragma unroll
      for (int j = 0; j < 4; j++) w[4 * k + j] = four[j];
    }
  words = 0;
  visit_words(n, [&](float& v) { v = w[words++]; });
}
// Return the gradients of step i to the helper warp, which accumulates and writes them.
static_assert(2 * (2 * GATES - JOINED + MEMORY) <= HANDED_BACK, "no room");
DEV void hand_back(const StepGradients& g, int i, const Block& b) {
  float w[HANDED_BACK] = {};
#pragma unroll
  for (int e = 0; e < 2; e++) {
#pragma unroll
    for (int k = 0; k < GATES; k++) w[2 * k + e] = g.du[e][k];
#pragma unroll
    for (int k = JOINED; k < GATES; k++) w[2 * (GATES + k - JOINED) + e] = g.dx[e][k];
    if constexpr (MEMORY) w[2 * (2 * GATES - JOINED) + e] = g.dm[e];
  }
#pragma unroll
  for (int k = 0; k < HANDED_BACK; k += 4) {
    const float four[4] = {w[k], w[k + 1], w[k + 2], w[k + 3]};
    put_shared(b.find_handed_back(i) + 128 * k + 16 * b.lane, four);
  }
}
DEV void take_back(StepGradients& g, int i, const Block& b) {
  float w[HANDED_BACK];
#pragma unroll
  for (int k = 0; k < HANDED_BACK; k += 4) {
    float four[4];
    get_shared(four, b.find_handed_back(i) + 128 * k + 16 * b.lane);
#pragma unroll
    for (int j = 0; j < 4; j++) w[k + j] = four[j];
  }
#pragma unroll
  for (int e = 0; e < 2; e++) {
#pragma unroll
    for (int k = 0; k < GATES; k++) {
      g.du[e][k] = w[2 * k + e];
      g.dx[e][k] = w[2 * (k < JOINED ? k : GATES + k - JOINED) + e];
    }
    if constexpr (MEMORY) g.dm[e] = w[2 * (2 * GATES - JOINED) + e];
  }
  if constexpr (!LATE)
#pragma unroll
    for (int k = 0; k < GATES; k++) g.all[k] = b.get_shared_pair(i, k);
}
#endif
