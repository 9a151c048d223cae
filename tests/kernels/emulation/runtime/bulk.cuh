// Copies in the background on the CPU, in place of the file of this name: they come late and in any order.
#pragma once
#include "runtime/counter.cuh"

void wait_cluster();
void make_barrier(u32 at, int arrivals);
void show_barriers();
void expect(u32 barrier, u32 bytes);
void arrive_at(u32 barrier, int block);
void await(u32 barrier, u32 parity);
void fetch_bulk_for(int blocks, u32 to, const void* from, u32 bytes, u32 barrier);
template <int BLOCKS>
void fetch_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
  fetch_bulk_for(BLOCKS, to, from, bytes, barrier);
}
void order_copies();
