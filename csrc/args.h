/* The plain C interface: one record of sizes and addresses for every cell. Arrays are (B, T, ...), or (T, B,
 * ...) where time comes first, and contiguous. */
#pragma once
#include <stdint.h>

struct Args {
  int64_t B, T, H;
  int64_t columns;            /* 1: threads divide the columns of every product; 0: the rows of the batch */
  int64_t heads, parts, kind; /* attn_rnn: heads, context as a set of bits, norm or not;  rnn: tanh or relu */
  int64_t slots; /* attn_rnn: number of consecutive rows of B that are the slots of a sequence; else 1 */
  const int64_t* lengths;     /* (B) or null */
  const uint8_t* reset;       /* (B, T) or null: the state is reset before these steps */
  const void *x, *s0[2];      /* projected input of each gate; first states, h and c; null: zeros */
  const void* start[2];       /* (B, H) each: the state after a reset */
  const void *mask, *keep[2]; /* (B, H): recurrent dropout;  (B, T, H) each: zoneout; or null */
  const void* w[8];        /* recurrent weights and biases, in the order of each cell; null if it has none */
  void *y, *c, *s1[2];     /* h and c after every step, last states */
  void* saved;             /* intermediates of every step, for the backward pass; null: recompute them */
  const void *dy, *ds1[2]; /* backward pass: their gradients; null: zeros */
  void *dx, *ds0[2], *dstart[2], *dw[8]; /* and those of the inputs; ds0 null: not needed */
  int64_t time_first;                    /* 1: x, y, c, dy and dx are (T, B, ...) */
  int64_t backwards;                     /* 1: from the last step of each row to its first; without reset */
  int64_t inputs,
      width; /* features of the input, 0: x is given; else the forward pass writes x, of this width */
  const void *input, *input_w[2]; /* (B, T, inputs); weight (width, inputs) and bias, or null */
  void *dinput, *dinput_w[2];     /* their gradients; null: not needed */
};
