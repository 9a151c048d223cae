// Waiting for other blocks that run at the same time: counters in the GPU's memory. The tests replace this
// file by a CPU emulation.
#pragma once
#include "runtime/grid.cuh"

// Add 1 to a counter, after all that this block has written so far; its threads have met before.
DEV void count_up(u32* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
// Return a counter; what was written before others counted is then visible.
DEV u32 read_counter(const u32* counter) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(counter) : "memory");
  return v;
}
// Load what other blocks wrote while this kernel runs.
DEV void get_fresh(float (&v)[4], const float* from) {
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "l"(from)
               : "memory");
}
DEV void get_fresh(float& v, float& w, const float* from) {
  asm volatile("ld.global.cg.v2.f32 {%0,%1}, [%2];" : "=f"(v), "=f"(w) : "l"(from) : "memory");
}
