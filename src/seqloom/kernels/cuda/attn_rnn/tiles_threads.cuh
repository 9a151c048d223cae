// Load AttnRNN's tiles to shared memory: all threads issue cp.async of 16 bytes each.
#pragma once
#include "attn_rnn/tiles.cuh"
#include "runtime/wgmma.cuh"

struct Fetching : Block {
  using Block::Block;
  // Start loading some bytes. Call from all threads.
  DEV void fetch_bytes(u32 to, const u8* from, int bytes) const {
    for (int i = 16 * thread; i < bytes; i += 16 * THREADS) cp_async16(to + i, from + i, 16);
  }
  // Start loading a chunk of N rows of a weight.
  template <int N>
  DEV void fetch_weight(const Factor& w, int chunk) const {
    if (chunk < FLEETING)
      fetch_bytes(find_weight<N>(w, chunk), w.at + (i64)chunk * ALL_ROWS, N * CHUNK * PLANES);
  }
  // Load the chunks of weights that stay in shared memory.
  DEV void load_resident(const Factor& first, const Factor& second, const Factor& third) const {
    for (int chunk = FLEETING; chunk < CHUNKS; chunk++) {
      fetch_bytes(find_weight<2 * UNITS>(first, chunk), first.at + (i64)chunk * ALL_ROWS, ALL_ROWS / 2);
      fetch_bytes(find_weight<UNITS>(second, chunk), second.at + (i64)chunk * ALL_ROWS, ALL_ROWS / 4);
      fetch_bytes(find_weight<UNITS>(third, chunk), third.at + (i64)chunk * ALL_ROWS, ALL_ROWS / 4);
    }
    cp_async_commit();
  }
  // Start loading a chunk of a message's rows; with the first chunk, also all inverse scales.
  DEV void fetch_numbers(int message, int chunk) const {
    if (chunk >= CHUNKS) return;
    if (HI_LO && chunk == 0)
      fetch_bytes(memory + AT_SCALES,
                  shared_by_all + AT_UNITS + message * ALL_UNITS + side * (ALL_UNITS / PAIR),
                  ALL_UNITS / PAIR);
    fetch_bytes(memory + chunk % STAGES * STAGE,
                shared_by_all + AT_NUMBERS + message * NUMBERS + (side * CHUNKS + chunk) * STAGE, STAGE);
  }
  // Start loading a weight tile before the other operand is available.
  template <int N>
  DEV void prepare(const Factor& w) const {
#pragma unroll 1
    for (int chunk = 0; chunk < LEAD; chunk++) fetch_weight<N>(w, chunk);
  }
  // Continue loading while a chunk is multiplied.
  template <int N>
  DEV void fetch_next(int message, const Factor& w, int chunk) const {
    fetch_weight<N>(w, chunk + LEAD);
    fetch_numbers(message, chunk + LEAD);
    cp_async_commit();
  }
  // Start loading a message.
  DEV void fetch_first(int message) const {
#pragma unroll 1
    for (int chunk = 0; chunk < LEAD; chunk++) {
      fetch_numbers(message, chunk);
      cp_async_commit();
    }
  }
  DEV void await_chunk(int) const {
    cp_async_wait<LEAD - 1>();
    if constexpr (WGMMA) fence_proxy_async();
    wait_block();  // all threads' copies have arrived, and the stages to be loaded next are no longer read
  }
  DEV void end() const { cp_async_wait<0>(); }
};
