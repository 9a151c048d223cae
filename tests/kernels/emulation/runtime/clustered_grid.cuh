// Groups of blocks that are clusters on the CPU, in place of the file of this name.
#pragma once
#include "runtime/cluster.cuh"
#undef CLUSTER_KERNEL
#include "runtime/grid.cuh"
