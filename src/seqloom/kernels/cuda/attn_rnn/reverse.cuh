// Shared parts of the backward kernels that give each block 8 rows or slots. Letters as in
// block_reverse.cu.
#pragma once
#include "attn_rnn/block.cuh"

// RING: steps in flight. STREAMS: sequences of each step that are loaded to shared memory, then their
// indices.
constexpr int RING = 4, STREAMS = 7 + KEEP, DY = 0, X = 1, Q = 2, G = 3, N_ = 4, SLOPE = 5, PAST = 6,
              KEEP_STREAM = 7;
constexpr int AT_DG = 0, AT_DN = BUFFER, AT_DS = 2 * BUFFER, AT_DQ = 3 * BUFFER, AT_SUMS = 4 * BUFFER;

// Compute the gradients at the end of a step from those of its output (dy) and of the state after it (dh): of
// n (dn), of the gate before the sigmoid (dgate), of xhat (dx), and of the state before the step without the
// terms that come through matrix products (acc).
DEV void back_end(float (&dn)[4], float (&dgate)[4], float (&dx)[4], float (&acc)[4], const float (&dy)[4],
                  const float (&dh)[4], const float (&keep)[4], const float (&g)[4], const float (&n)[4],
                  const float (&h)[4], const float (&scale)[2], const float (&bias)[2],
                  const int (&length)[2], int t) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float dafter = t < length[i & 1] ? dy[i] + dh[i] : 0.f,
                dnew = KEEP ? dafter * (1.f - keep[i]) : dafter;
    dn[i] = dnew * g[i];
    const float rest = dnew - dn[i];
    acc[i] = KEEP ? rest + dafter * keep[i] : rest;
    dgate[i] = ((NORM ? n[i] * scale[i >> 1] + bias[i >> 1] : n[i]) - h[i]) * rest * g[i];
    dx[i] = NORM ? dn[i] * scale[i >> 1] : 0.f;
  }
}
// Backward through the norm. sums: the product {xhat^T; ones} dx, with the sums of xhat dx on the diagonal of
// its upper half and the sums of dx in its lower half. at: address of 1 / deviation of this lane's first row;
// that of the next row follows `stride` bytes later.
DEV void back_norm(float (&dx)[4], float (&acc)[4], const float (&sums)[2][4], const float (&n)[4], u32 at,
                   int stride, const Lane& l) {
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const float both = shuffle(sums[0][c] + sums[1][c], 9 * l.pair + 4 * c) * (1.0f / REAL_H),
                mean = (sums[0][c + 2] + sums[1][c + 2]) * (1.0f / REAL_H);
    const float r = get_shared(at + c * stride);
#pragma unroll
    for (int i = c; i < 4; i += 2) {
      dx[i] = r * (dx[i] - mean - n[i] * both);
      acc[i] += dx[i];
    }
  }
}
// Backward through gelu; back is W_gh^T dg.
DEV void back_gelu(float (&ds)[4], float (&acc)[4], const float (&dx)[4], const float (&dn)[4],
                   const float (&slope)[4], const float (&mask)[4], const float (&back)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    ds[i] = (ds[i] + (NORM ? dx[i] : dn[i])) * slope[i];
    acc[i] += MASK ? mask[i] * back[i] : back[i];
  }
}
// acc += W_q^T dq; b holds dq as the B operand.
DEV void back_query(float (&acc)[4], const float (&mask)[4], const u32 (&Wq)[TILES][4],
                    const u32 (&b)[TILES][2]) {
  if constexpr (MASK) {
    const float zero[4] = {0.f, 0.f, 0.f, 0.f};
    float back[4];
    multiply<4>(back, zero, Wq, b);
#pragma unroll
    for (int i = 0; i < 4; i++) acc[i] += mask[i] * back[i];
  } else {
    multiply<4>(acc, acc, Wq, b);
  }
}
