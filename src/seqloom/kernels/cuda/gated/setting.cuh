// Compile-time settings of the kernels of gated cells. Python sets these macros with -D; the defaults are for
// editors.
#pragma once
#ifndef BACK
#define BACK 0  // 1 in the backward pass (reverse_step.cuh)
#endif
#ifndef INPUTS        // compiled cells define their own
#define INPUTS GATES  // arrays of H values in x, per row and step
#define VECTORS 0     // elementwise weight vectors of length H
#define OUTPUT 0      // index of the output state; U multiplies state 0
#endif
#if VECTORS
#define VECTOR_ARGUMENT(v) , v
#else
#define VECTOR_ARGUMENT(v)
#endif
#ifndef CLUSTERED
#define CLUSTERED 0  // with GRID: whether each group of blocks is also a cluster
#endif
#ifndef SUMMED
#define SUMMED 0  // the first SUMMED gates save x + u instead of x and u
#endif
#ifndef TAKEN
#define TAKEN ROWS  // rows that a block or cluster processes, at most ROWS
#endif
#ifndef KEPT
#define KEPT 0  // backward pass: whether the forward pass saved the products of normalised gates
#endif
#ifndef HIDDEN
#define HIDDEN 64  // units, a multiple of 16
#define CELL gru   // gated/<CELL>.cuh has the equations of the cell
#define NORM 0     // whether U h is layer-normalised
#define MEMORY 0   // whether the LSTM's memory is layer-normalised
#define MASK 1     // recurrent dropout
#define KEEP 1     // zoneout
#define RESET 1
#define TF32 0       // whether float32 products may use TF32 (19 bits)
#define GRID 0       // 1: groups of blocks anywhere on the GPU, 0: one block or a cluster
#define ROWS 8       // rows of the batch per block, cluster or group: 8 or 16
#define CLUSTER 2    // blocks per cluster or group
#define IN_SHARED 0  // weight tiles per warp in shared memory instead of registers
#endif
