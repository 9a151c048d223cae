// Products of AttnRNN's tiles by mma. Eight warps: each has one half of the rows and one quarter of every
// chunk (split-K).
#pragma once
#include "attn_rnn/tiles_threads.cuh"

template <int N>
struct Sums {
  float c[TALL][N / 8][4];
};

struct Tiles : Fetching {
  using Fetching::Fetching;
  // Multiply a message by a weight for which prepare() was called. Leave the partial sums in shared memory,
  // visible to all threads.
  template <int N>
  DEV void multiply(int message, const Factor& w) {
    Sums<N> s = {};
    fetch_first(message);
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
      await_chunk(chunk);
      fetch_next<N>(message, w, chunk);
      multiply_chunk<N>(s, w, chunk);
    }
    wait_block();  // the partial sums overlap the operands
#pragma unroll
    for (int i = 0; i < TALL; i++)
#pragma unroll
      for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
          const int part = quarter, row = ROWS / 2 * half + 16 * i + 8 * k + lane / 4, column = 8 * j;
          const float v = s.c[i][j][2 * k], w = s.c[i][j][2 * k + 1];
          const u32 at = 4 * ((part * OWN_ROWS + row) * (N + 8) + column + 2 * (lane & 3));
          put_shared(memory + AT_PARTS + at, v, w);
        }
    wait_block();
  }
  // Load one step (32 bytes) of this warp's rows of a message, and the inverse scales of its values.
  DEV void load_numbers(u32 (&a)[PLANES][TALL][4], float (&scale)[TALL][2], int chunk, int step) const {
    const u32 stage = memory + chunk % STAGES * STAGE;
#pragma unroll
    for (int p = 0; p < PLANES; p++)
#pragma unroll
      for (int i = 0; i < TALL; i++) {
        const int line = ROWS / 2 * half + 16 * i + (lane & 15);
        load4(a[p][i][0], a[p][i][1], a[p][i][2], a[p][i][3],
              stage + ((p * LINES + step / 4) * ROWS + line) * 128 +
                  16 * ((2 * step + (lane >> 4) ^ line) & 7));
      }
    if constexpr (HI_LO)
#pragma unroll
      for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int k = 0; k < 2; k++)
          scale[i][k] = get_shared(memory + AT_SCALES +
                                   4 * ((CHUNK / 2 * chunk + 16 * step) / UNITS * ROWS + ROWS / 2 * half +
                                        16 * i + 8 * k + lane / 4));
  }
  // Load one step (32 bytes) of 16 rows of a weight.
  template <int N>
  DEV void load_weight(u32 (&b)[PLANES][2][2], u32 weight, int step, int j) const {
#pragma unroll
    for (int p = 0; p < PLANES; p++) {
      const int line = 16 * j + 8 * (lane >> 4) + (lane & 7);
      load4(b[p][0][0], b[p][0][1], b[p][1][0], b[p][1][1],
            weight + ((p * LINES + step / 4) * N + line) * 128 +
                16 * ((2 * step + (lane >> 3 & 1) ^ line) & 7));
    }
  }
  // Multiply this warp's quarter of a chunk. The operands of the next mma are loaded before the current mma.
  template <int N>
  DEV void multiply_chunk(Sums<N>& s, const Factor& w, int chunk) const {
    constexpr int WIDE = N / 16, ALL = STEPS * WIDE;
    const u32 weight = find_weight<N>(w, chunk);
    const int first = STEPS * quarter;
    u32 a[2][PLANES][TALL][4], b[2][PLANES][2][2];
    float scale[2][TALL][2];
    load_numbers(a[0], scale[0], chunk, first);
    load_weight<N>(b[0], weight, first, 0);
#pragma unroll
    for (int n = 0; n < ALL; n++) {
      const int next = n + 1, step = n / WIDE % 2;
      if (next < ALL) {
        if (next % WIDE == 0) load_numbers(a[1 - step], scale[1 - step], chunk, first + next / WIDE);
        load_weight<N>(b[next % 2], weight, first + next / WIDE, next % WIDE);
      }
      multiply_step<N>(s, a[step], scale[step], b[n % 2], 2 * (n % WIDE));
    }
  }
  template <int N>
  DEV void multiply_step(Sums<N>& s, const u32 (&a)[PLANES][TALL][4], const float (&scale)[TALL][2],
                         const u32 (&b)[PLANES][2][2], int j) const {
#if FORMAT == 2 && !TF32
    float part[TALL][2][4];
#pragma unroll
    for (int which = 0; which < 3; which++)  // lo hi, hi lo, hi hi
#pragma unroll
      for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
          const u32(&v)[4] = a[which == 0][i], (&u)[2] = b[which == 1][k];
          if (which == 0)
            mma_from_zero<FP16>(part[i][k], v[0], v[1], v[2], v[3], u[0], u[1]);
          else
            mma<FP16>(part[i][k], v[0], v[1], v[2], v[3], u[0], u[1]);
        }
#pragma unroll
    for (int i = 0; i < TALL; i++)
#pragma unroll
      for (int k = 0; k < 2; k++)
#pragma unroll
        for (int e = 0; e < 4; e++) s.c[i][j + k][e] += scale[i][e / 2] * part[i][k][e];
#else
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
      for (int i = 0; i < TALL; i++) {
        const u32(&v)[4] = a[0][i], (&u)[2] = b[0][k];
#if FORMAT == 2
        mma_tf32(s.c[i][j + k], v[0], v[1], v[2], v[3], u[0], u[1]);
#else
        mma<TYPE>(s.c[i][j + k], v[0], v[1], v[2], v[3], u[0], u[1]);
#endif
      }
#endif
  }
};
