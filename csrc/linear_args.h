/* The arguments of a linear recurrence: sizes and addresses. Arrays are contiguous. */
#pragma once
#include <stdint.h>

struct LinearArgs {
  int64_t B, T, H, K, V;
  int64_t writes;    /* writes for each output */
  int64_t channels;  /* decays per write: 0 (none), 1 or K */
  const void* q;     /* (B, T, H, K) */
  const void *k, *v; /* (B, T * writes, H, K) and (..., V) */
  const void* decay; /* (B, T * writes, H, channels), logarithms; or null */
  const void* erase; /* (B, T * writes, H, K) or null */
  const void* beta;  /* (B, T * writes, H) or null: the delta rule, erase = exp(decay) k, and beta k for k */
  const void* s0;    /* (B, H, K, V) */
  void *y, *s1;      /* (B, T, H, V) and (B, H, K, V) */
};

/* y_t = a_t * y_(t-1) + b_t for every column; complex numbers are pairs. */
struct DiagonalArgs {
  int64_t B, T, N, complex;
  const void *a, *b, *h0; /* (B, T, N), (B, T, N), (B, N) */
  void* y;                /* (B, T, N) */
};
