// Counters in the GPU's memory on the CPU, in place of the file of this name.
#pragma once
#include "runtime/grid.cuh"

void count_up(u32* counter);
u32 read_counter(const u32* counter);
void get_fresh(float (&v)[4], const float* from);
void get_fresh(float& v, float& w, const float* from);
