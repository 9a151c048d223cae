// Blocks that talk through packets on the CPU, in place of the file of this name. Packets arrive late and in
// any order, whole; one that is written while another is on its way to the same place is an error.
#pragma once
#include "runtime/packet.cuh"
#define CLUSTER_KERNEL(name, Args, threads, size) static void name(const GroupArguments<Args>& a)
constexpr int MOST_POLLS = 20000;

void put_packet(Packet* to, u32 v0, u32 v1, u32 v2, u32 number);
void get_packet(u32 (&v)[4], const Packet* from);
void give_up();
Packet* keep_in_register(Packet* p);
