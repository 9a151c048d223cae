// Load AttnRNN's tiles to shared memory on Hopper, where they are large: one thread copies whole chunks with
// cp.async.bulk.
#pragma once
#include "attn_rnn/tiles.cuh"
#include "runtime/bulk.cuh"

struct Fetching : Block {
  u32 parities = 0;  // parity bits of the stages' mbarriers
  template <class Args>
  DEV Fetching(const Args& a) : Block(a) {
    make_barriers();
  }
  // Initialise one mbarrier per stage, and one for the resident weights.
  DEV void make_barriers() const {
    if (thread == 0)
      for (int i = 0; i <= STAGES; i++) make_barrier(memory + AT_BARRIERS + 8 * i);
    show_barriers();
    wait_block();
  }
  DEV u32 find_barrier(int chunk) const { return memory + AT_BARRIERS + 8 * (chunk % STAGES); }
  // Load a chunk of a weight, and set the byte count that the mbarrier expects, including the message's
  // chunk. Call from one thread.
  template <int N>
  DEV void fetch_weight(const Factor& w, int chunk) const {
    if (chunk >= CHUNKS) return;
    constexpr int BYTES = N * CHUNK * PLANES;
    expect(find_barrier(chunk),
           STAGE + (chunk < FLEETING ? BYTES : 0) + (HI_LO && chunk == 0 ? ALL_UNITS / PAIR : 0));
    if (chunk < FLEETING)
      cp_async_bulk(find_weight<N>(w, chunk), w.at + (i64)chunk * ALL_ROWS, BYTES, find_barrier(chunk));
  }
  // Load the chunks of weights that stay in shared memory.
  DEV void load_resident(const Factor& first, const Factor& second, const Factor& third) const {
    const u32 barrier = memory + AT_BARRIERS + 8 * STAGES;
    if (RESIDENT == 0) return;
    if (thread == 0) {
      expect(barrier, RESIDENT * ALL_ROWS);
      for (int chunk = FLEETING; chunk < CHUNKS; chunk++) {
        const i64 at = (i64)chunk * ALL_ROWS;
        cp_async_bulk(find_weight<2 * UNITS>(first, chunk), first.at + at, ALL_ROWS / 2, barrier);
        cp_async_bulk(find_weight<UNITS>(second, chunk), second.at + at, ALL_ROWS / 4, barrier);
        cp_async_bulk(find_weight<UNITS>(third, chunk), third.at + at, ALL_ROWS / 4, barrier);
      }
    }
    await(barrier, 0);
  }
  // Load a chunk of a message's rows; with the first chunk, also all inverse scales.
  DEV void fetch_numbers(int message, int chunk) const {
    if (chunk >= CHUNKS) return;
    if (HI_LO && chunk == 0)
      cp_async_bulk(memory + AT_SCALES,
                    shared_by_all + AT_UNITS + message * ALL_UNITS + side * (ALL_UNITS / PAIR),
                    ALL_UNITS / PAIR, find_barrier(0));
    cp_async_bulk(memory + chunk % STAGES * STAGE,
                  shared_by_all + AT_NUMBERS + message * NUMBERS + (side * CHUNKS + chunk) * STAGE, STAGE,
                  find_barrier(chunk));
  }
  // Start loading a weight tile before the other operand is available.
  template <int N>
  DEV void prepare(const Factor& w) const {
    if (thread == 0)
#pragma unroll 1
      for (int chunk = 0; chunk < LEAD; chunk++) fetch_weight<N>(w, chunk);
  }
  // Continue loading while a chunk is multiplied.
  template <int N>
  DEV void fetch_next(int message, const Factor& w, int chunk) const {
    if (chunk + LEAD >= CHUNKS) return;
    wait_block();  // all warps are done with the stage that is loaded next
    if (thread == 0) {
      fetch_weight<N>(w, chunk + LEAD);
      fetch_numbers(message, chunk + LEAD);
    }
  }
  // Start loading a message.
  DEV void fetch_first(int message) const {
    if (thread == 0) {
      order_copies();
#pragma unroll 1
      for (int chunk = 0; chunk < LEAD; chunk++) fetch_numbers(message, chunk);
    }
  }
  DEV void await_chunk(int chunk) {
    await(find_barrier(chunk), parities >> chunk % STAGES & 1);
    parities ^= 1u << chunk % STAGES;
  }
  // Announce a message; the fence orders reads of shared memory before asynchronous copies that overwrite it.
  DEV void announce() const {
    order_copies();
    Block::announce();
  }
  DEV void end() const {}
};
