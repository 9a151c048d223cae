// Layer normalisation of the input projections, separately for each gate: n = (v - mean) r,
// y = n scale + bias. A group of GROUP_WARPS warps normalises one vector of H values; all vectors of a group
// belong to the same gate. A group loads VECTORS vectors at once.
#include "runtime/pairs.cuh"
#include "runtime/sums.cuh"

#ifndef HIDDEN     // Python defines these with -D; the defaults are for editors
#define HIDDEN 64  // units, a multiple of 16
#define GATES 3
#define GROUP_WARPS 1  // warps per group
#endif
constexpr int H = HIDDEN, WARPS = 8, THREADS = 32 * WARPS, WARP_GROUPS = WARPS / GROUP_WARPS;
constexpr int WIDE =
    (H / 2 + 32 * GROUP_WARPS - 1) / (32 * GROUP_WARPS);  // pairs of values per lane and vector
constexpr int VECTORS = WIDE >= 4 ? 1 : 4 / WIDE;         // loaded at once
constexpr int NORMALISE_BYTES = GROUP_WARPS > 1 ? 4 * WARPS * 4 : 0, NORMALISE_BACK_BYTES = NORMALISE_BYTES;

// Position of a lane within its group of warps.
struct Place {
  int lane, warp, warp_group, first;  // warp_group: group of warps; first: its first vector
  DEV Place() {
    lane = thread() & 31;
    warp = thread() >> 5;
    warp_group = warp / GROUP_WARPS;
    first = block() * WARP_GROUPS + warp_group;
  }
  DEV int unit(int k) const {
    return 2 * (32 * (GROUP_WARPS * k + warp % GROUP_WARPS) + lane);
  }  // first unit of pair k
};
// Sum N values over the lanes of a group of warps.
template <int N>
DEV void sum_warp_group(float (&v)[N], const Place& p) {
  static_assert(N <= 4, "a warp has room for four");
  sum_lanes<32>(v, p.lane);
  if constexpr (GROUP_WARPS > 1) {
    const u32 at = shared_memory();
    wait_threads(1 + p.warp_group, 32 * GROUP_WARPS);  // the previous sums have been read
#pragma unroll
    for (int j = 0; j < N; j++)
      if (p.lane == j) put_shared(at + 4 * (4 * p.warp + j), v[j]);
    wait_threads(1 + p.warp_group, 32 * GROUP_WARPS);
#pragma unroll
    for (int j = 0; j < N; j++) {
      v[j] = 0.f;
#pragma unroll
      for (int i = 0; i < GROUP_WARPS; i++)
        v[j] += get_shared(at + 4 * (4 * (GROUP_WARPS * p.warp_group + i) + j));
    }
  }
}
// Read the values of this lane's units from a vector of length H; zeros for units outside it.
DEV void read_units(float (&v)[WIDE][2], const Element* from, const Place& p, bool exists) {
  Pair all[WIDE] = {};
#pragma unroll
  for (int k = 0; k < WIDE; k++)
    if (exists && p.unit(k) < H) all[k] = get_pair(from + p.unit(k));
#pragma unroll
  for (int k = 0; k < WIDE; k++) from_pair(v[k][0], v[k][1], all[k]);
}

struct Normalise {
  const Element *product, *scale, *bias;  // (vectors, H), (GATES, H)
  Element* to;
  float* spread;  // (vectors, 2): mean and r, or null
  i64 vectors;    // number of vectors, over all gates
};
KERNEL(normalise, Normalise, THREADS) {
  const Place p;
  float scale[WIDE][2], bias[WIDE][2];
  read_units(scale, a.scale + p.first % GATES * H, p, true);
  read_units(bias, a.bias + p.first % GATES * H, p, true);
  const i64 step = (i64)blocks() * WARP_GROUPS;  // a multiple of GATES
#pragma unroll 1
  for (i64 i = p.first; i < a.vectors; i += VECTORS * step) {
    float v[VECTORS][WIDE][2], sums[VECTORS], squares[VECTORS];
#pragma unroll
    for (int n = 0; n < VECTORS; n++)
      read_units(v[n], a.product + (i + n * step) * H, p, i + n * step < a.vectors);
#pragma unroll
    for (int n = 0; n < VECTORS; n++) {
      sums[n] = 0.f;
#pragma unroll
      for (int k = 0; k < WIDE; k++) sums[n] += v[n][k][0] + v[n][k][1];
    }
    sum_warp_group(sums, p);
#pragma unroll
    for (int n = 0; n < VECTORS; n++) {
      squares[n] = 0.f;
#pragma unroll
      for (int k = 0; k < WIDE; k++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          v[n][k][e] -= sums[n] * (1.0f / H);
          if (p.unit(k) < H) squares[n] += v[n][k][e] * v[n][k][e];
        }
    }
    sum_warp_group(squares, p);
#pragma unroll
    for (int n = 0; n < VECTORS; n++) {
      const i64 j = i + n * step;
      const float r = inverse_root(squares[n] * (1.0f / H) + 1e-5f);
      if (j >= a.vectors) continue;
#pragma unroll
      for (int k = 0; k < WIDE; k++)
        if (p.unit(k) < H)
          put_pair(a.to + j * H + p.unit(k), to_pair(v[n][k][0] * r * scale[k][0] + bias[k][0],
                                                     v[n][k][1] * r * scale[k][1] + bias[k][1]));
      if (a.spread && p.lane == 0 && p.warp % GROUP_WARPS == 0)
        put_global(a.spread + 2 * j, sums[n] * (1.0f / H), r);
    }
  }
}

// Backward pass; the prefix d marks a gradient.
struct NormaliseBack {
  const Element *product, *scale, *dy;  // (vectors, H), (GATES, H)
  const float* spread;
  Element* dproduct;
  float* partial;  // (groups, 2, H): gradients of bias and scale; group g belongs to gate g % GATES
  i64 vectors;
};
KERNEL(normalise_back, NormaliseBack, THREADS) {
  const Place p;
  float scale[WIDE][2], dbias[WIDE][2] = {}, dscale[WIDE][2] = {};
  read_units(scale, a.scale + p.first % GATES * H, p, true);
  const i64 step = (i64)blocks() * WARP_GROUPS;
#pragma unroll 1
  for (i64 i = p.first; i < a.vectors; i += VECTORS * step) {
    float n[VECTORS][WIDE][2], d[VECTORS][WIDE][2], r[VECTORS], mean[VECTORS], sums[VECTORS], shares[VECTORS];
#pragma unroll
    for (int m = 0; m < VECTORS; m++) {
      const i64 j = i + m * step;
      read_units(n[m], a.product + j * H, p, j < a.vectors);
      read_units(d[m], a.dy + j * H, p, j < a.vectors);
      mean[m] = r[m] = 0.f;
      if (j < a.vectors) get_global(mean[m], r[m], a.spread + 2 * j);
    }
#pragma unroll
    for (int m = 0; m < VECTORS; m++) {
      sums[m] = shares[m] = 0.f;
#pragma unroll
      for (int k = 0; k < WIDE; k++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          n[m][k][e] = (n[m][k][e] - mean[m]) * r[m];
          dbias[k][e] += d[m][k][e];
          dscale[k][e] += d[m][k][e] * n[m][k][e];
          d[m][k][e] *= scale[k][e];
          sums[m] += d[m][k][e];
          shares[m] += d[m][k][e] * n[m][k][e];
        }
    }
    sum_warp_group(sums, p);
    sum_warp_group(shares, p);
#pragma unroll
    for (int m = 0; m < VECTORS; m++) {
      if (i + m * step >= a.vectors) continue;
#pragma unroll
      for (int k = 0; k < WIDE; k++) {
        float v[2];
#pragma unroll
        for (int e = 0; e < 2; e++)
          v[e] = r[m] * (d[m][k][e] - sums[m] * (1.0f / H) - n[m][k][e] * (shares[m] * (1.0f / H)));
        if (p.unit(k) < H) put_pair(a.dproduct + (i + m * step) * H + p.unit(k), to_pair(v[0], v[1]));
      }
    }
  }
#pragma unroll
  for (int k = 0; k < WIDE; k++)
    if (p.unit(k) < H) {
      float* to = a.partial + (i64)p.first * 2 * H + p.unit(k);
      put_global(to, dbias[k][0], dbias[k][1]);
      put_global(to + H, dscale[k][0], dscale[k][1]);
    }
}
