// Products of matrices in shared memory by a warp group, on Hopper only (wgmma, sm_90a). They are
// asynchronous: accumulators must not be accessed between a product and the wait for it. The tests replace
// this file by a CPU emulation.
#pragma once
#include "runtime/device.cuh"
typedef unsigned long long u64;
constexpr int SWIZZLE_128 = 1, SWIZZLE_64 = 2;  // swizzle modes: 128- and 64-byte lines

// Return the wgmma descriptor of a matrix in shared memory. K-major: a line holds values of one row, and
// `stride` is the number of bytes from one group of 8 rows to the next. MN-major: a line holds 64 rows of one
// column, `stride` leads from one group of 8 columns to the next, `leading` from one group of 64 rows to the
// next.
DEV u64 describe_matrix(u32 at, int swizzle, u32 stride, u32 leading) {
  return (u64)(at >> 4 & 0x3fffu) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | (u64)swizzle << 62;
}
// Make this thread's writes to shared memory visible to wgmma (async proxy); a block barrier must follow.
DEV void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEV void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT>
DEV void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// Start d (64 x 128) = A (64 x 16) B^T (128 x 16), or d += with ADDS; d has the layout of C of mma, 16 rows
// per warp. BY_COLUMN: both operands are MN-major.
template <int BY_COLUMN, int ADDS>
DEV void multiply_fp16(float (&d)[64], u64 a, u64 b) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%"
      "27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%"
      "52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, p, 1, 1, %67, %67;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
        "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
        "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),
        "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
        "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]),
        "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]),
        "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "l"(a), "l"(b), "n"(ADDS), "n"(BY_COLUMN));
}
// Start d (64 x N) = A B^T, or d += with ADDS, for K-major A (64 rows) and B (N rows) with 32 bytes of K per
// row: bf16, fp16, or tf32 (KIND FP32). d has the layout of multiply_fp16.
#define MULTIPLY_LINES(SHAPE, NUMBERS, TRANSPOSED, SUMS, A, B, P, ...)                               \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " P ", 0; wgmma.mma_async.sync.aligned." SHAPE NUMBERS \
               " {" SUMS "}, " A ", " B ", p, 1, 1" TRANSPOSED ";}"                                  \
               : __VA_ARGS__                                                                         \
               : "l"(a), "l"(b), "n"(ADDS))
#define SUMS_16                                                                                             \
  "%0,%1,%2,%3,%4,%5,%6,%7", "%8", "%9", "%10", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), \
      "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define SUMS_32                                                                                         \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15", "%16", "%17", "%18", "+f"(d[0]), "+f"(d[1]), \
      "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),   \
      "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define SUMS_64                                                                                             \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%" \
  "28,%29,%30,%31",                                                                                         \
      "%32", "%33", "%34", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),          \
      "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),   \
      "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),            \
      "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),            \
      "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define EXPAND_LINES(...) MULTIPLY_LINES(__VA_ARGS__)
#define MULTIPLY_WIDTH(N)                                                \
  if constexpr (KIND == BF16)                                            \
    EXPAND_LINES("m64n" #N "k16", ".f32.bf16.bf16", ", 0, 0", SUMS_##N); \
  else if constexpr (KIND == FP16)                                       \
    EXPAND_LINES("m64n" #N "k16", ".f32.f16.f16", ", 0, 0", SUMS_##N);   \
  else                                                                   \
    EXPAND_LINES("m64n" #N "k8", ".f32.tf32.tf32", "", SUMS_##N)
template <int KIND, int ADDS, int R>
DEV void multiply_lines(float (&d)[R], u64 a, u64 b) {
  if constexpr (R == 8) {
    MULTIPLY_WIDTH(16);
  } else if constexpr (R == 16) {
    MULTIPLY_WIDTH(32);
  } else if constexpr (R == 32) {
    MULTIPLY_WIDTH(64);
  } else
    static_assert(R < 0, "no such width");
}
#undef MULTIPLY_LINES
#undef EXPAND_LINES
#undef MULTIPLY_WIDTH
#undef SUMS_16
#undef SUMS_32
#undef SUMS_64
// Fence the accumulator registers after a wait, so that the compiler does not move their uses before it.
template <int R>
DEV void fence_sums(float (&d)[R]) {
#pragma unroll
  for (int i = 0; i < R; i++) asm volatile("" : "+f"(d[i])::"memory");
}
