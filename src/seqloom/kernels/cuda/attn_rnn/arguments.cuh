// Arguments of the kernels that take AttnRNN through time. Python reads these structs (runtime/launch.py).
#pragma once
#include "attn_rnn/setting.cuh"
#include "runtime/pairs.cuh"

struct Weights {
  const Element *q, *bias_q, *o, *bias_o, *g, *bias_g, *scale, *bias;  // g: (H, 2H), the half for h first
};

struct Forward {
  Weights w;
  const Element *x, *keep;  // (B, T, H) with these strides, keep contiguous
  const float *h0, *start;  // (B, H); start: where a reset begins
  const Element* mask;      // (B, H)
  const u8* reset;          // (B, T)
  const i64* lengths;       // (B,), or null
  Element* y;               // (B, T, H) with these strides, zeros past a length already
  float* last;              // (B, H)
  Element* end;             // (B, H), or null: the last state in the type of y, by the kernels of rows alone
  i64 x_row, x_step, y_row, y_step;
  int B, T;
};

// With slots every slot has a state: h0, start and last are (B, SLOTS, H), keep is (B, T, SLOTS, H).
struct SlotsForward : Forward {
  Element* states;  // (B, T, SLOTS, H): every state, or null if no backward follows
};

// What is inside all steps of a chunk of time. With slots y, h0, start and the planes have SLOTS before H,
// and aux is (B, steps, SLOTS, 4), of which the first is 1 / deviation.
struct Inside {
  Weights w;
  const Element *x, *y;              // (B, T, H)
  const Element *h0, *start, *mask;  // (B, H)
  const u8* reset;                   // (B, T)
  const i64* lengths;                // (B,), or null
  // (B, steps, H); seen: the state as the products saw it; n: xhat, or o without norm
  Element *seen, *q, *aC, *slope, *o, *g, *n;
  float* aux;             // (B, steps, AUX)
  int B, T, from, steps;  // the chunk: steps from..from+steps-1
};

// Back through a chunk of time, 8 rows or some slots to a block.
struct BlockReverse {
  Weights w;
  const Element *dy, *x, *y, *keep;  // (B, T, H)
  const Element *h0, *start, *mask;  // (B, H)
  const Element *q, *slope, *g, *n;  // as in Inside
  const float* aux;
  const u8* reset;
  const i64* lengths;
  Element *du, *dq, *ds, *dg, *dn;  // du (B, T, H), the others (B, steps, H)
  // (B, H): before the kernel the gradient of the state after the chunk, then of the one before
  float *dh, *dstart;
  int B, T, from, steps;
};

// Back through a chunk of time, a row to a block, or with the units divided among blocks.
struct Reverse {
  Weights w;                                  // q, o and g transposed: (H, H), (H, H), (2H, H)
  const Element *dy, *x, *keep;               // (B, T, H)
  const Element* mask;                        // (B, H)
  const Element *q, *slope, *g, *n;           // (B, steps, H), but q (B, steps, 2H), its first half
  const float *past, *attention, *deviation;  // (B, steps, H), (B, steps, HEADS, 4), (B, steps)
  const u8* reset;                            // (B, T)
  const i64* lengths;                         // (B,), or null
  Element *du, *dq, *ds, *dg, *dn;            // du (B, T, H), the others (B, steps, H)
  // (B, H): before the kernel the gradient of the state after the chunk, then of the one before
  float *dh, *dstart;
  int B, T, from, steps;
};
