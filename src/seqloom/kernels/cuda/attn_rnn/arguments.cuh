// Arguments of the kernels that run AttnRNN over time. Python parses these structs (runtime/launch.py).
#pragma once
#include "attn_rnn/setting.cuh"
#include "runtime/pairs.cuh"

struct Weights {
  const Element *q, *bias_q, *o, *bias_o, *g, *bias_g, *scale, *bias;  // g: (H, 2H), columns for h first
};

struct Forward {
  Weights w;
  const Element *x, *keep;  // (B, T, H) with these strides, keep contiguous
  const float *h0, *start;  // (B, H); start: the state after a reset
  const Element* mask;      // (B, H)
  const u8* reset;          // (B, T)
  const i64* lengths;       // (B,), or null
  Element* y;               // (B, T, H) with these strides, already zero past a length
  float* last;              // (B, H)
  Element* end;             // (B, H), or null: the last state in the type of y; only the row kernels write it
  i64 x_row, x_step, y_row, y_step;
  int B, T;
};

// Each slot has a state: h0, start and last are (B, SLOTS, H), keep is (B, T, SLOTS, H).
struct SlotsForward : Forward {
  Element* states;  // (B, T, SLOTS, H): all states, or null if there is no backward pass
};

// Intermediates of all steps of a chunk of time, recomputed for the backward pass. With slots, y, h0, start
// and the intermediates have a dimension SLOTS before H, and aux is (B, steps, SLOTS, 4), where the first of
// the four is 1 / deviation.
struct Inside {
  Weights w;
  const Element *x, *y;              // (B, T, H)
  const Element *h0, *start, *mask;  // (B, H)
  const u8* reset;                   // (B, T)
  const i64* lengths;                // (B,), or null
  // (B, steps, H); seen: the state as the products read it; n: xhat, or o without norm
  Element *seen, *q, *aC, *slope, *o, *g, *n;
  float* aux;             // (B, steps, AUX)
  int B, T, from, steps;  // the chunk: steps from..from+steps-1
};

// Backward pass over a chunk of time, with 8 rows or several slots per block.
struct BlockReverse {
  Weights w;
  const Element *dy, *x, *y, *keep;  // (B, T, H)
  const Element *h0, *start, *mask;  // (B, H)
  const Element *q, *slope, *g, *n;  // as in Inside
  const float* aux;
  const u8* reset;
  const i64* lengths;
  Element *du, *dq, *ds, *dg, *dn;  // du (B, T, H), the others (B, steps, H)
  // (B, H); dh: on entry the gradient of the state after the chunk, on exit that of the state before it;
  // dstart: the kernel adds to it
  float *dh, *dstart;
  int B, T, from, steps;
};

// Backward pass over a chunk of time, with one row per block or with the units divided among blocks.
struct Reverse {
  Weights w;                                  // q, o and g transposed: (H, H), (H, H), (2H, H)
  const Element *dy, *x, *keep;               // (B, T, H)
  const Element* mask;                        // (B, H)
  const Element *q, *slope, *g, *n;           // (B, steps, H), but q: the first half of (B, steps, 2H)
  const float *past, *attention, *deviation;  // (B, steps, H), (B, steps, HEADS, 4), (B, steps)
  const u8* reset;                            // (B, T)
  const i64* lengths;                         // (B,), or null
  Element *du, *dq, *ds, *dg, *dn;            // du (B, T, H), the others (B, steps, H)
  // (B, H); dh: on entry the gradient of the state after the chunk, on exit that of the state before it;
  // dstart: the kernel adds to it
  float *dh, *dstart;
  int B, T, from, steps;
};
