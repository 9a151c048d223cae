// Pairs of blocks on the CPU, in place of the file of this name: what one puts into the other's shared memory
// comes when both meet.
#pragma once
#include "runtime/grid.cuh"

void put_other(u32 at, float v, float w);
void wait_pair();
