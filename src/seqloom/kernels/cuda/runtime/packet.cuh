// Messages between blocks: packets of 16 bytes, three words and a number that says which message it is.
#pragma once
#include "runtime/device.cuh"

struct alignas(16) Packet {
  u32 word[4];
};
// What a kernel gets beside its own arguments: packets with the number 0, the first row of the batch, rows of
// each group.
template <class Args>
struct Exchanged : Args {
  Packet* packets;
  int begin, each;
};
