// Copies of many bytes on the CPU, in place of the file of this name: they come late and in any order.
#pragma once
#include "runtime/grid.cuh"

void make_barrier(u32 at);
void show_barriers();
void expect(u32 barrier, u32 bytes);
void await(u32 barrier, u32 parity);
void cp_async_bulk(u32 to, const void* from, u32 bytes, u32 barrier);
void order_copies();
