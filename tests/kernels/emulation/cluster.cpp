// The functions of runtime/cluster.cuh.
#include "runtime/cluster.cuh"

#include <map>

#include "device.cpp"

namespace gpu {
struct Phase {
  Barrier over;
  int arrivals = 1, bytes = 0;
};
struct Sent {
  u32 to, barrier;
  float v[4];
  int n;
};
inline std::map<u32, Phase> phases;
inline std::vector<Sent> sent;
inline Barrier together;

inline Phase* phase(u32 at) {
  const auto found = phases.find(at);
  if (found == phases.end()) {
    fail("a barrier that nobody made");
    return nullptr;
  }
  return &found->second;
}
inline void look(Phase& p) {
  if (p.arrivals == 0 && p.bytes == 0) {
    p.arrivals = 1;
    p.over.round++;
  }
}
inline void deliver(const Sent& s) {
  const int whose = s.to / room;
  bool alive = false;
  for (int i = 0; i < threads; i++) alive |= !fibers[whose * threads + i].done;
  if (!alive) fail("sent to a block that has ended");
  if (whose != (int)s.barrier / room) fail("the barrier is not where the bytes go");
  if (!fits(s.to, 4 * s.n, 4 * s.n)) return;
  memcpy(&memory[s.to], s.v, 4 * s.n);
  if (Phase* p = phase(s.barrier)) {
    p->bytes -= 4 * s.n;
    look(*p);
  }
}
inline bool deliver_some(Chance& chance) {
  if (sent.empty()) return false;
  for (int n = chance(4) ? 1 + chance(40) : (int)sent.size(); n && !sent.empty(); n--) {
    std::swap(sent[chance(sent.size())], sent.back());
    const Sent one = sent.back();
    sent.pop_back();
    deliver(one);
  }
  return true;
}
inline void end_cluster() {
  if (!sent.empty()) fail("sent to a block that has ended");
  for (auto& p : phases)
    if (p.second.bytes) fail("bytes that nobody expects, or that never came");
  phases.clear();
  together = Barrier();
}
inline const bool clusters = (arrive = deliver_some, leave = end_cluster, lateness = 64, true);
}  // namespace gpu

void wait_cluster() { gpu::wait(gpu::together, (int)gpu::fibers.size()); }
void make_barrier(u32 at) {
  if (gpu::fits(at, 8, 8)) gpu::phases[at] = gpu::Phase();
}
void show_barriers() {}
u32 map_to_block(u32 at, int block) {
  if (block < 0 || block >= (int)gpu::fibers.size() / gpu::threads) gpu::fail("no such block in the cluster");
  return at % gpu::room + block * gpu::room;
}
void send(u32 to, u32 barrier, float v) { gpu::sent.push_back({to, barrier, {v}, 1}); }
void send(u32 to, u32 barrier, const float (&v)[4]) {
  gpu::sent.push_back({to, barrier, {v[0], v[1], v[2], v[3]}, 4});
}
void expect(u32 barrier, u32 bytes) {
  gpu::Phase* p = gpu::phase(barrier);
  if (!p) return;
  if (!p->arrivals) gpu::fail("a phase was announced twice");
  p->arrivals--;
  p->bytes += bytes;
  gpu::look(*p);
}
void expect_if(bool is_true, u32 barrier, u32 bytes) {
  if (is_true) expect(barrier, bytes);
}
bool has_arrived(u32 barrier, u32 parity) {
  gpu::Phase* p = gpu::phase(barrier);
  return p && (p->over.round & 1) != (int)parity;
}
void await(u32 barrier, u32 parity) {
  gpu::Phase* p = gpu::phase(barrier);
  gpu::give_way();
  while (p && (p->over.round & 1) == (int)parity && !gpu::error) {
    gpu::Fiber& f = gpu::fibers[gpu::current];
    f.at = &p->over;
    f.round = p->over.round;
    gpu::give_way();
    f.at = nullptr;
  }
}
