// Compile-time configuration of AttnRNN's kernels. Python defines these macros with -D; the defaults are for
// editors.
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
// REAL_D, REAL_H: units without the padding that fills up heads to make H a multiple of 16. The states,
// inputs and weights of padding units are 0 and stay 0, so only sums over units must leave them out. Their
// gradients may have any value.
constexpr int REAL_D = REAL_HEAD, REAL_H = HEADS * REAL_D, PADDING = H - REAL_H;
