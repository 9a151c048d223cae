// What the kernels of gated cells are compiled for. Python gives these macros with -D; the values here serve
// editors.
#pragma once
#ifndef BACK
#define BACK 0  // reverse_step.cuh has 1
#endif
#ifndef INPUTS        // a compiled cell has its own
#define INPUTS GATES  // planes of x
#define VECTORS 0     // planes of weights that meet units elementwise
#define OUTPUT 0      // which of the states is the output; the product reads state 0
#endif
#if VECTORS
#define VECTOR_ARGUMENT(v) , v
#else
#define VECTOR_ARGUMENT(v)
#endif
#ifndef CLUSTERED
#define CLUSTERED 0  // with GRID: groups are clusters, too
#endif
#ifndef SUMMED
#define SUMMED 0  // the first gates whose x and u are kept as their sum
#endif
#ifndef TAKEN
#define TAKEN ROWS  // of the rows that a block or a cluster has room for, those that it takes
#endif
#ifndef KEPT
#define KEPT 0  // in the backward pass: the forward pass has kept products of normalised gates
#endif
#ifndef HIDDEN
#define HIDDEN 64  // units, a multiple of 16
#define CELL gru   // gated/<CELL>.cuh has the equations of the cell
#define NORM 0     // the products are normalised
#define MEMORY 0   // so is the LSTM's memory
#define MASK 1     // recurrent dropout
#define KEEP 1     // zoneout
#define RESET 1
#define TF32 0       // whether products of float32 may round to 19 bits (TF32)
#define GRID 0       // 1: groups of blocks anywhere on the GPU, 0: one block or a cluster
#define ROWS 8       // of the batch that a block, a cluster or a group carries: 8 or 16
#define CLUSTER 2    // blocks of a cluster or a group
#define IN_SHARED 0  // of a warp's tiles of weights, how many lie in shared memory, not in registers
#endif
