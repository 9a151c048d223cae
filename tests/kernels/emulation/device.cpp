// The functions of runtime/device.cuh. A fiber is entered through its context once and then by longjmp, which
// asks nothing of the operating system.
#pragma once
#include "runtime/device.cuh"
#include "runtime/wgmma.cuh"

#include <setjmp.h>
#include <ucontext.h>

#include <memory>
#include <vector>

#include "half.hpp"

namespace gpu {
// bytes of a fiber's stack, warps and blocks of a cluster
constexpr int STACK = 1 << 16, MOST = 512, CLOSE = 64;
struct Barrier {
  int waiting = 0, round = 0;
};
struct Copy {
  u32 to;
  const void* from;
  int n;
};
struct Fiber {
  ucontext_t context;
  jmp_buf place;
  bool begun = false, done = false;
  const Barrier* at = nullptr;  // where it waits, since which round
  int round = 0;
  std::unique_ptr<char[]> stack{new char[STACK]};
  std::vector<Copy> open;
  std::vector<std::vector<Copy>> groups;
  bool unseen = false;  // it has fetched what products do not see yet
  bool can_run() const { return !done && (!at || at->round != round); }
};
inline std::vector<Fiber> fibers;
inline ucontext_t first_home;
inline jmp_buf home;
// block: the first of the cluster; threads and room (bytes): of each
inline int current, block, blocks, threads, room;
inline std::vector<unsigned char> memory;
inline Barrier whole[CLOSE], warps[MOST], named[CLOSE][16];
inline u32 words[MOST][32][8];
inline float values[MOST][32], operands[MOST][32][12];
inline const char* error;
void (*body)(const void*);
const void* arguments;

inline void fail(const char* what) {
  if (!error) error = what;
}
inline void give_way() {
  if (!_setjmp(fibers[current].place)) _longjmp(home, 1);
}
inline void wait(Barrier& b, int count) {
  if (++b.waiting == count) {
    b.waiting = 0;
    b.round++;
    return;
  }
  Fiber& f = fibers[current];
  f.at = &b;
  f.round = b.round;
  give_way();
  f.at = nullptr;
}
inline int lane() { return current & 31; }
inline int warp() { return current >> 5; }
inline int rank() { return current / threads; }
inline void meet() { wait(warps[warp()], 32); }
inline bool fits(u32 at, u32 n, u32 aligned) {
  if (at % aligned) {
    fail("shared memory: misaligned address");
    return false;
  }
  if (at + n > memory.size()) {
    fail("shared memory: address out of range");
    return false;
  }
  return true;
}
inline u16 part(u32 v, int i) { return i ? v >> 16 : v & 0xffff; }
template <int TYPE>
float wide(u16 v) {
  float f;
  if (TYPE == BF16) {
    u32 u = (u32)v << 16;
    memcpy(&f, &u, 4);
    return f;
  }
  return half_to_float(v);
}
template <int TYPE>
u16 thin(float f) {
  if (TYPE == BF16) {
    u32 u;
    memcpy(&u, &f, 4);
    return std::isnan(f) ? 0x7fc0 : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  }
  return float_to_half(f);
}
inline void load(u32* r, int n, u32 at, bool transposed) {
  words[warp()][lane()][0] = at;
  meet();
  const int row = lane() >> 2, pair = lane() & 3;
  for (int m = 0; m < n; m++)
    for (int j = 0; j < 2; j++) {
      const u32 from = words[warp()][8 * m + (transposed ? 2 * pair + j : row)][0];
      u16 v = 0;
      if (fits(from, 16, 16)) memcpy(&v, &memory[from + 2 * (transposed ? row : 2 * pair + j)], 2);
      r[m] = j ? r[m] | (u32)v << 16 : v;
    }
  meet();
}
inline void start(int i) {
  body(arguments);
  fibers[i].done = true;
  give_way();
}
inline void enter(int i) {
  current = i;
  Fiber& f = fibers[i];
  if (_setjmp(home)) return;
  if (f.begun) _longjmp(f.place, 1);
  f.begun = true;
  swapcontext(&first_home, &f.context);
}
struct Chance {  // xorshift
  u32 v;
  u32 operator()(u32 n) {
    v ^= v << 13;
    v ^= v >> 17;
    v ^= v << 5;
    return (v >> 4) % n;
  }
};
inline bool (*arrive)(Chance&);  // some of what is on its way between blocks; whether there was any
inline void (*leave)();          // when a cluster is done
inline int lateness = 1;         // turns of a cluster's other blocks for one of its last block
const char* run(int grid, int threads, int shared, int seed, int cluster) {
  Chance chance{0x9e3779b9u * (u32)seed | 1u};
  error = nullptr;
  blocks = grid;
  gpu::threads = threads;
  room = (shared + 2047) / 1024 * 1024;  // between two blocks lies what is nobody's; all begin alike
  const int all = cluster * threads;
  if (cluster > CLOSE || all > 32 * MOST) return "the emulation has no room for so many blocks";
  for (block = 0; block < grid && !error; block += cluster) {
    memory.assign(cluster * room, 0xff);
    for (auto& b : whole) b = Barrier();
    for (auto& b : warps) b = Barrier();
    for (auto& some : named)
      for (auto& b : some) b = Barrier();
    fibers = std::vector<Fiber>(all);
    for (int i = 0; i < all; i++) {
      Fiber& f = fibers[i];
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack.get();
      f.context.uc_stack.ss_size = STACK;
      makecontext(&f.context, (void (*)())start, 1, i);
    }
    for (int left = all; left && !error;) {
      const int w = chance(all / 32), turns = 1 + (chance(2) ? chance(300) : chance(5));
      bool ran = cluster == 1 || 32 * w / threads + 1 < cluster || !chance(lateness);
      for (int turn = 0; turn < turns && ran && !error; turn++) {
        const int offset = chance(32);
        ran = false;
        for (int i = 0; i < 32 && !error; i++) {
          const int one = 32 * w + ((i + offset) & 31);
          if (fibers[one].can_run()) {
            enter(one);
            left -= fibers[one].done;
            ran = true;
          }
        }
      }
      bool any = (arrive && arrive(chance)) || ran;
      for (int i = 0; i < all && !any; i++) any = fibers[i].can_run();
      if (left && !any) fail("every thread waits for another");
    }
    if (leave && !error) leave();
    for (int i = 0; i < cluster; i++)
      for (int k = shared; k < room && !error; k++)
        if (memory[i * room + k] != 0xff) fail("shared memory: written past its end");
  }
  return error;
}
}  // namespace gpu

int thread() { return gpu::current % gpu::threads; }
int block() { return gpu::block + gpu::rank(); }
int blocks() { return gpu::blocks; }
u32 shared_memory() { return gpu::rank() * gpu::room; }
unsigned char* shared_bytes() { return &gpu::memory[gpu::rank() * gpu::room]; }
void wait_block() { gpu::wait(gpu::whole[gpu::rank()], gpu::threads); }
void wait_threads(int name, int threads) { gpu::wait(gpu::named[gpu::rank()][name], threads); }
void arrive_threads(int name, int threads) {
  gpu::Barrier& b = gpu::named[gpu::rank()][name];
  if (++b.waiting == threads) {
    b.waiting = 0;
    b.round++;
  }
}
void wait_warp() { gpu::meet(); }
template <int TYPE>
void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  auto& warp = gpu::operands[gpu::warp()];
  const u32 mine[6] = {a0, a1, a2, a3, b0, b1};
  for (int i = 0; i < 12; i++) warp[gpu::lane()][i] = gpu::wide<TYPE>(gpu::part(mine[i / 2], i & 1));
  gpu::meet();
  const int row = gpu::lane() >> 2, pair = gpu::lane() & 3;
  for (int i = 0; i < 4; i++) {
    const int r = i < 2 ? row : row + 8, column = 2 * pair + (i & 1);
    double sum = c[i];
    for (int k = 0; k < 16; k++)
      sum += (double)warp[4 * (r % 8) + k % 8 / 2][2 * ((r >= 8) + 2 * (k >= 8)) + (k & 1)] *
             warp[4 * column + k % 8 / 2][2 * (4 + (k >= 8)) + (k & 1)];
    c[i] = (float)sum;
  }
  gpu::meet();
}
u32 to_bits(float v) {
  u32 r;
  memcpy(&r, &v, 4);
  return r;
}
float to_float(u32 v) {
  float r;
  memcpy(&r, &v, 4);
  return r;
}
u32 to_tf32(float v) { return std::isfinite(v) ? (to_bits(v) + 0x1000) & ~0x1fffu : to_bits(v); }
u32 to_tf32_finite(float v) { return (to_bits(v) + 0x1000) & ~0x1fffu; }
u32 to_tf32_volatile(float v) { return to_tf32_finite(v); }
// cuts off bits of operands and of sums
void mma_tf32(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  auto& warp = gpu::operands[gpu::warp()];
  const u32 mine[6] = {a0, a1, a2, a3, b0, b1};
  for (int i = 0; i < 6; i++) warp[gpu::lane()][i] = to_float(mine[i] & ~0x1fffu);
  gpu::meet();
  const int row = gpu::lane() >> 2, pair = gpu::lane() & 3;
  for (int i = 0; i < 4; i++) {
    double sum = c[i];
    for (int k = 0; k < 8; k++)
      sum += (double)warp[4 * row + k % 4][(i >= 2) + 2 * (k >= 4)] *
             warp[4 * (2 * pair + (i & 1)) + k % 4][4 + (k >= 4)];
    c[i] = (float)sum;
    if (std::fabs((double)c[i]) > std::fabs(sum)) c[i] = std::nextafterf(c[i], 0.f);
  }
  gpu::meet();
}
void mma_tf32_from_zero(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  c[0] = c[1] = c[2] = c[3] = 0.f;
  mma_tf32(c, a0, a1, a2, a3, b0, b1);
}
void load4(u32& a, u32& b, u32& c, u32& d, u32 at) {
  u32 r[4];
  gpu::load(r, 4, at, false);
  a = r[0];
  b = r[1];
  c = r[2];
  d = r[3];
}
void load2(u32& a, u32& b, u32 at) {
  u32 r[2];
  gpu::load(r, 2, at, false);
  a = r[0];
  b = r[1];
}
void load4_transposed(u32& a, u32& b, u32& c, u32& d, u32 at) {
  u32 r[4];
  gpu::load(r, 4, at, true);
  a = r[0];
  b = r[1];
  c = r[2];
  d = r[3];
}
void load2_transposed(u32& a, u32& b, u32 at) {
  u32 r[2];
  gpu::load(r, 2, at, true);
  a = r[0];
  b = r[1];
}
u32 transpose(u32 v) {
  gpu::words[gpu::warp()][gpu::lane()][0] = v;
  gpu::meet();
  const int row = gpu::lane() >> 2, pair = gpu::lane() & 3;
  u32 r = 0;
  for (int j = 0; j < 2; j++)
    r |= (u32)gpu::part(gpu::words[gpu::warp()][4 * (2 * pair + j) + row / 2][0], row & 1) << 16 * j;
  gpu::meet();
  return r;
}
void cp_async16(u32 to, const void* from, int n) {
  if ((uintptr_t)from % 16) gpu::fail("fetch: misaligned source");
  if (gpu::fits(to, 16, 16)) gpu::fibers[gpu::current].open.push_back({to, from, n});
}
void cp_async_commit() {
  auto& f = gpu::fibers[gpu::current];
  f.groups.push_back(f.open);
  f.open.clear();
}
void cp_async_wait_for(int left) {
  gpu::fibers[gpu::current].unseen = true;
  for (auto& groups = gpu::fibers[gpu::current].groups; (int)groups.size() > left;
       groups.erase(groups.begin()))
    for (auto& c : groups.front()) {
      memset(&gpu::memory[c.to], 0, 16);
      if (c.n) memcpy(&gpu::memory[c.to], c.from, c.n);
    }
}
// Products in the background: computed when they are waited for, from what shared memory then has.
namespace gpu {
struct Task {
  float* d;
  int count, kind;
  u64 a, b;
  bool by_column, adds;
};
inline std::vector<Task> open_tasks[32 * MOST];
inline std::vector<std::vector<Task>> task_groups[32 * MOST];
inline float get_number(u64 matrix, int row, int k, int kind, bool by_column) {
  const u32 start = (u32)(matrix & 0x3fff) << 4 | (u32)(matrix >> 46 & 0x3fff) << 18,
            leading = (u32)(matrix >> 16 & 0x3fff) << 4, stride = (u32)(matrix >> 32 & 0x3fff) << 4,
            swizzle = matrix >> 62;
  u32 at = by_column ? start + row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2
                     : start + row / 8 * stride + row % 8 * (swizzle == SWIZZLE_128 ? 128 : 64) +
                           (kind == FP32 ? 4 : 2) * k;
  at ^= swizzle == SWIZZLE_128 ? (at >> 7 & 7) << 4 : (at >> 7 & 3) << 4;
  if (by_column && swizzle != SWIZZLE_128) fail("a matrix of wgmma in a layout that is not emulated");
  if (kind == FP32) {
    u32 v = 0;
    if (fits(at, 4, 4)) memcpy(&v, &memory[at], 4);
    return to_float(v & ~0x1fffu);
  }
  u16 v = 0;
  if (fits(at, 2, 2)) memcpy(&v, &memory[at], 2);
  return kind == BF16 ? wide<BF16>(v) : wide<FP16>(v);
}
inline void multiply(const Task& t) {
  const int deep = t.kind == FP32 ? 8 : 16, row = 16 * (warp() % 4) + lane() / 4, pair = lane() % 4 * 2;
  float a[2][16], b[64][16];  // this lane's rows and columns
  for (int k = 0; k < deep; k++) {
    for (int i = 0; i < 2; i++) a[i][k] = get_number(t.a, row + 8 * i, k, t.kind, t.by_column);
    for (int j = 0; j < t.count / 2; j++)
      b[j][k] = get_number(t.b, j / 2 * 8 + pair + (j & 1), k, t.kind, t.by_column);
  }
  for (int j = 0; j < t.count; j++) {
    double sum = t.adds ? t.d[j] : 0;
    for (int k = 0; k < deep; k++) sum += (double)a[j >> 1 & 1][k] * b[j / 4 * 2 + (j & 1)][k];
    t.d[j] = (float)sum;
    if (std::fabs((double)t.d[j]) > std::fabs(sum)) t.d[j] = std::nextafterf(t.d[j], 0.f);
  }
}
}  // namespace gpu
void fence_proxy_async() { gpu::fibers[gpu::current].unseen = false; }
void add_task(float* d, int count, u64 a, u64 b, int kind, bool by_column, bool adds) {
  if (gpu::fibers[gpu::current].unseen) gpu::fail("wgmma: what was fetched was not shown");
  gpu::open_tasks[gpu::current].push_back({d, count, kind, a, b, by_column, adds});
}
void commit_products() {
  auto& open = gpu::open_tasks[gpu::current];
  gpu::task_groups[gpu::current].push_back(open);
  open.clear();
}
void await_products_but(int left) {
  for (auto& groups = gpu::task_groups[gpu::current]; (int)groups.size() > left; groups.erase(groups.begin()))
    for (auto& task : groups.front()) gpu::multiply(task);
  gpu::give_way();
}
template <class... V>
void put_words(u32 at, V... v) {
  const float all[] = {v...};
  if (gpu::fits(at, sizeof all, sizeof all)) memcpy(&gpu::memory[at], all, sizeof all);
  gpu::give_way();
}
void put_shared(u32 at, u32 v) {
  if (gpu::fits(at, 4, 4)) memcpy(&gpu::memory[at], &v, 4);
  gpu::give_way();
}
void put_shared(u32 at, float v) { put_words(at, v); }
void put_shared(u32 at, float v, float w) { put_words(at, v, w); }
void get_words(float* v, int n, u32 at) {
  if (gpu::fits(at, 4 * n, 4 * n)) memcpy(v, &gpu::memory[at], 4 * n);
  gpu::give_way();
}
float hold(float v) { return v; }
u32 hold(u32 v) { return v; }
float get_shared(u32 at) {
  float v = 0;
  get_words(&v, 1, at);
  return v;
}
void get_shared(float& v, float& w, u32 at) {
  float r[2] = {};
  get_words(r, 2, at);
  v = r[0];
  w = r[1];
}
void get_shared(float (&v)[4], u32 at) { get_words(v, 4, at); }
void put_shared(u32 at, const u32 (&v)[4]) {
  if (gpu::fits(at, 16, 16)) memcpy(&gpu::memory[at], v, 16);
  gpu::give_way();
}
void put_shared(u32 at, const float (&v)[4]) { put_words(at, v[0], v[1], v[2], v[3]); }
void get_shared(u32 (&v)[4], u32 at) {
  if (gpu::fits(at, 16, 16)) memcpy(v, &gpu::memory[at], 16);
  gpu::give_way();
}
void prefetch_global(const void* from) { (void)*(const volatile char*)from; }
void get_global(float& v, float& w, const float* from) {
  if ((uintptr_t)from % 8) gpu::fail("global memory: misaligned load");
  v = from[0];
  w = from[1];
}
void get_global(float (&v)[4], const float* from) {
  if ((uintptr_t)from % 16) gpu::fail("global memory: misaligned load");
  memcpy(v, from, 16);
}
void get_global(u32 (&v)[4], const u16* from) {
  if ((uintptr_t)from % 16) gpu::fail("global memory: misaligned load");
  memcpy(v, from, 16);
}
void get_constant(u32 (&v)[4], const void* from) { get_global(v, (const u16*)from); }
u32 get_global(const u16* from) {
  if ((uintptr_t)from % 4) gpu::fail("global memory: misaligned load");
  u32 v;
  memcpy(&v, from, 4);
  return v;
}
void put_global(u16* to, u32 v) {
  if ((uintptr_t)to % 4)
    gpu::fail("global memory: misaligned store");
  else
    memcpy(to, &v, 4);
}
void put_global(u16* to, const u32 (&v)[4]) {
  if ((uintptr_t)to % 16)
    gpu::fail("global memory: misaligned store");
  else
    memcpy(to, v, 16);
}
void put_global(float* to, float v, float w) {
  if ((uintptr_t)to % 8)
    gpu::fail("global memory: misaligned store");
  else {
    to[0] = v;
    to[1] = w;
  }
}
void put_global(float* to, const float (&v)[4]) {
  if ((uintptr_t)to % 16)
    gpu::fail("global memory: misaligned store");
  else
    memcpy(to, v, 16);
}
float shuffle(float v, int lane) {
  gpu::values[gpu::warp()][gpu::lane()] = v;
  gpu::meet();
  const float r = gpu::values[gpu::warp()][lane];
  gpu::meet();
  return r;
}
float shuffle_xor(float v, int bits) { return shuffle(v, gpu::lane() ^ bits); }
double shuffle_xor(double v, int bits) {
  memcpy(gpu::words[gpu::warp()][gpu::lane()], &v, 8);
  gpu::meet();
  double r;
  memcpy(&r, gpu::words[gpu::warp()][gpu::lane() ^ bits], 8);
  gpu::meet();
  return r;
}
bool any_lane(bool v) {
  gpu::words[gpu::warp()][gpu::lane()][0] = v;
  gpu::meet();
  bool any = false;
  for (auto& of_lane : gpu::words[gpu::warp()]) any |= of_lane[0] != 0;
  gpu::meet();
  return any;
}
float exp2_(float v) { return exp2f(v); }
float inverse(float v) { return 1.f / v; }
float inverse_root(float v) { return 1.f / sqrtf(v); }
float tanh_(float v) {  // as far off as tanh.approx, in a direction that depends on v
  u32 b;
  memcpy(&b, &v, 4);
  return tanhf(v) * (1.f + (b * 2654435761u >> 31 ? 3e-4f : -3e-4f));
}
float maximum(float v, float w) { return fmaxf(v, w); }
float minimum(float v, float w) { return fminf(v, w); }
float absolute(float v) { return fabsf(v); }
template <int TYPE>
u32 pack(float low, float high) {
  return gpu::thin<TYPE>(low) | (u32)gpu::thin<TYPE>(high) << 16;
}
template <int TYPE>
void unpack(float& low, float& high, u32 v) {
  low = gpu::wide<TYPE>(v & 0xffff);
  high = gpu::wide<TYPE>(v >> 16);
}
template <int TYPE>
u32 fma_pairs(u32 v, u32 w, u32 z) {
  float a, b, c, d, e, f;
  unpack<TYPE>(a, b, v);
  unpack<TYPE>(c, d, w);
  unpack<TYPE>(e, f, z);
  return pack<TYPE>(fmaf(a, c, e), fmaf(b, d, f));
}
template <int TYPE>
u32 add_pairs(u32 v, u32 w) {
  float a, b, c, d;
  unpack<TYPE>(a, b, v);
  unpack<TYPE>(c, d, w);
  return pack<TYPE>(a + c, b + d);
}
#define EACH_TYPE(TYPE)                                                \
  template void mma<TYPE>(float (&)[4], u32, u32, u32, u32, u32, u32); \
  template u32 pack<TYPE>(float, float);                               \
  template void unpack<TYPE>(float&, float&, u32);                     \
  template u32 fma_pairs<TYPE>(u32, u32, u32);                         \
  template u32 add_pairs<TYPE>(u32, u32);
EACH_TYPE(BF16)
EACH_TYPE(FP16)
EACH_TYPE(FP32)
