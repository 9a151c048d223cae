// Messages between blocks: packets of 16 bytes, three words and a sequence number.
#pragma once
#include "runtime/device.cuh"

struct alignas(16) Packet {
  u32 word[4];
};
// A kernel's arguments, followed by the packets (sequence numbers initialised to 0), the first row of the
// batch, and the rows per group of blocks.
template <class Args>
struct GroupArguments : Args {
  Packet* packets;
  int begin, group_rows;
};
