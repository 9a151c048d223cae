// The functions of runtime/grid.cuh, runtime/counter.cuh and runtime/pair.cuh.
#include "runtime/grid.cuh"
#include "runtime/counter.cuh"
#include "runtime/pair.cuh"

#include "device.cpp"

namespace gpu {
struct Posted {
  Packet *to, packet;
};
inline std::vector<Posted> posted;
inline void deliver_last() {
  *posted.back().to = posted.back().packet;
  posted.pop_back();
}
inline bool deliver_packets(Chance& chance) {
  if (posted.empty()) return false;
  for (int n = chance(4) ? 1 + chance(40) : (int)posted.size(); n && !posted.empty(); n--) {
    std::swap(posted[chance(posted.size())], posted.back());
    deliver_last();
  }
  return true;
}
inline void end_group() {
  while (!posted.empty()) deliver_last();
}
inline const bool groups = (posted.clear(), arrive = deliver_packets, leave = end_group, true);
}  // namespace gpu

void put_packet(Packet* to, u32 v0, u32 v1, u32 v2, u32 number) {
  if ((uintptr_t)to % 16) gpu::fail("a packet: misaligned address");
  for (auto& p : gpu::posted)
    if (p.to == to) gpu::fail("a packet is written over one that nobody has read");
  gpu::posted.push_back({to, {{v0, v1, v2, number}}});
}
void get_packet(u32 (&v)[4], const Packet* from) {
  memcpy(v, from->word, 16);
  gpu::give_way();
}
void give_up() {
  gpu::fail("a packet never came");
  gpu::give_way();
}
Packet* keep_in_register(Packet* p) { return p; }
void count_up(u32* counter) {
  ++*counter;
  gpu::give_way();
}
u32 read_counter(const u32* counter) {
  gpu::give_way();
  return *counter;
}
namespace gpu {
struct Put {
  u32 to;
  float v, w;
};
inline std::vector<Put> puts[32 * MOST];  // of each thread
inline Barrier couples[CLOSE];
}  // namespace gpu
void put_other(u32 at, float v, float w) {
  const int other = gpu::rank() ^ 1;
  if (gpu::fits(at, 8, 8))
    gpu::puts[gpu::current].push_back({at % gpu::room + (u32)(other * gpu::room), v, w});
}
void wait_pair() {
  for (auto& p : gpu::puts[gpu::current]) {
    memcpy(&gpu::memory[p.to], &p.v, 4);
    memcpy(&gpu::memory[p.to + 4], &p.w, 4);
  }
  gpu::puts[gpu::current].clear();
  gpu::wait(gpu::couples[gpu::rank() / 2], 2 * gpu::threads);
}
void get_fresh(float (&v)[4], const float* from) { get_global(v, from); }
void get_fresh(float& v, float& w, const float* from) { get_global(v, w, from); }
