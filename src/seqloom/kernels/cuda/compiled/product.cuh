// Products of the rows of a block with a weight, inside a kernel that walks over time: the weight comes from
// the caches at every step, the rows and their results lie in shared memory.
#pragma once
#include "compiled/operators.cuh"

// Four numbers that are loaded at once.
template <class R>
struct alignas(16) Four {
  R v[4];
};

// Load C neighbouring numbers of a weight.
template <int TYPE, int C>
DEV void load_columns(typename Numbers<TYPE>::Real (&v)[C], const typename Numbers<TYPE>::Stored* from) {
  if constexpr (C == 1)
    v[0] = widen<TYPE>(get_constant(from));
  else {
    static_assert(C * sizeof(*from) == 16);
    u32 bits[4];
    get_constant(bits, from);
    for (int i = 0; i < 4; i++)
      if constexpr (TYPE == FP32)
        v[i] = to_float(bits[i]);
      else
        unpack<TYPE>(v[2 * i], v[2 * i + 1], bits[i]);
  }
}

// Load DEPTH neighbouring numbers of a row.
template <int DEPTH, class R>
DEV void load_factors(R (&v)[DEPTH], const R* from) {
  if constexpr (DEPTH == 4) {
    const Four<R> all = *(const Four<R>*)from;
    for (int i = 0; i < 4; i++) v[i] = all.v[i];
  } else
    v[0] = *from;
}

// Multiply M rows of (HEADS, K) with a weight (HEADS, K, N); to (PARTS, M, HEADS, N), where a part is the sum
// over SPAN of the K numbers. Row m of the source begins at (m / EACH) * stride + (m % EACH) * HEADS * K.
//   C      columns that a thread computes    DEPTH  factors that it loads at once
//   TOGETHER  rows that it multiplies with numbers of the weight that are in registers
template <int TYPE, int THREADS, int M, int EACH, int HEADS, int K, int N, int C, int SPAN, int DEPTH, int TOGETHER>
DEV void multiply(typename Numbers<TYPE>::Real* to, const typename Numbers<TYPE>::Real* source, int stride,
                  const typename Numbers<TYPE>::Stored* weight) {
  typedef typename Numbers<TYPE>::Real R;
  constexpr int GROUPS = HEADS * N / C, PARTS = (K + SPAN - 1) / SPAN;
  for (int item = thread(); item < GROUPS * PARTS; item += THREADS) {
    const int part = item / GROUPS, column = item % GROUPS * C, head = column / N;
    const int begin = part * SPAN, end = begin + SPAN < K ? begin + SPAN : K;
    const auto* const w = weight + (i64)head * K * N + column % N;
    for (int first = 0; first < M; first += TOGETHER) {
      R sums[TOGETHER][C] = {};
      const R* rows[TOGETHER];
      for (int m = 0; m < TOGETHER; m++)
        rows[m] = source + (first + m) / EACH * stride + (first + m) % EACH * HEADS * K + head * K;
#pragma unroll 4
      for (int k = begin; k < end; k += DEPTH) {
        R v[DEPTH][C];
        for (int d = 0; d < DEPTH; d++) load_columns<TYPE, C>(v[d], w + (i64)(k + d) * N);
        for (int m = 0; m < TOGETHER; m++) {
          R x[DEPTH];
          load_factors<DEPTH>(x, rows[m] + k);
          for (int d = 0; d < DEPTH; d++)
            for (int c = 0; c < C; c++) sums[m][c] = op::fma(x[d], v[d][c], sums[m][c]);
        }
      }
      for (int m = 0; m < TOGETHER; m++)
        for (int c = 0; c < C; c++) to[(part * M + first + m) * HEADS * N + column + c] = sums[m][c];
    }
  }
}

// Add up the parts of N numbers.
template <int THREADS, int PARTS, int N, class R>
DEV void add_parts(R* to, const R* parts) {
  for (int i = thread(); i < N; i += THREADS) {
    R sum = parts[i];
    for (int p = 1; p < PARTS; p++) sum += parts[p * N + i];
    to[i] = sum;
  }
}
