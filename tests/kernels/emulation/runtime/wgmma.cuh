// Products of matrices in shared memory by four warps, in place of the file of this name.
#pragma once
#include "runtime/device.cuh"
typedef unsigned long long u64;
constexpr int SWIZZLE_128 = 1, SWIZZLE_64 = 2;

// With more digits of an address, which says whose shared memory it is in.
inline u64 describe_matrix(u32 at, int swizzle, u32 stride, u32 leading) {
  return (u64)(at >> 18) << 46 | (u64)(at >> 4 & 0x3fffu) | (u64)(leading >> 4) << 16 |
         (u64)(stride >> 4) << 32 | (u64)swizzle << 62;
}
void fence_proxy_async();
void add_task(float* d, int count, u64 a, u64 b, int kind, bool by_column, bool adds);
void commit_products();
void await_products_but(int left);
inline void begin_products() {}
template <int LEFT>
void await_products() {
  await_products_but(LEFT);
}
template <int BY_COLUMN, int ADDS>
void multiply_fp16(float (&d)[64], u64 a, u64 b) {
  add_task(d, 64, a, b, FP16, BY_COLUMN, ADDS);
}
template <int KIND, int ADDS, int R>
void multiply_lines(float (&d)[R], u64 a, u64 b) {
  add_task(d, R, a, b, KIND, false, ADDS);
}
template <int R>
void fence_sums(float (&)[R]) {}
