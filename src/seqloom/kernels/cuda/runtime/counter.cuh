// Counters in global memory, to wait for other blocks that run at the same time. The tests replace this file
// by a CPU emulation.
#pragma once
#include "runtime/grid.cuh"

// Add 1 to a counter, with release semantics; call after a block barrier, to release the whole block's
// writes.
DEV void count_up(u32* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
// Read a counter, with acquire semantics: writes before the count_up calls it includes are then visible.
DEV u32 read_counter(const u32* counter) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(counter) : "memory");
  return v;
}
// Load values that other blocks wrote during this kernel, bypassing the L1 cache.
DEV void get_fresh(float (&v)[4], const float* from) {
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "l"(from)
               : "memory");
}
DEV void get_fresh(float& v, float& w, const float* from) {
  asm volatile("ld.global.cg.v2.f32 {%0,%1}, [%2];" : "=f"(v), "=f"(w) : "l"(from) : "memory");
}
