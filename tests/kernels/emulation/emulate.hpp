// A GPU's block on the CPU, in place of device.cuh: every thread is a fiber, and the kernels' own text runs in it.
// Harsher than the real thing: warps take turns at random, what is fetched in the background arrives only when waited for,
// shared memory begins as NaN, and an address outside it or off its alignment is an error.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>
#define DEV inline
#define KERNEL(name, Args, threads) static void name(const Args &a)
typedef uint32_t u32;
typedef uint16_t u16;
typedef uint8_t u8;
typedef long long i64;
constexpr int BF16 = 0, FP16 = 1;

namespace gpu {
struct Barrier { int waiting = 0, round = 0; };
struct Copy { u32 to; const void *from; int n; };
struct Fiber {
  ucontext_t context;
  bool done = false;
  std::vector<char> stack = std::vector<char>(1 << 17);
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
};
inline std::vector<Fiber> fibers;
inline ucontext_t home;
inline int current, block, blocks;
inline std::vector<unsigned char> memory;
inline Barrier whole, warps[32], named[16];
inline u32 words[32][32][8];
inline float values[32][32];
inline std::string error;
inline std::function<void()> body;

inline void fail(const char *what) { if (error.empty()) error = what; }
inline void give_way() { swapcontext(&fibers[current].context, &home); }
inline void wait(Barrier &b, int count) {
  const int round = b.round;
  if (++b.waiting == count) { b.waiting = 0; b.round++; }
  else while (b.round == round && error.empty()) give_way();
}
inline int lane() { return current & 31; }
inline int warp() { return current >> 5; }
inline void meet() { wait(warps[warp()], 32); }
inline bool fits(u32 at, u32 n, u32 aligned) {
  if (at % aligned) { fail("shared memory: misaligned address"); return false; }
  if (at + n > memory.size()) { fail("shared memory: address out of range"); return false; }
  return true;
}
inline u16 part(u32 v, int i) { return i ? v >> 16 : v & 0xffff; }
template <int TYPE> float wide(u16 v) {
  float f;
  if (TYPE == BF16) { u32 u = (u32)v << 16; memcpy(&f, &u, 4); return f; }
  _Float16 h;
  memcpy(&h, &v, 2);
  return (float)h;
}
template <int TYPE> u16 thin(float f) {
  if (TYPE == BF16) {
    u32 u;
    memcpy(&u, &f, 4);
    return std::isnan(f) ? 0x7fc0 : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  }
  _Float16 h = (_Float16)f;
  u16 v;
  memcpy(&v, &h, 2);
  return v;
}
inline void load(u32 *r, int n, u32 at, bool turned) {
  words[warp()][lane()][0] = at;
  meet();
  const int row = lane() >> 2, pair = lane() & 3;
  for (int m = 0; m < n; m++)
    for (int j = 0; j < 2; j++) {
      const u32 from = words[warp()][8 * m + (turned ? 2 * pair + j : row)][0];
      u16 v = 0;
      if (fits(from, 16, 16)) memcpy(&v, &memory[from + 2 * (turned ? row : 2 * pair + j)], 2);
      r[m] = j ? r[m] | (u32)v << 16 : v;
    }
  meet();
}
inline void start(int i) {
  body();
  fibers[i].done = true;
  for (;;) give_way();
}
inline const char *run(int grid, int threads, int shared, int seed) {
  std::mt19937 chance(seed);
  error.clear();
  blocks = grid;
  for (block = 0; block < grid && error.empty(); block++) {
    memory.assign(shared, 0xff);
    whole = Barrier();
    for (auto &b : warps) b = Barrier();
    for (auto &b : named) b = Barrier();
    fibers = std::vector<Fiber>(threads);
    for (int i = 0; i < threads; i++) {
      Fiber &f = fibers[i];
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack.data();
      f.context.uc_stack.ss_size = f.stack.size();
      f.context.uc_link = &home;
      makecontext(&f.context, (void (*)())start, 1, i);
    }
    for (int left = threads; left && error.empty();) {
      const int w = chance() % (threads / 32), turns = 1 + (chance() % 2 ? chance() % 300 : chance() % 5);
      for (int turn = 0; turn < turns && error.empty(); turn++) {
        const int offset = chance() % 32;
        for (int i = 0; i < 32 && error.empty(); i++) {
          current = 32 * w + ((i + offset) & 31);
          if (!fibers[current].done) { swapcontext(&home, &fibers[current].context); left -= fibers[current].done; }
        }
      }
    }
  }
  return error.c_str();
}
}  // namespace gpu

inline int thread() { return gpu::current; }
inline int block() { return gpu::block; }
inline int blocks() { return gpu::blocks; }
inline u32 shared_memory() { return 0; }
inline void wait_block() { gpu::wait(gpu::whole, (int)gpu::fibers.size()); }
inline void wait_some(int name, int threads) { gpu::wait(gpu::named[name], threads); }
inline void wait_warp() { gpu::meet(); }
template <int TYPE> void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  auto &warp = gpu::words[gpu::warp()];
  const u32 mine[6] = {a0, a1, a2, a3, b0, b1};
  memcpy(warp[gpu::lane()], mine, sizeof mine);
  gpu::meet();
  const int row = gpu::lane() >> 2, pair = gpu::lane() & 3;
  for (int i = 0; i < 4; i++) {
    const int r = i < 2 ? row : row + 8, column = 2 * pair + (i & 1);
    double sum = c[i];
    for (int k = 0; k < 16; k++) {
      const u32 a = warp[4 * (r % 8) + k % 8 / 2][(r >= 8) + 2 * (k >= 8)], b = warp[4 * column + k % 8 / 2][4 + (k >= 8)];
      sum += (double)gpu::wide<TYPE>(gpu::part(a, k & 1)) * gpu::wide<TYPE>(gpu::part(b, k & 1));
    }
    c[i] = (float)sum;
  }
  gpu::meet();
}
inline void load4(u32 &a, u32 &b, u32 &c, u32 &d, u32 at) { u32 r[4]; gpu::load(r, 4, at, false); a = r[0]; b = r[1]; c = r[2]; d = r[3]; }
inline void load2(u32 &a, u32 &b, u32 at) { u32 r[2]; gpu::load(r, 2, at, false); a = r[0]; b = r[1]; }
inline void load4_turned(u32 &a, u32 &b, u32 &c, u32 &d, u32 at) { u32 r[4]; gpu::load(r, 4, at, true); a = r[0]; b = r[1]; c = r[2]; d = r[3]; }
inline void load2_turned(u32 &a, u32 &b, u32 at) { u32 r[2]; gpu::load(r, 2, at, true); a = r[0]; b = r[1]; }
inline u32 turn(u32 v) {
  gpu::words[gpu::warp()][gpu::lane()][0] = v;
  gpu::meet();
  const int row = gpu::lane() >> 2, pair = gpu::lane() & 3;
  u32 r = 0;
  for (int j = 0; j < 2; j++) r |= (u32)gpu::part(gpu::words[gpu::warp()][4 * (2 * pair + j) + row / 2][0], row & 1) << 16 * j;
  gpu::meet();
  return r;
}
inline void fetch16(u32 to, const void *from, int n) {
  if ((uintptr_t)from % 16) gpu::fail("fetch: misaligned source");
  if (gpu::fits(to, 16, 16)) gpu::fibers[gpu::current].open.push_back({to, from, n});
}
inline void fetch_commit() {
  auto &f = gpu::fibers[gpu::current];
  f.groups.push_back(f.open);
  f.open.clear();
}
template <int LEFT> void fetch_wait() {
  for (auto &groups = gpu::fibers[gpu::current].groups; (int)groups.size() > LEFT; groups.pop_front())
    for (auto &c : groups.front()) { memset(&gpu::memory[c.to], 0, 16); if (c.n) memcpy(&gpu::memory[c.to], c.from, c.n); }
}
template <class... V> void put_words(u32 at, V... v) {
  const float all[] = {v...};
  if (gpu::fits(at, sizeof all, sizeof all)) memcpy(&gpu::memory[at], all, sizeof all);
  gpu::give_way();
}
inline void put_shared(u32 at, u32 v) { if (gpu::fits(at, 4, 4)) memcpy(&gpu::memory[at], &v, 4); gpu::give_way(); }
inline void put_shared(u32 at, float v) { put_words(at, v); }
inline void put_shared(u32 at, float v, float w) { put_words(at, v, w); }
inline void get_words(float *v, int n, u32 at) {
  if (gpu::fits(at, 4 * n, 4 * n)) memcpy(v, &gpu::memory[at], 4 * n);
  gpu::give_way();
}
inline float get_shared(u32 at) { float v = 0; get_words(&v, 1, at); return v; }
inline void get_shared(float &v, float &w, u32 at) { float r[2] = {}; get_words(r, 2, at); v = r[0]; w = r[1]; }
inline void get_shared(float (&v)[4], u32 at) { get_words(v, 4, at); }
inline u32 get_global(const u16 *from) {
  if ((uintptr_t)from % 4) gpu::fail("global memory: misaligned load");
  u32 v;
  memcpy(&v, from, 4);
  return v;
}
inline void put_global(u16 *to, u32 v) { if ((uintptr_t)to % 4) gpu::fail("global memory: misaligned store"); else memcpy(to, &v, 4); }
inline void put_global(float *to, const float (&v)[4]) { if ((uintptr_t)to % 16) gpu::fail("global memory: misaligned store"); else memcpy(to, v, 16); }
inline float from_lane(float v, int lane) {
  gpu::values[gpu::warp()][gpu::lane()] = v;
  gpu::meet();
  const float r = gpu::values[gpu::warp()][lane];
  gpu::meet();
  return r;
}
inline float from_other(float v, int bits) { return from_lane(v, gpu::lane() ^ bits); }
inline float exp2_(float v) { return exp2f(v); }
inline float inverse(float v) { return 1.f / v; }
inline float inverse_root(float v) { return 1.f / sqrtf(v); }
inline float tanh_(float v) {  // as far off as tanh.approx, in a direction that depends on v
  u32 b;
  memcpy(&b, &v, 4);
  return tanhf(v) * (1.f + (b * 2654435761u >> 31 ? 3e-4f : -3e-4f));
}
inline float larger(float v, float w) { return fmaxf(v, w); }
inline float smaller(float v, float w) { return fminf(v, w); }
inline float size(float v) { return fabsf(v); }
template <int TYPE> u32 pack(float low, float high) { return gpu::thin<TYPE>(low) | (u32)gpu::thin<TYPE>(high) << 16; }
template <int TYPE> void unpack(float &low, float &high, u32 v) { low = gpu::wide<TYPE>(v & 0xffff); high = gpu::wide<TYPE>(v >> 16); }
template <int TYPE> u32 add_pairs(u32 v, u32 w) {
  float a, b, c, d;
  unpack<TYPE>(a, b, v);
  unpack<TYPE>(c, d, w);
  return pack<TYPE>(a + c, b + d);
}
