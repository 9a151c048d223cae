// Sums over a row or a head, for kernels with one row of H units per block.
#pragma once
#include "attn_rnn/setting.cuh"
#include "runtime/pairs.cuh"

// Threads per block in kernels that handle single units.
constexpr int WIDE = H <= 64 ? 32 : H >= 2048 ? 1024 : (H / 2 + 31) / 32 * 32;
constexpr int PER = (H + WIDE - 1) / WIDE, ROW_BYTES = 8 * (WIDE / 32);
constexpr int SHARE = D < 128 || HEADS > 8 ? 1 : D >= 256 ? 4 : 2;  // warps per head
constexpr int PER_LANE = (D + 32 * SHARE - 1) / (32 * SHARE), HEAD_BYTES = SHARE > 1 ? 16 * HEADS * SHARE : 0;
constexpr int EIGHTS = (H + 255) / 256 * 32;  // threads per block if each has 8 units of a row
constexpr float ROOT_HALF = 0.7071067811865476f, ROOT_2PI = 2.5066282746310002f;

// Load or store one value, or eight values at an address that is a multiple of 16 bytes.
DEV void get_many(float (&v)[1], const Element* from) { v[0] = get_one(from); }
DEV void put_many(Element* to, const float (&v)[1]) { put_one(to, v[0]); }
DEV void get_many(float (&v)[8], const Element* from) {
#pragma unroll
  for (int k = 0; k < 8; k += 16 / SIZE) {
    float four[4];
    get_global(four, (const float*)(from + k));
#pragma unroll
    for (int i = 0; i < 4; i++)
#if FORMAT == 2
      v[k + i] = four[i];
#else
      unpack<TYPE>(v[2 * i], v[2 * i + 1], to_bits(four[i]));
#endif
  }
}
DEV void put_many(Element* to, const float (&v)[8]) {
#pragma unroll
  for (int k = 0; k < 8; k += 16 / SIZE) {
    float four[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
#if FORMAT == 2
      four[i] = v[k + i];
#else
      four[i] = to_float(pack<TYPE>(v[2 * i], v[2 * i + 1]));
#endif
    put_global((float*)(to + k), four);
  }
}
DEV float sum_warp(float v) {
#pragma unroll
  for (int bits = 16; bits; bits /= 2) v += shuffle_xor(v, bits);
  return v;
}
// Sum over a block of WIDE threads in a fixed order, so that results are deterministic.
DEV void sum_row(float& v, float& w) {
  const int warp = thread() / 32;
  v = sum_warp(v);
  w = sum_warp(w);
  wait_block();
  if (thread() % 32 == 0) put_shared(shared_memory() + 8 * warp, v, w);
  wait_block();
  v = w = 0.f;
#pragma unroll
  for (int i = 0; i < WIDE / 32; i++) {
    float a, b;
    get_shared(a, b, shared_memory() + 8 * i);
    v += a;
    w += b;
  }
}
DEV float sum_row(float v) {
  float none = 0.f;
  sum_row(v, none);
  return v;
}
// Sum over the warps of a head.
DEV void sum_head(float& v, float& w, float& x) {
  v = sum_warp(v);
  w = sum_warp(w);
  x = sum_warp(x);
  if constexpr (SHARE > 1) {
    const int warp = thread() / 32, first = warp / SHARE * SHARE;
    if (thread() % 32 == 0) {
      put_shared(shared_memory() + 16 * warp, v, w);
      put_shared(shared_memory() + 16 * warp + 8, x);
    }
    wait_block();
    v = w = x = 0.f;
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
      float all[4];
      get_shared(all, shared_memory() + 16 * (first + i));
      v += all[0];
      w += all[1];
      x += all[2];
    }
  }
}
