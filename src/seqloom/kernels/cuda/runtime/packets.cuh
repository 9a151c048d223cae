// Polling for packets.
#pragma once
#include "runtime/grid.cuh"

// From this many rows per group of blocks, polling by all lanes would slow down the senders.
constexpr int CROWDED_ROWS = 9;
// Wait until the packets with these sequence numbers (0: none expected) have arrived for all lanes of a warp.
// Read all packets first, then only the missing ones. With MANY and at least CROWDED_ROWS rows, only the
// lanes of row 0 poll, for their first packet, until a first packet has arrived.
template <bool MANY, int N>
DEV void collect(u32 (&p)[N][4], const Packet* const (&from)[N], const u32 (&numbers)[N], int rows, int row) {
  bool all = true, missing = true;
#pragma unroll 1
  for (int i = 0; any_lane(missing); i++) {
    if (i == MOST_POLLS) give_up();
#pragma unroll
    for (int k = 0; k < N; k++)
      if (p[k][3] != numbers[k] && (all || (k == 0 && row == 0))) get_packet(p[k], from[k]);
    missing = false;
#pragma unroll
    for (int k = 0; k < N; k++) missing |= p[k][3] != numbers[k];
    all = !MANY || rows < CROWDED_ROWS || any_lane(numbers[0] && p[0][3] == numbers[0]);
  }
}
