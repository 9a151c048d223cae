// Products of the rows of a block with a weight, inside a kernel that loops over time steps: the weight is
// read from the caches in every step; the rows and the results are in shared memory.
#pragma once
#include "compiled/operators.cuh"

// Four values that are loaded at once.
template <class R>
struct alignas(16) Four {
  R v[4];
};

// Convert the values of 16 bytes (widen_columns); load and convert 16 bytes, or a single value if C is 1
// (load_columns).
template <int TYPE, int C>
DEV void widen_columns(typename Numbers<TYPE>::Real (&v)[C], const u32 (&bits)[4]) {
  for (int i = 0; i < 4; i++)
    if constexpr (TYPE == FP32)
      v[i] = to_float(bits[i]);
    else
      unpack<TYPE>(v[2 * i], v[2 * i + 1], bits[i]);
}
template <int TYPE, int C>
DEV void load_columns(typename Numbers<TYPE>::Real (&v)[C], const typename Numbers<TYPE>::Stored* from) {
  if constexpr (C == 1)
    v[0] = widen<TYPE>(get_constant(from));
  else {
    static_assert(C * sizeof(*from) == 16);
    u32 bits[4];
    get_constant(bits, from);
    widen_columns<TYPE>(v, bits);
  }
}

// Load DEPTH contiguous values of a row.
template <int DEPTH, class R>
DEV void load_factors(R (&v)[DEPTH], const R* from) {
  if constexpr (DEPTH == 4) {
    const Four<R> all = *(const Four<R>*)from;
    for (int i = 0; i < 4; i++) v[i] = all.v[i];
  } else
    v[0] = *from;
}

// Multiply M rows of (HEADS, K) by a weight (HEADS, K, N), with all threads of a block.
//   EACH      rows of the product per row of the batch: row m of the source begins at
//             (m / EACH) * stride + (m % EACH) * HEADS * K
//   C         columns per thread
//   SPAN      length of a thread's split-K slice; `add_parts` adds the slices
//   DEPTH     values of a row that a thread loads at once
//   TOGETHER  rows that a thread multiplies with each weight value it has loaded
//   KEEP      rows of the weight, of its SPAN, that a thread keeps in registers over all steps
template <int TYPE, int THREADS, int M, int EACH, int HEADS, int K, int N, int C, int SPAN, int DEPTH,
          int TOGETHER, int KEEP>
struct BlockProduct {
  typedef typename Numbers<TYPE>::Real R;
  typedef typename Numbers<TYPE>::Stored Stored;
  static constexpr int GROUPS = HEADS * N / C, PARTS = (K + SPAN - 1) / SPAN;
  static_assert(!KEEP || (C > 1 && GROUPS * PARTS <= THREADS));
  u32 kept[KEEP ? KEEP : 1][4];

  DEV void keep(const Stored* weight) {
    const int item = thread(), column = item % GROUPS * C, begin = item / GROUPS * SPAN;
    const Stored* const w = weight + (i64)(column / N) * K * N + column % N;
#pragma unroll
    for (int k = 0; k < KEEP; k++)
      if (begin + k < K) get_constant(kept[k], w + (i64)(begin + k) * N);
  }
  DEV void add(R (&sums)[TOGETHER][C], const R (&v)[DEPTH][C], const R* const (&rows)[TOGETHER], int k) {
#pragma unroll
    for (int m = 0; m < TOGETHER; m++) {
      R x[DEPTH];
      load_factors<DEPTH>(x, rows[m] + k);
#pragma unroll
      for (int d = 0; d < DEPTH; d++)
#pragma unroll
        for (int c = 0; c < C; c++) sums[m][c] = op::fma(x[d], v[d][c], sums[m][c]);
    }
  }
  // Write the slices of the product to `to`, (PARTS, M, HEADS, N).
  DEV void multiply(R* to, const R* source, int stride, const Stored* weight) {
    for (int item = thread(); item < GROUPS * PARTS; item += THREADS) {
      const int part = item / GROUPS, column = item % GROUPS * C, head = column / N;
      const int begin = part * SPAN, end = begin + SPAN < K ? begin + SPAN : K;
      const Stored* const w = weight + (i64)head * K * N + column % N;
      for (int first = 0; first < M; first += TOGETHER) {
        R sums[TOGETHER][C] = {}, v[DEPTH][C];
        const R* rows[TOGETHER];
#pragma unroll
        for (int m = 0; m < TOGETHER; m++)
          rows[m] = source + (first + m) / EACH * stride + (first + m) % EACH * HEADS * K + head * K;
        if constexpr (KEEP > 0) {
#pragma unroll
          for (int k = 0; k < KEEP; k += DEPTH) {
            if (K % SPAN && begin + k >= end) break;
#pragma unroll
            for (int d = 0; d < DEPTH; d++) widen_columns<TYPE>(v[d], kept[k + d]);
            add(sums, v, rows, begin + k);
          }
        }
#pragma unroll 2
        for (int k = begin + KEEP; k < end; k += DEPTH) {
#pragma unroll
          for (int d = 0; d < DEPTH; d++) load_columns<TYPE>(v[d], w + (i64)(k + d) * N);
          add(sums, v, rows, k);
        }
#pragma unroll
        for (int m = 0; m < TOGETHER; m++)
#pragma unroll
          for (int c = 0; c < C; c++) {
            const R v = PARTS > 1 ? sums[m][c] : widen<TYPE>(narrow<TYPE>(sums[m][c]));
            to[(part * M + first + m) * HEADS * N + column + c] = v;
          }
      }
    }
  }
};

// Add the PARTS split-K slices of N values. Round the results to the storage type, as in the buffers that are
// saved for the backward pass, so that it differentiates the values that were computed.
template <int TYPE, int THREADS, int PARTS, int N, class R>
DEV void add_parts(R* to, const R* parts) {
  for (int i = thread(); i < N; i += THREADS) {
    R sum = parts[i];
    for (int p = 1; p < PARTS; p++) sum += parts[p * N + i];
    to[i] = widen<TYPE>(narrow<TYPE>(sum));
  }
}
