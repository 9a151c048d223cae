// The instructions that the kernels use, as inline PTX, so that NVRTC needs no CUDA header.
// The tests replace this file with a CPU emulation and compile the kernels as C++.
//
// Layouts of mma.m16n8k16 (PTX ISA), lane = 4 * row + pair:
//   A  a0 (row, k 2pair..)   a1 (row + 8, k 2pair..)   a2 (row, k 2pair + 8..)   a3 (row + 8, k 2pair + 8..)
//   B  b0 (k 2pair.., column row)   b1 (k 2pair + 8.., column row)
//   C  c0 (row, column 2pair)   c1 (row, 2pair + 1)   c2 (row + 8, 2pair)   c3 (row + 8, 2pair + 1)
#pragma once
#define DEV __device__ __forceinline__
#ifndef BLOCKS_AT_ONCE
#define BLOCKS_AT_ONCE 1  // blocks per multiprocessor, for __launch_bounds__
#endif
#define KERNEL(name, Args, threads) \
  extern "C" __global__ void __launch_bounds__(threads, BLOCKS_AT_ONCE) name(const __grid_constant__ Args a)
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef long long i64;
constexpr int BF16 = 0, FP16 = 1, FP32 = 2;

DEV int thread() { return threadIdx.x; }
DEV int block() { return blockIdx.x; }
DEV int blocks() { return gridDim.x; }
DEV u32 shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return (u32)__cvta_generic_to_shared(memory);
}
// Return a C++ pointer to shared memory, for plain loads and stores.
template <class V>
DEV V* point_shared(int offset) {
  extern __shared__ __align__(128) unsigned char memory[];
  return (V*)(memory + offset);
}
DEV void wait_block() { asm volatile("bar.sync 0;" ::: "memory"); }
DEV void wait_threads(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
// Count these threads at a barrier without waiting.
DEV void arrive_threads(int name, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
DEV void wait_warp() { __syncwarp(); }

template <int TYPE>
DEV void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  if constexpr (TYPE == BF16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Compute c = A B instead of c += A B.
template <int TYPE>
DEV void mma_from_zero(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  static_assert(TYPE == FP16);
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.f));
}
// Compute c += A B in tf32 (19 of 32 bits) with mma.m16n8k8: a0, a1 and b0 have k = pair; a2, a3 and b1 have
// k = pair + 4.
DEV void mma_tf32(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Compute c = A B in tf32 instead of c += A B.
DEV void mma_tf32_from_zero(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.f));
}
DEV u32 to_tf32(float v) {
  u32 r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
  return r;
}
// Round finite numbers to tf32 in two instructions instead of four; the compiler never hoists or reuses
// to_tf32_volatile.
DEV u32 to_tf32_finite(float v) { return __float_as_uint(v) + 0x1000u & 0xffffe000u; }
DEV u32 to_tf32_volatile(float v) {
  u32 r;
  asm volatile("{.reg .u32 t; add.u32 t, %1, 0x1000; and.b32 %0, t, 0xffffe000;}"
               : "=r"(r)
               : "r"(__float_as_uint(v)));
  return r;
}
DEV u32 to_bits(float v) { return __float_as_uint(v); }
DEV float to_float(u32 v) { return __uint_as_float(v); }
// Return v through an asm barrier, so that the compiler keeps it instead of recomputing it.
DEV float hold(float v) {
  asm volatile("" : "+f"(v));
  return v;
}
DEV u32 hold(u32 v) {
  asm volatile("" : "+r"(v));
  return v;
}
// Load 8 x 8 matrices of 16-bit elements (ldmatrix); a lane passes the address of one row and gets elements
// (row, 2pair..), or transposed (2pair.., row).
DEV void load4(u32& r0, u32& r1, u32& r2, u32& r3, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "r"(at)
               : "memory");
}
DEV void load2(u32& r0, u32& r1, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r0), "=r"(r1)
               : "r"(at)
               : "memory");
}
DEV void load4_transposed(u32& r0, u32& r1, u32& r2, u32& r3, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "r"(at)
               : "memory");
}
DEV void load2_transposed(u32& r0, u32& r1, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r0), "=r"(r1)
               : "r"(at)
               : "memory");
}
DEV u32 transpose(u32 v) {
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}
// Copy n bytes from global to shared memory with cp.async, filling up to 16 bytes with zeros.
DEV void cp_async16(u32 to, const void* from, int n) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n) : "memory");
}
DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT>
DEV void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

DEV void put_shared(u32 at, u32 v) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(v) : "memory"); }
DEV void put_shared(u32 at, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory"); }
DEV void put_shared(u32 at, float v, float w) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(at), "f"(v), "f"(w) : "memory");
}
DEV float get_shared(u32 at) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
  return v;
}
DEV void get_shared(float& v, float& w, u32 at) {
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v), "=f"(w) : "r"(at) : "memory");
}
DEV void get_shared(float (&v)[4], u32 at) {
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(at)
               : "memory");
}
DEV void put_shared(u32 at, const u32 (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}
DEV void put_shared(u32 at, const float (&v)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
               : "memory");
}
DEV void get_shared(u32 (&v)[4], u32 at) {
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(at)
               : "memory");
}
// Prefetch into the L2 cache.
DEV void prefetch_global(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }
DEV void get_global(float& v, float& w, const float* from) {
  asm volatile("ld.global.nc.v2.f32 {%0,%1}, [%2];" : "=f"(v), "=f"(w) : "l"(from));
}
DEV void get_global(float (&v)[4], const float* from) {
  asm volatile("ld.global.nc.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "l"(from));
}
DEV void get_global(u32 (&v)[4], const u16* from) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "l"(from));
}
DEV u32 get_global(const u16* from) {
  u32 v;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}
// Load read-only data; the compiler may move such loads past stores.
template <class V>
DEV V get_constant(const V* from) {
  return __ldg(from);
}
DEV void get_constant(u32 (&v)[4], const void* from) {
  asm("ld.global.nc.v4.b32 {%0,%1,%2,%3}, [%4];"
      : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
      : "l"(from));
}
DEV void put_global(u16* to, u32 v) { asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(v) : "memory"); }
DEV void put_global(u16* to, const u32 (&v)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}
DEV void put_global(float* to, float v, float w) {
  asm volatile("st.global.v2.f32 [%0], {%1,%2};" ::"l"(to), "f"(v), "f"(w) : "memory");
}
DEV void put_global(float* to, const float (&v)[4]) {
  asm volatile("st.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
               : "memory");
}
DEV float shuffle(float v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
DEV float shuffle_xor(float v, int bits) { return __shfl_xor_sync(0xffffffffu, v, bits); }
DEV double shuffle_xor(double v, int bits) { return __shfl_xor_sync(0xffffffffu, v, bits); }
DEV bool any_lane(bool v) { return __any_sync(0xffffffffu, v); }

DEV float exp2_(float v) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
DEV float inverse(float v) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
DEV float inverse_root(float v) {
  float r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
DEV float tanh_(float v) {
  float r;
  asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
DEV float maximum(float v, float w) { return fmaxf(v, w); }
DEV float minimum(float v, float w) { return fminf(v, w); }
DEV float absolute(float v) { return fabsf(v); }
template <int TYPE>
DEV u32 pack(float low, float high) {
  u32 r;
  if constexpr (TYPE == BF16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <int TYPE>
DEV void unpack(float& low, float& high, u32 v) {
  if constexpr (TYPE == BF16) {
    low = __uint_as_float(v << 16);
    high = __uint_as_float(v & 0xffff0000u);
  } else
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(low), "=f"(high)
        : "r"(v));
}
template <int TYPE>
DEV u32 fma_pairs(u32 v, u32 w, u32 z) {  // v * w + z
  u32 r;
  if constexpr (TYPE == BF16)
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(v), "r"(w), "r"(z));
  else
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(v), "r"(w), "r"(z));
  return r;
}
template <int TYPE>
DEV u32 add_pairs(u32 v, u32 w) {
  u32 r;
  if constexpr (TYPE == BF16)
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(v), "r"(0x3f803f80u), "r"(w));  // v * 1 + w
  else
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(v), "r"(w));
  return r;
}
