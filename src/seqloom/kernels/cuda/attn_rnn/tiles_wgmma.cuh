// Products of AttnRNN's tiles by wgmma (Hopper), which reads both operands from shared memory. Two warp
// groups divide the steps of a chunk, or the columns if there are many. Two blocks with the same units each
// compute half of every sum (split-K): each loads half of both operands, and then finishes half of the
// rows, for which the other block writes its partial sums into this block's shared memory.
#pragma once
#if BULK
#include "attn_rnn/tiles_bulk.cuh"
#else
#include "attn_rnn/tiles_threads.cuh"
#endif
#include "runtime/pair.cuh"
#include "runtime/wgmma.cuh"

struct Tiles : Fetching {
  using Fetching::Fetching;
  // Multiply a message by a weight for which prepare() was called. Leave the partial sums in shared memory,
  // visible to all threads of both blocks.
  template <int N>
  DEV void multiply(int message, const Factor& w) {
    float s[N * DIVIDED / 4] = {};
    fetch_first(message);
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
      await_chunk(chunk);
      multiply_chunk<N>(s, message, w, chunk);
    }
    if constexpr (!HI_LO) {
      await_products<0>();
      fence_sums(s);
    }
    wait_block();  // the partial sums overlap the operands
#pragma unroll
    for (int j = 0; j < N * DIVIDED / 16; j++)
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const int part = DIVIDED == 2 ? half : 0, row = (16 * quarter + 8 * k + lane / 4) % OWN_ROWS,
                  column = 8 * j + (DIVIDED == 2 ? 0 : N / 2 * half);
        const float v = s[4 * j + 2 * k], w = s[4 * j + 2 * k + 1];
        const u32 at = 4 * ((part * OWN_ROWS + row) * (N + 8) + column + 2 * (lane & 3));
        if (quarter / 2 != side)
          put_other(memory + AT_OTHERS + at, v, w);
        else
          put_shared(memory + AT_PARTS + at, v, w);
      }
    wait_pair();
  }
  // Return the wgmma descriptor of one step (32 bytes) of a plane of `rows` lines in shared memory.
  DEV u64 describe(u32 at, int rows, int plane, int step) const {
    return describe_matrix(at + (plane * LINES + step / 4) * rows * 128 + 32 * (step % 4), SWIZZLE_128, 1024,
                           16);
  }
  // Accumulate this warp group's steps of a chunk, asynchronously. In float32, sums over values with the same
  // scale (at most UNITS of a row) are scaled and added outside the tensor cores, which truncate sums, while
  // the next such sums are computed in the other of two accumulators.
  template <int N>
  DEV void multiply_chunk(float (&s)[N * DIVIDED / 4], int message, const Factor& w, int chunk) const {
    const u32 numbers = memory + chunk % STAGES * STAGE,
              weight = find_weight<N>(w, chunk) + (DIVIDED == 2 ? 0 : N / 2 * 128 * half);
    const int first = DIVIDED == 2 ? STEPS * half : 0;
#if FORMAT == 2 && !TF32
    constexpr int DEEP = UNITS < 32 ? 1 : 2, MANY = STEPS / DEEP;
    float part[2][N * DIVIDED / 4];
#pragma unroll
    for (int i = 0; i <= MANY; i++) {
      if (i < MANY) {
        begin_products();
#pragma unroll
        for (int which = 0; which < 3; which++)  // lo hi, hi lo, hi hi
#pragma unroll
          for (int k = 0; k < DEEP; k++) {
            const int step = first + DEEP * i + k;
            const u64 of_numbers = describe(numbers, ROWS, which == 0, step),
                      of_weight = describe(weight, N, which == 1, step);
            if (which == 0 && k == 0)
              multiply_lines<FP16, 0>(part[i % 2], of_numbers, of_weight);
            else
              multiply_lines<FP16, 1>(part[i % 2], of_numbers, of_weight);
          }
        commit_products();
      }
      if (i == 0)
        fetch_next<N>(message, w, chunk);
      else {
        float scale[2];
#pragma unroll
        for (int k = 0; k < 2; k++)
          scale[k] = get_shared(memory + AT_SCALES +
                                4 * ((CHUNK / 2 * chunk + 16 * (first + DEEP * (i - 1))) / UNITS * ROWS +
                                     16 * quarter + 8 * k + lane / 4));
        if (i < MANY)
          await_products<1>();
        else
          await_products<0>();
        fence_sums(part[(i - 1) % 2]);
#pragma unroll
        for (int e = 0; e < N * DIVIDED / 4; e++) s[e] += scale[e / 2 % 2] * part[(i - 1) % 2][e];
      }
    }
#else
    begin_products();
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
      const int step = first + k;
      multiply_lines<TYPE, 1>(s, describe(numbers, ROWS, 0, step), describe(weight, N, 0, step));
    }
    commit_products();
    await_products<1>();
    fetch_next<N>(message, w, chunk);
#endif
  }
};
