// Instructions of blocks that run at the same time anywhere on the GPU and exchange packets through global
// memory. A packet is written and read in one 128-bit access: a reader that sees the expected sequence number
// also has the words, without flags or fences. The tests replace this file with a CPU emulation.
#pragma once
#include "runtime/packet.cuh"

#define CLUSTER_KERNEL(name, Args, threads, size)          \
  extern "C" __global__ void __launch_bounds__(threads, 1) \
      name(const __grid_constant__ GroupArguments<Args> a)
constexpr int MOST_POLLS = 1 << 22;  // reads of a packet before giving up: a few seconds

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
// End the kernel with an error instead of waiting forever.
DEV void give_up() { asm volatile("trap;"); }
// Return p through an asm barrier, so that the compiler keeps it in a register instead of recomputing it.
DEV Packet* keep_in_register(Packet* p) {
  asm volatile("" : "+l"(p));
  return p;
}
