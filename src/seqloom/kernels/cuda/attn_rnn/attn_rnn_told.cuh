// What the kernels are told that take AttnRNN through time a row to a block, or with the units divided among blocks.
struct Weights {
  const Element *q, *bias_q, *o, *bias_o, *g, *bias_g, *scale, *bias;  // g: (H, 2H), the half for h first
};

struct Forward {
  Weights w;
  const Element *x, *keep;     // (B, T, H) with these strides, keep contiguous
  const float *h0, *start;     // (B, H); start: where a reset begins
  const Element *mask;         // (B, H)
  const u8 *reset;             // (B, T)
  const i64 *lengths;          // (B,), or null
  Element *y;                  // (B, T, H) with these strides, zeros past a length already
  float *last;                 // (B, H)
  i64 x_row, x_step, y_row, y_step;
  int B, T;
};

struct Reverse {
  Weights w;                                  // q, o and g turned: (H, H), (H, H), (2H, H)
  const Element *dy, *x, *keep;               // (B, T, H)
  const Element *mask;                        // (B, H)
  const Element *q, *slope, *g, *n;           // (B, steps, H), but q (B, steps, 2H), its first half
  const float *past, *attention, *deviation;  // (B, steps, H), (B, steps, HEADS, 4), (B, steps)
  const u8 *reset;                            // (B, T)
  const i64 *lengths;                         // (B,), or null
  Element *du, *dq, *ds, *dg, *dn;            // du (B, T, H), the others (B, steps, H)
  float *dh, *dstart;                         // (B, H): before the kernel the gradient of the state after the chunk, then of the one before
  int B, T, from, steps;
};
