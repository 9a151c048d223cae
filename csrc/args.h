/* The plain C interface: one record of sizes and addresses for every cell. Arrays are (B, T, ...), or (T, B,
 * ...) where time comes first, and contiguous. */
#pragma once
#include <stdint.h>

struct Args {
  int64_t B, T, H;
  int64_t columns;            /* 1: threads divide the columns of every product; 0: the rows of the batch */
  int64_t heads, parts, kind; /* attn_rnn: heads, context as a set of bits, norm or not;  rnn: tanh or relu */
  int64_t slots; /* attn_rnn: so many rows of B, one below the other, are the slots of a sequence; else 1 */
  const int64_t* lengths;     /* (B) or null */
  const uint8_t* reset;       /* (B, T) or null: the state starts anew before these steps */
  const void *x, *s0[2];      /* what the input gives to each gate; first states, h and c; null: zeros */
  const void* start[2];       /* (B, H) each: where a reset starts */
  const void *mask, *keep[2]; /* (B, H): recurrent dropout;  (B, T, H) each: zoneout; or null */
  const void* w[8];    /* recurrent weights and biases, in the order each cell says; null where it has none */
  void *y, *c, *s1[2]; /* h and c after every step, last states */
  void* saved;         /* what happened inside every step, for the backward; null: it is computed again */
  const void *dy, *ds1[2];               /* backward: what they are to the loss; null: nothing */
  void *dx, *ds0[2], *dstart[2], *dw[8]; /* and what the inputs are; ds0 null: nobody asks */
  int64_t time_first;                    /* 1: x, y, c, dy and dx have the steps before the rows */
  int64_t backwards;                     /* 1: from the last step of each row to its first; without reset */
};
