// Waiting for packets.
#pragma once
#include "runtime/grid.cuh"

// rows of a group that would be in each other's way if all of them asked all the time
constexpr int CROWD = 9;
// Until packets with these numbers have come to all lanes, all asked for at once, and then those that are
// missing; 0: nothing will come. If all asked all the time, those that send would wait for them: until a
// first one is there, one row asks for its first.
template <bool MANY, int N>
DEV void collect(u32 (&p)[N][4], const Packet* const (&from)[N], const u32 (&numbers)[N], int rows, int row) {
  bool all = true, missing = true;
#pragma unroll 1
  for (int i = 0; any_lane(missing); i++) {
    if (i == PATIENCE) give_up();
#pragma unroll
    for (int k = 0; k < N; k++)
      if (p[k][3] != numbers[k] && (all || (k == 0 && row == 0))) get_packet(p[k], from[k]);
    missing = false;
#pragma unroll
    for (int k = 0; k < N; k++) missing |= p[k][3] != numbers[k];
    all = !MANY || rows < CROWD || any_lane(numbers[0] && p[0][3] == numbers[0]);
  }
}
