// What AttnRNN's kernels are compiled for. Python gives these macros with -D; the values here serve editors.
#pragma once
#ifndef HIDDEN
#define HIDDEN 64  // units, a multiple of 16
#define HEADS 4
#define REAL_HEAD 16  // units of a head that are not padding
#define CONTEXT 15    // rows that the attention sees: 1 h, 2 x, 4 h + x, 8 h * x
#define NORM 1
#define MASK 1  // recurrent dropout
#define KEEP 1  // zoneout
#define RESET 1
#endif
constexpr int H = HIDDEN, D = H / HEADS;
// Units but for those that fill up heads, so that H is a multiple of 16. The states, inputs and weights of
// these are 0, and stay so: only sums over units must not count them. Their gradients may be anything.
constexpr int REAL_D = REAL_HEAD, REAL_H = HEADS * REAL_D, PADDING = H - REAL_H;
