// Instructions of blocks that run at the same time anywhere on a GPU and exchange packets through its memory.
// A packet is written and read as a whole: whoever reads the expected number has the words too, without flags
// or fences. The tests replace this file by a CPU emulation.
#pragma once
#include "runtime/packet.cuh"

#define CLUSTER_KERNEL(name, Args, threads, size)          \
  extern "C" __global__ void __launch_bounds__(threads, 1) \
      name(const __grid_constant__ GroupArguments<Args> a)
constexpr int MOST_POLLS = 1 << 22;  // reads of a packet before giving up: some seconds

DEV void put_packet(Packet* to, u32 v0, u32 v1, u32 v2, u32 number) {
  asm volatile(
      "{.reg .b64 l, h; .reg .b128 p; mov.b64 l, {%1,%2}; mov.b64 h, {%3,%4}; mov.b128 p, {l, h}; "
      "st.relaxed.gpu.global.b128 [%0], p;}" ::"l"(to),
      "r"(v0), "r"(v1), "r"(v2), "r"(number)
      : "memory");
}
DEV void get_packet(u32 (&v)[4], const Packet* from) {
  asm volatile(
      "{.reg .b64 l, h; .reg .b128 p; ld.relaxed.gpu.global.b128 p, [%4]; mov.b128 {l, h}, p; mov.b64 "
      "{%0,%1}, l; mov.b64 {%2,%3}, h;}"
      : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
      : "l"(from)
      : "memory");
}
// End the kernel with an error instead of waiting for ever.
DEV void give_up() { asm volatile("trap;"); }
// Keep a pointer in a register instead of computing it again.
DEV Packet* keep_in_register(Packet* p) {
  asm volatile("" : "+l"(p));
  return p;
}
