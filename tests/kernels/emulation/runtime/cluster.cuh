// Clusters of blocks on the CPU, in place of the file of this name. Their shared memories lie one after the
// other, so that an address says whose it is. What is sent arrives late and in any order; a barrier that was
// not made, bytes that nobody expects, and anything sent to a block that has ended are errors.
#pragma once
#include "runtime/device.cuh"
#define CLUSTER_KERNEL(name, Args, threads, size) static void name(const Args& a)

void wait_cluster();
void make_barrier(u32 at);
void show_barriers();
u32 map_to_block(u32 at, int block);
void send(u32 to, u32 barrier, float v);
void send(u32 to, u32 barrier, const float (&v)[4]);
void expect(u32 barrier, u32 bytes);
void expect_if(bool is_true, u32 barrier, u32 bytes);
bool has_arrived(u32 barrier, u32 parity);
void await(u32 barrier, u32 parity);
