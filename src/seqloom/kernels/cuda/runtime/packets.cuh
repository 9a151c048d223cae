// Waiting for packets.
#pragma once
#include "runtime/grid.cuh"

// From this many rows on, polling by all lanes of a group would slow down those that send.
constexpr int CROWDED_ROWS = 9;
// Wait until packets with these numbers have arrived for all lanes (0: none is expected). All are read at
// once, then those that are missing. With MANY rows only one row polls, for its first packet, until that
// arrives.
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
