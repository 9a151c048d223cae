// The functions of runtime/bulk.cuh, and all that runtime/grid.cuh has.
#include <map>

#include "grid.cpp"
#include "runtime/bulk.cuh"

namespace gpu {
struct Phase {
  int all, arrivals, bytes = 0, round = 0;
};
struct Bulk {
  u32 to, bytes, barrier;
  const void* from;
};
inline std::map<u32, Phase> phases;
inline std::vector<Bulk> copies;
inline Barrier together;
inline Phase* phase(u32 at) {
  const auto found = phases.find(at);
  if (found == phases.end()) fail("a barrier that nobody made");
  return found == phases.end() ? nullptr : &found->second;
}
inline void look(Phase& p) {
  if (p.arrivals || p.bytes) return;
  p.arrivals = p.all;
  p.round++;
}
inline void copy_one(Chance& chance) {
  std::swap(copies[chance(copies.size())], copies.back());
  const Bulk one = copies.back();
  copies.pop_back();
  if (!fits(one.to, one.bytes, 16)) return;
  memcpy(&memory[one.to], one.from, one.bytes);
  if (Phase* p = phase(one.barrier)) {
    p->bytes -= one.bytes;
    look(*p);
  }
}
inline bool deliver_some(Chance& chance) {
  const bool has_copies = !copies.empty();
  if (has_copies && !chance(20)) copy_one(chance);
  return deliver_packets(chance) || has_copies;
}
inline void end_pairs() {
  end_group();
  if (!copies.empty()) fail("copied to a block that has ended");
  for (auto& p : phases)
    if (p.second.bytes) fail("bytes that nobody expects, or that never came");
  phases.clear();
  together = Barrier();
}
inline const bool pairs = (copies.clear(), arrive = deliver_some, leave = end_pairs, true);
}  // namespace gpu

void wait_cluster() { gpu::wait(gpu::together, (int)gpu::fibers.size()); }
void make_barrier(u32 at, int arrivals) {
  if (gpu::fits(at, 8, 8)) gpu::phases[at] = {arrivals, arrivals};
}
void show_barriers() {}
void expect(u32 barrier, u32 bytes) {
  if (gpu::Phase* p = gpu::phase(barrier)) {
    if (!p->arrivals) gpu::fail("arrived at a barrier too often");
    p->arrivals--;
    p->bytes += bytes;
    gpu::look(*p);
  }
}
void arrive_at(u32 barrier, int block) {
  const int pair = gpu::rank() & ~1;
  expect(barrier % gpu::room + (pair + block) * gpu::room, 0);
  gpu::give_way();
}
void await(u32 barrier, u32 parity) {
  gpu::Phase* p = gpu::phase(barrier);
  do gpu::give_way();
  while (p && (p->round & 1) == (int)parity && !gpu::error);
}
void fetch_bulk_for(int blocks, u32 to, const void* from, u32 bytes, u32 barrier) {
  if ((uintptr_t)from % 16 || bytes % 16) gpu::fail("a copy: misaligned source");
  const int first = blocks == 1 ? gpu::rank() : gpu::rank() & ~1;
  for (int i = first; i < first + blocks; i++)
    gpu::copies.push_back({to % gpu::room + i * gpu::room, bytes, barrier % gpu::room + i * gpu::room, from});
}
void order_copies() {}
