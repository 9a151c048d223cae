/* The plain C interface of the vector machine. seqloom/kernels/cpu/machine.py writes the code. */
#pragma once
#include <stdint.h>

struct MachineArgs {
  int64_t B, T;
  int64_t columns;         /* 1: threads divide columns and iterations; 0: the rows of the batch */
  int64_t packed;          /* packed rows of all steps */
  const int64_t* code;     /* the program, which seqloom_check_machine has accepted */
  const double* constants; /* the constants that it uses */
  void* const* buffers;    /* addresses, in the program's order; 0 if the machine allocates the memory */
  const int64_t* lengths;  /* of the buffers, in elements; as many as buffers */
  int64_t many;            /* number of buffers */
  const char* transposed;  /* for each buffer: 1 if a weight lies as (heads, columns, K) */
  const int64_t* offset;   /* (T): the first packed row of a step */
  const int64_t* count;    /* (T): its rows, from 0 to B, never more than in the previous step */
};
