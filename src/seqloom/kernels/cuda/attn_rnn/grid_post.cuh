// AttnRNN's units divided among a group of blocks anywhere in the grid, 32 units per block (16 or 32 in
// float32). Blocks exchange packets through global memory; a packet is 16 bytes: three words and the sequence
// number of its message. A source is 16 words of a row, of two units each, or of one in float32, where a
// block of 32 units is two sources. A warp has all row tiles of the block's units and a split-K slice of four
// sources, or of eight in two ROUNDS. What these sources send has the layout of the warp's B operand, and in
// each round a lane receives words of one source. So no warp waits for all blocks, and received values do not
// pass through shared memory.
//
// A row of a source is six packets: three with words 0..7 and a sum over the row, three with words 8..15 and
// another sum. A packet is overwritten only after all blocks have read it, because a block sends a message
// only after it has received the previous message from all blocks. If aC is not sent, the sums over heads
// take its place, and every block polls for all of them.
//
// Split-K partial sums and their barriers are double-buffered, since some warps may already be at the next
// product. Pointwise work uses 16 lanes per row. The code calls 8 rows of the batch, the n = 8 of mma, a
// row_group; the comments call them an 8-row group. With two of them, a warp has two rows of the same 8-row
// group.
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

// Units of a source; sources of a block, of a warp's split-K slice, and of all blocks.
constexpr int SOURCE_UNITS = 64 / SIZE, BLOCK_SOURCES = UNITS / SOURCE_UNITS, SOURCES = 4 * ROUNDS,
              ALL_SOURCES = (H + SOURCE_UNITS - 1) / SOURCE_UNITS;
// Packets per row of a source, packets that a lane polls, weight tiles per warp.
constexpr int PACKETS = 6, LANE_PACKETS = ROUNDS * PACKETS, DEEP = TALL * 16 * ROUNDS / SIZE;
constexpr int AT_WEIGHTS = 2 * PARTS;
constexpr int CLUSTER_BYTES = AT_WEIGHTS + (WEIGHTS_IN_SHARED * DEEP + TILES_IN_SHARED) * WARPS * WORDS * 128;
// Packets of each of the three messages of a step, and of the sums over heads.
constexpr int MESSAGE = ROWS * SPLIT * PACKETS * SOURCES, SCORES = ROWS * CLUSTER * PIECES;
constexpr int GROUP = 3 * MESSAGE + SCORES;  // all packets of a group of blocks
// Lanes that poll the blocks of a head, and how many blocks each of them polls.
constexpr int SCORE_LANES = SPAN > 8 ? 16 : SPAN > 4 ? 8 : SPAN > 2 ? 4 : SPAN;
constexpr int SCORE_ROUNDS = (SPAN + SCORE_LANES - 1) / SCORE_LANES;
// Weight tiles that are preloaded from shared memory into registers before waiting for other blocks.
constexpr int PRELOAD_TILES = TYPE == FP32 || ROW_GROUPS > 1 ? 0 : 12;
constexpr int PRELOAD_TILES_BACK = TYPE == FP32 || ROW_GROUPS > 1 || SPAN >= 32 ? 0 : 4;
// Sums over a row are complete only after a barrier; heads span several blocks.
constexpr bool EARLY_SUMS = false, SPLIT_HEADS = true;
// The backward pass has no registers left to hold two steps.
constexpr bool FETCH_LATE = TYPE == FP32;
constexpr bool CENTERS_SQUARES = TYPE == FP32;  // sums squared deviations from a mean
// If a block's units belong to one head, aC is not sent: every block computes it from the sums over heads, h
// and x. HEAD_LANES: lanes of a row that poll for a head's sums; HEAD_PACKETS: packets that each polls.
constexpr int HEAD_LANES = SPAN % 4 == 0 ? 4 : SPAN == 2 ? 2 : 1, HEAD_PACKETS = SPAN / HEAD_LANES;
// Float32 with two 8-row groups has no registers left for this.
constexpr bool CAN_MIX = D % UNITS == 0 && ROUNDS * HEAD_PACKETS <= 8 && (TYPE != FP32 || ROW_GROUPS == 1);
constexpr int MIXTURE = SECOND;
static_assert(EACH == TALL && UNITS % SOURCE_UNITS == 0 && LANES == 16 && SPLIT == 8 &&
                  ALL_SOURCES <= SPLIT * SOURCES,
              "no such group");
// A lane's words of the B operand: two per tile, or four in float32.
typedef u32 Words[DEEP / TALL][SIZE];

struct Post : Units {
  Packet *packets, *inbox;             // the group's packets, and the first that this lane reads
  u32 message_count[ROW_GROUPS] = {};  // messages received per 8-row group
  int rows, row_groups, last_message = 0;
  bool sends;  // whether this lane works on a row
  template <class Args>
  DEV Post(const Args& a) : Units(a.begin, a.group_rows) {
    packets = a.packets + (i64)(block() / CLUSTER) * GROUP;
    inbox = keep_in_register(packets + (row * SPLIT + slice) * PACKETS * SOURCES + pair);
    rows = a.B - first < a.group_rows ? (a.B > first ? a.B - first : 0) : a.group_rows;
    row_groups = rows > 8 ? ROW_GROUPS : 1;
    has_row = ROW_GROUPS * warp < rows;
    column = ROW_GROUPS == 2 ? 2 * warp + lane / 16 : warp;
    row_group = ROW_GROUPS == 2 ? warp / 4 : 0;
    sends = column < rows && (ROW_GROUPS == 2 || lane < 16);
    unit = base + 2 * (lane % 16);
    active = sends && 2 * (lane % 16) < UNITS && unit < H;
    unit = active ? unit : base;
  }
  DEV void open() const {}
  DEV void close() const {}
  // Return the source whose words this lane receives.
  DEV int source(int round) const { return SOURCES * slice + 4 * round + pair; }

  // Return whether this source exists and 8-row group g has this lane's row.
  DEV bool is_expected(int round, int g) const { return 8 * g + row < rows && source(round) < ALL_SOURCES; }
  DEV void begin(int message, int g) {
    message_count[g]++;
    last_message = message;
    parts = memory + (message_count[g] & 1) * PARTS;
  }
  // Warps that receive from no source must wait too, or they would run ahead of the others.
  DEV void gather(int g) const {
    Units::gather(is_member(g) || SOURCES * slice >= ALL_SOURCES,
                  1 + g + ROW_GROUPS * (message_count[g] & 1));
  }
  // Return the sequence number of this warp's next message.
  DEV u32 next_number() const {
    return 1 + (ROW_GROUPS == 2 && row_group ? message_count[ROW_GROUPS - 1] : message_count[0]);
  }
};
