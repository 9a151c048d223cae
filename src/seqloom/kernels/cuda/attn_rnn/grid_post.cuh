// AttnRNN's units on blocks anywhere on the GPU, 32 to each (16 or 32 in float32), which exchange packets
// through its memory. 16 words of a row, of two units or one, are a source; in float32 a block of 32 units is
// two of them. A warp has all tiles of the block's units, and of every sum the units of four sources, or
// of eight in two ROUNDS: what these send is its B of mma as it arrives, a lane's words from one of them in
// each round. So no warp waits for all blocks, and shared numbers do not pass through shared memory. A row of
// a source is six packets in two halves: words 8half .. 8half + 7, and a sum over the row. A packet is
// overwritten only after all blocks have read it: a block sends a message of a step after it has received the
// one before from all blocks. If aC is not sent, the sums over heads take its place, and every block asks for
// all of them. Parts of sums lie in two places in turn, and so do barriers: some warp may already be at the
// next product. Pointwise work has 16 lanes to a row; with two teams, a warp has two rows of one team.
#pragma once
#ifndef ROWS  // values for editors, as in units.cuh
#define GRID 1
#define ROWS 8
#define CLUSTER 2
#define EACH 2
#define SPLIT 8
#define TALL 2
#define WEIGHTS_IN_SHARED 2
#define TILES_IN_SHARED 2
#define LANES 16
#define ROUNDS 1
#define TF32 0
#endif
#include "attn_rnn/units.cuh"
#include "runtime/packets.cuh"

// Units of a source; sources of a block, of a warp, and all.
constexpr int SOURCE_UNITS = 64 / SIZE, BLOCK_SOURCES = UNITS / SOURCE_UNITS, SOURCES = 4 * ROUNDS,
              ALL_SOURCES = (H + SOURCE_UNITS - 1) / SOURCE_UNITS;
// Packets of a block, packets that a lane polls, tiles of a weight.
constexpr int PACKETS = 6, LANE_PACKETS = ROUNDS * PACKETS, DEEP = TALL * 16 * ROUNDS / SIZE;
constexpr int AT_WEIGHTS = 2 * PARTS;
constexpr int CLUSTER_BYTES = AT_WEIGHTS + (WEIGHTS_IN_SHARED * DEEP + TILES_IN_SHARED) * WARPS * WORDS * 128;
// Packets of one of the three messages in a step, and of the sums over heads.
constexpr int MESSAGE = ROWS * SPLIT * PACKETS * SOURCES, SCORES = ROWS * CLUSTER * PIECES;
constexpr int GROUP = 3 * MESSAGE + SCORES;  // all of them
// Lanes that ask for the blocks of a head, and how many times.
constexpr int SCORE_LANES = SPAN > 8 ? 16 : SPAN > 4 ? 8 : SPAN > 2 ? 4 : SPAN;
constexpr int SCORE_ROUNDS = (SPAN + SCORE_LANES - 1) / SCORE_LANES;
// Tiles of a weight in shared memory that there are registers for while blocks wait.
constexpr int PRELOAD_TILES = TYPE == FP32 || TEAMS > 1 ? 0 : 12;
constexpr int PRELOAD_TILES_BACK = TYPE == FP32 || TEAMS > 1 || SPAN >= 32 ? 0 : 4;
// Sums over a row are complete after a barrier; heads lie in several blocks.
constexpr bool EARLY_SUMS = false, SPLIT_HEADS = true;
// The backward pass has no registers left to hold two steps.
constexpr bool FETCH_LATE = TYPE == FP32;
constexpr bool CENTERS_SQUARES = TYPE == FP32;  // squares are taken from a mean
// If a block's units belong to one head, aC is not sent: every block computes it from sums over heads, h and
// x. HEAD_LANES, HEAD_PACKETS: lanes of a row that ask for a head's sums, and packets of each.
constexpr int HEAD_LANES = SPAN % 4 == 0 ? 4 : SPAN == 2 ? 2 : 1, HEAD_PACKETS = SPAN / HEAD_LANES;
// With two teams of float32 there are no registers for it.
constexpr bool CAN_MIX = D % UNITS == 0 && ROUNDS * HEAD_PACKETS <= 8 && (TYPE != FP32 || TEAMS == 1);
constexpr int MIXTURE = SECOND;
static_assert(EACH == TALL && UNITS % SOURCE_UNITS == 0 && LANES == 16 && SPLIT == 8 &&
                  ALL_SOURCES <= SPLIT * SOURCES,
              "no such group");
// Words of a lane's sources: two, or four, to a tile of B.
typedef u32 Words[DEEP / TALL][SIZE];

struct Post : Units {
  Packet *packets, *inbox;        // of the group, and where this lane's begin
  u32 message_count[TEAMS] = {};  // messages that were taken of a team
  int rows, teams, last_message = 0;
  bool sends;  // whether this lane has a row
  template <class Args>
  DEV Post(const Args& a) : Units(a.begin, a.group_rows) {
    packets = a.packets + (i64)(block() / CLUSTER) * GROUP;
    inbox = keep_in_register(packets + (row * SPLIT + slice) * PACKETS * SOURCES + pair);
    rows = a.B - first < a.group_rows ? (a.B > first ? a.B - first : 0) : a.group_rows;
    teams = rows > 8 ? TEAMS : 1;
    has_row = TEAMS * warp < rows;
    column = TEAMS == 2 ? 2 * warp + lane / 16 : warp;
    team = TEAMS == 2 ? warp / 4 : 0;
    sends = column < rows && (TEAMS == 2 || lane < 16);
    unit = base + 2 * (lane % 16);
    active = sends && 2 * (lane % 16) < UNITS && unit < H;
    unit = active ? unit : base;
  }
  DEV void open() const {}
  DEV void close() const {}
  // Return the source whose words this lane receives.
  DEV int source(int round) const { return SOURCES * slice + 4 * round + pair; }

  // Return whether this source exists and the team has a row.
  DEV bool is_expected(int round, int g) const { return 8 * g + row < rows && source(round) < ALL_SOURCES; }
  DEV void begin(int message, int g) {
    message_count[g]++;
    last_message = message;
    parts = memory + (message_count[g] & 1) * PARTS;
  }
  // Warps that receive from no source wait too: they would run ahead of the others.
  DEV void gather(int g) const {
    Units::gather(is_member(g) || SOURCES * slice >= ALL_SOURCES, 1 + g + TEAMS * (message_count[g] & 1));
  }
  // Return the number of this warp's next message.
  DEV u32 next_number() const {
    return 1 + (TEAMS == 2 && team ? message_count[TEAMS - 1] : message_count[0]);
  }
};
