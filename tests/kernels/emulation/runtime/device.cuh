// A GPU's block, or a cluster of blocks, on the CPU, in place of the file of this name: every thread is a
// fiber, and the kernels' own text runs in it. Harsher than the real thing: warps take turns at random, what
// is fetched in the background arrives only when waited for, shared memory begins as NaN, and an address
// outside it or off its alignment is an error. This is what kernels see; device.cpp, which does it, is
// compiled once for all of them.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define DEV inline
#ifndef BLOCKS_AT_ONCE
#define BLOCKS_AT_ONCE 1  // as in the file of this name: no text may have another meaning of it
#endif
#define KERNEL(name, Args, threads) static void name(const Args& a)
typedef uint32_t u32;
typedef uint16_t u16;
typedef uint8_t u8;
typedef long long i64;
constexpr int BF16 = 0, FP16 = 1, FP32 = 2;

namespace gpu {
extern void (*body)(const void*);
extern const void* arguments;
const char* run(int grid, int threads, int shared, int seed, int cluster);
}  // namespace gpu

int thread();
int block();
int blocks();
u32 shared_memory();
unsigned char* shared_bytes();
template <class V>
V* point_shared(int offset) {
  return (V*)(shared_bytes() + offset);
}
void wait_block();
void wait_threads(int name, int threads);
void arrive_threads(int name, int threads);
void wait_warp();
template <int TYPE>
void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1);
template <int TYPE>
void mma_from_zero(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  c[0] = c[1] = c[2] = c[3] = 0.f;
  mma<TYPE>(c, a0, a1, a2, a3, b0, b1);
}
u32 to_bits(float v);
float to_float(u32 v);
u32 to_tf32(float v);
u32 to_tf32_finite(float v);
u32 to_tf32_volatile(float v);
void mma_tf32(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1);
void mma_tf32_from_zero(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1);
float hold(float v);
u32 hold(u32 v);
void load4(u32& a, u32& b, u32& c, u32& d, u32 at);
void load2(u32& a, u32& b, u32 at);
void load4_transposed(u32& a, u32& b, u32& c, u32& d, u32 at);
void load2_transposed(u32& a, u32& b, u32 at);
u32 transpose(u32 v);
void cp_async16(u32 to, const void* from, int n);
void cp_async_commit();
void cp_async_wait_for(int left);
template <int LEFT>
void cp_async_wait() {
  cp_async_wait_for(LEFT);
}
void put_shared(u32 at, u32 v);
void put_shared(u32 at, float v);
void put_shared(u32 at, float v, float w);
void put_shared(u32 at, const u32 (&v)[4]);
void put_shared(u32 at, const float (&v)[4]);
float get_shared(u32 at);
void get_shared(float& v, float& w, u32 at);
void get_shared(float (&v)[4], u32 at);
void get_shared(u32 (&v)[4], u32 at);
void prefetch_global(const void* from);
void get_global(float& v, float& w, const float* from);
void get_global(float (&v)[4], const float* from);
void get_global(u32 (&v)[4], const u16* from);
u32 get_global(const u16* from);
template <class V>
V get_constant(const V* from) {
  return *from;
}
void get_constant(u32 (&v)[4], const void* from);
void put_global(u16* to, u32 v);
void put_global(u16* to, const u32 (&v)[4]);
void put_global(float* to, float v, float w);
void put_global(float* to, const float (&v)[4]);
float shuffle(float v, int lane);
float shuffle_xor(float v, int bits);
double shuffle_xor(double v, int bits);
bool any_lane(bool v);
float exp2_(float v);
float inverse(float v);
float inverse_root(float v);
float tanh_(float v);
float maximum(float v, float w);
float minimum(float v, float w);
float absolute(float v);
template <int TYPE>
u32 pack(float low, float high);
template <int TYPE>
void unpack(float& low, float& high, u32 v);
template <int TYPE>
u32 fma_pairs(u32 v, u32 w, u32 z);
template <int TYPE>
u32 add_pairs(u32 v, u32 w);
