// Groups of blocks that exchange packets through global memory and are also clusters: for small messages they
// use distributed shared memory, which has a lower latency. The tests replace this file with a CPU emulation.
#pragma once
#include "runtime/cluster.cuh"
#undef CLUSTER_KERNEL
#include "runtime/grid.cuh"
#undef CLUSTER_KERNEL

#define CLUSTER_KERNEL(name, Args, threads, size)                                       \
  extern "C" __global__ void __cluster_dims__(size, 1, 1) __launch_bounds__(threads, 1) \
      name(const __grid_constant__ GroupArguments<Args> a)
