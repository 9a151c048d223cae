/* The plain C interface: one record of sizes and addresses for every cell. Arrays are (B, T, ...) and contiguous. */
#pragma once
#include <stdint.h>

struct Args {
  int64_t B, T, H;
  int64_t heads, parts, norm;       /* attn_rnn: parts is a set of bits h, x, h+x, h*x */
  const int64_t* lengths;           /* (B) or null */
  const void *x, *h0, *c0;          /* what the input gives to each gate; first states */
  const void *w[4], *b[4];          /* recurrent weights and biases, in the order each cell says */
  void *y, *c, *h1, *c1;            /* outputs, memories, last states */
  const void *dy, *dh1, *dc1;       /* backward: what they are to the loss */
  void *dx, *dh0, *dc0, *d[4];      /* and what the inputs are */
};
