// Messages between blocks: packets of 16 bytes, three words and the number of the message.
#pragma once
#include "runtime/device.cuh"

struct alignas(16) Packet {
  u32 word[4];
};
// A kernel's arguments, then packets with the number 0, the first row of the batch, and the rows of each
// group.
template <class Args>
struct GroupArguments : Args {
  Packet* packets;
  int begin, group_rows;
};
