// Groups of blocks that exchange messages through global memory, in which every two consecutive blocks are a
// cluster (Hopper) and write to each other's shared memory. The tests replace this file with a CPU emulation.
#pragma once
#include "runtime/grid.cuh"

#undef CLUSTER_KERNEL
#define CLUSTER_KERNEL(name, Args, threads, size)                                       \
  extern "C" __global__ void __cluster_dims__(size, 1, 1) __launch_bounds__(threads, 1) \
      name(const __grid_constant__ GroupArguments<Args> a)

// Store two values to the shared memory of the other block of the pair, at the address that corresponds to
// `at`. They are visible there after wait_pair.
DEV void put_other(u32 at, float v, float w) {
  asm volatile(
      "{.reg .u32 r, c; mov.u32 r, %%cluster_ctarank; xor.b32 r, r, 1; mapa.shared::cluster.u32 c, %0, r; "
      "st.shared::cluster.v2.f32 [c], {%1,%2};}" ::"r"(at),
      "f"(v), "f"(w)
      : "memory");
}
// Wait for all threads of both blocks.
DEV void wait_pair() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
