/* The plain C interface of a pass of a compiled cell. seqloom/kernels/cpu/cell_pass.py writes the code. */
#pragma once
#include <stdint.h>

struct PassArgs {
  int64_t B, steps;    /* rows of the batch; steps of the padded batch */
  int64_t time_first;  /* 1: inputs and outputs are (steps, B, ...); 0: (B, steps, ...) */
  int64_t columns;     /* as in MachineArgs */
  const int64_t* code; /* buffers and operations; the programs in it were accepted by seqloom_check_machine */
  int64_t length;      /* of the code */
  const double* constants; /* those of all programs */
  int64_t numbers;         /* how many these are */
  int64_t many;            /* tensors of the caller */
  const int64_t* lengths;  /* (B), the real steps of each row; null if all are real */
  /* the addresses of the tensors (0 if absent) and their lengths follow */
};
