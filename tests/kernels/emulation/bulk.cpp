// The functions of runtime/bulk.cuh, and all that a grid has.
#include "runtime/bulk.cuh"

#include <map>

#include "grid.cpp"

namespace gpu {
struct Phase {
  int arrivals = 1, bytes = 0, round = 0;
};
struct Bulk {
  u32 to, bytes, barrier;
  const void* from;
};
inline std::map<u32, Phase> phases;
inline std::vector<Bulk> copies;
inline Phase* phase(u32 at) {
  const auto found = phases.find(at);
  if (found == phases.end()) fail("a barrier that nobody made");
  return found == phases.end() ? nullptr : &found->second;
}
inline void look(Phase& p) {
  if (p.arrivals || p.bytes) return;
  p.arrivals = 1;
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
inline bool deliver_copies(Chance& chance) {
  const bool has_copies = !copies.empty();
  if (has_copies && !chance(3)) copy_one(chance);
  return deliver_packets(chance) || has_copies;
}
inline void end_copies() {
  end_group();
  if (!copies.empty()) fail("copied to a block that has ended");
  for (auto& p : phases)
    if (p.second.bytes) fail("bytes that nobody expects, or that never came");
  phases.clear();
}
inline const bool bulk = (copies.clear(), phases.clear(), arrive = deliver_copies, leave = end_copies, true);
}  // namespace gpu

void make_barrier(u32 at) {
  if (gpu::fits(at, 8, 8)) gpu::phases[at] = gpu::Phase();
}
void show_barriers() {}
void expect(u32 barrier, u32 bytes) {
  if (gpu::Phase* p = gpu::phase(barrier)) {
    if (!p->arrivals) gpu::fail("a phase was announced twice");
    p->arrivals--;
    p->bytes += bytes;
    gpu::look(*p);
  }
}
void await(u32 barrier, u32 parity) {
  gpu::Phase* p = gpu::phase(barrier);
  do gpu::give_way();
  while (p && (p->round & 1) == (int)parity && !gpu::error);
  gpu::fibers[gpu::current].unseen = false;  // copies show themselves
}
void cp_async_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
  if ((uintptr_t)from % 16 || bytes % 16) gpu::fail("a copy: misaligned source");
  gpu::copies.push_back({to, bytes, barrier, from});
}
void order_copies() {}
