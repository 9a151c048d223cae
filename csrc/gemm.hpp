// Small products with weights that are packed once: C[m][n] (+)= A[m][k] W[n][k].
#pragma once
#include <algorithm>

#include "memory.hpp"
#include "product.hpp"
#include "threads.hpp"

// A micro-kernel makes ROWS rows of WIDE vectors. Its sums, and the factors beside them, must fit the
// registers:
//   aarch64   32 registers: 16 sums, 8 vectors of A, 2 of W. A multiply-add takes a factor from any lane of a
//             vector, so A is loaded a vector at a time. 16 independent sums hide the latency on the widest
//             cores (4 pipes of 4 cycles).
//   AVX-512   32 registers: 24 sums, 2 vectors of W; a factor from A is broadcast by the multiply-add itself.
//   others    16 registers: 12 sums, 2 vectors of W, one broadcast from A.
#if defined(__aarch64__)
constexpr int WIDE = 2, ROWS = 8, PANELS = 4;  // PANELS: panels that a single row uses at a time
constexpr bool BY_LANE = true;
#elif VBYTES == 64
constexpr int WIDE = 2, ROWS = 12, PANELS = 2;
constexpr bool BY_LANE = false;
#else
constexpr int WIDE = 2, ROWS = 6, PANELS = 2;
constexpr bool BY_LANE = false;
#endif
template <class T>
constexpr int PANEL = WIDE * N<T>;  // columns of a micro-kernel

template <class T>
inline int64_t padded_size(int64_t n) {
  return round_up(n, PANEL<T>);
}
// The stride between padded rows: with a power of two, rows would compete for the same cache sets.
template <class T>
inline int64_t row_stride(int64_t n) {
  return round_up(n, PANEL<T>) + N<T>;
}

// A panel [k][PANEL] of `count` rows of K values with a stride of `by`.
template <class T>
inline void pack_transposed(T* to, const T* from, int64_t by, int64_t count, int64_t K) {
  const int64_t square = count == PANEL<T> ? K / N<T> * N<T> : 0;
  for (int64_t c = 0; c < square; c += N<T>)
    for (int part = 0; part < WIDE; part++) {
      V<T> v[N<T>];
      for (int j = 0; j < N<T>; j++) v[j] = load(from + (part * N<T> + j) * by + c);
      transpose<T>(v);
      for (int j = 0; j < N<T>; j++) store(to + (c + j) * PANEL<T> + part * N<T>, v[j]);
    }
  for (int64_t j = 0; j < count; j++)
    for (int64_t c = square; c < K; c++) to[c * PANEL<T> + j] = from[j * by + c];
}

// A weight matrix as panels [n / PANEL][k][PANEL]. Each gate of `hidden` rows is padded to full panels with
// zeros, so that all values that a cell computes there are 0. For products with a single row it may stay
// unpacked.
template <class T>
struct Packed {
  struct Gate {
    const T* from;
    int64_t by;
  };
  const int64_t n, k, gate;  // gate: padded rows per gate
  const bool is_unpacked;
  Gate gates[4];  // the unpacked weights
  Buffer<T> w;
  // `hidden` rows and columns per block: without padding, all elements will be written
  Packed(int64_t n, int64_t k, int64_t hidden, bool is_unpacked = false)
      : n(n), k(k), gate(padded_size<T>(hidden)), is_unpacked(is_unpacked),
        w(is_unpacked ? 0 : n * k, hidden != gate) {}

  // A thread's share of a block of `hidden` rows and columns that begins at a panel: W[row + r][col + c] =
  // from[r * rows_by + c * cols_by], where one of the two strides is 1.
  void put(const Team& team, int64_t row, int64_t col, const T* from, int64_t hidden, int64_t rows_by,
           int64_t cols_by) {
    if (is_unpacked) {
      if (!team.member) gates[row / gate] = {from, rows_by};
      return;
    }
    const Span rows = team.share(hidden, PANEL<T>);
    for (int64_t r = rows.lo; r < rows.hi; r += PANEL<T>) {
      T* to = w.p + (row + r) * k + col * PANEL<T>;
      const T* f = from + r * rows_by;
      const int64_t count = std::min<int64_t>(PANEL<T>, hidden - r);
      if (rows_by == 1) {
        if (count == PANEL<T>)  // a call of memcpy would take longer
          for (int64_t c = 0; c < hidden; c++)
            for (int j = 0; j < WIDE; j++)
              store(to + c * PANEL<T> + j * N<T>, load(f + c * cols_by + j * N<T>));
        else
          for (int64_t c = 0; c < hidden; c++)
            std::memcpy(to + c * PANEL<T>, f + c * cols_by, count * sizeof(T));
        continue;
      }
      pack_transposed(to, f, rows_by, count, hidden);
    }
  }
};

template <class T>
inline void write_row(T* to, const T* from, int64_t n, bool add) {
  if (add)
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
  else
    std::memcpy(to, from, n * sizeof(T));
}

// Multiply M rows of A with a panel of W, over K. Either the factors of a row are contiguous (ALONG), with a
// stride of `by` between rows, or those of one k for all rows, with a stride of `by` between values of k. The
// previous value of C is added last: small products added one by one to a large value would each be rounded
// to its precision. `ahead`, the next panel of W, is prefetched meanwhile.
template <class T, int M, int SETS>
struct Sums {
  V<T> c[SETS][M][WIDE];  // SETS of accumulators if a few rows would wait for their own sums

  explicit Sums(const T* bias) {
    for (int s = 0; s < SETS; s++)
      for (int m = 0; m < M; m++)
        for (int j = 0; j < WIDE; j++) c[s][m][j] = bias && !s ? load(bias + j * N<T>) : V<T>{};
  }
  void write(T* C, int64_t ldc, bool add) {
    for (int m = 0; m < M; m++)
      for (int j = 0; j < WIDE; j++) {
        V<T> s = c[0][m][j];
        for (int i = 1; i < SETS; i++) s += c[i][m][j];
        store(C + m * ldc + j * N<T>, add ? s + load(C + m * ldc + j * N<T>) : s);
      }
  }
};

// Factors are broadcast one at a time. K is a multiple of SETS.
template <class T, int M, int SETS>
INLINE void micro_broadcast(Sums<T, M, SETS>& sums, const T* A, int64_t by_m, int64_t by_k, const T* W,
                            int64_t K, const T* ahead) {
  for (int64_t k = 0; k < K; k += SETS) {
#pragma GCC unroll 4
    for (int u = 0; u < SETS; u++) {
      V<T> w[WIDE];
      for (int j = 0; j < WIDE; j++) w[j] = load(W + u * PANEL<T> + j * N<T>);
      __builtin_prefetch(ahead + u * (PANEL<T> / 2), 0, 2);
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) {
        V<T> a = all(A[m * by_m + u * by_k]);
        for (int j = 0; j < WIDE; j++) sums.c[u][m][j] += a * w[j];
      }
    }
    W += SETS * PANEL<T>, A += SETS * by_k, ahead += SETS * (PANEL<T> / 2);
  }
}

// Factors are lanes of vectors of N values of a row. K is a multiple of N.
template <class T, int M, int SETS>
INLINE void micro_along(Sums<T, M, SETS>& sums, const T* A, int64_t by, const T* W, int64_t K,
                        const T* ahead) {
  for (int64_t k = 0; k < K; k += N<T>) {
    V<T> a[M];
    for (int m = 0; m < M; m++) a[m] = load(A + m * by);
#pragma GCC unroll 4
    for (int u = 0; u < N<T>; u++) {
      // once per cache line
      if (u * (PANEL<T> / 2) * sizeof(T) % 64 == 0) __builtin_prefetch(ahead + u * (PANEL<T> / 2), 0, 2);
#pragma GCC unroll 4
      for (int j = 0; j < WIDE; j++) {
        const V<T> w = load(W + u * PANEL<T> + j * N<T>);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) sums.c[u % SETS][m][j] += all<T>(a[m][u]) * w;
      }
    }
    W += N<T> * PANEL<T>, A += N<T>, ahead += N<T> * (PANEL<T> / 2);
  }
}

// Factors are lanes of vectors of N rows for one k; reads may go past the last row, up to a full vector.
template <class T, int M>
INLINE void micro_across(Sums<T, M, 1>& sums, const T* A, int64_t by, const T* W, int64_t K) {
  constexpr int vectors = (M + N<T> - 1) / N<T>;
  for (int64_t k = 0; k < K; k++, W += PANEL<T>, A += by) {
    V<T> a[vectors];
    for (int i = 0; i < vectors; i++) a[i] = load(A + i * N<T>);
#pragma GCC unroll 4
    for (int j = 0; j < WIDE; j++) {
      const V<T> w = load(W + j * N<T>);
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) sums.c[0][m][j] += all<T>(a[m / N<T>][m % N<T>]) * w;
    }
  }
}

template <class T, int M, bool ALONG>
void micro(const T* A, int64_t by, const T* W, T* C, int64_t ldc, int64_t K, const T* bias, bool add,
           const T* ahead) {
  constexpr int SETS = ALONG && M < 4 ? 2 : 1;
  if (add)
    for (int m = 0; m < M; m++)
      for (int j = 0; j < WIDE; j++) __builtin_prefetch(C + m * ldc + j * N<T>);
  Sums<T, M, SETS> sums(bias);
  if constexpr (!BY_LANE)
    micro_broadcast<T, M, SETS>(sums, A, ALONG ? by : 1, ALONG ? 1 : by, W, K, ahead);
  else if constexpr (ALONG)
    micro_along<T, M, SETS>(sums, A, by, W, K, ahead);
  else
    micro_across<T, M>(sums, A, by, W, K);
  sums.write(C, ldc, add);
}

template <class T, bool ALONG, int M = ROWS>
inline void run_micro(int64_t rows, const T* A, int64_t by, const T* W, T* C, int64_t ldc, int64_t K,
                      const T* bias, bool add, const T* ahead) {
  if (rows == M) return micro<T, M, ALONG>(A, by, W, C, ldc, K, bias, add, ahead);
  if constexpr (M > 1) run_micro<T, ALONG, M - 1>(rows, A, by, W, C, ldc, K, bias, add, ahead);
}

// A single row: several panels at a time, to hide the latency of the sums. K is a multiple of N, and of 2.
template <class T>
void micro_one(const T* A, const T* W, int64_t next, T* C, int64_t K, const T* bias, bool add) {
  constexpr int n = N<T>, vectors = PANELS * WIDE, steps = BY_LANE ? n : 2;
  V<T> c[2][vectors];
  for (int j = 0; j < vectors; j++) c[0][j] = bias ? load(bias + j * n) : V<T>{}, c[1][j] = V<T>{};
  for (int64_t k = 0; k < K; k += steps) {
    V<T> lanes{};
    if constexpr (BY_LANE) lanes = load(A + k);
#pragma GCC unroll 4
    for (int u = 0; u < steps; u++) {
      const V<T> a = all<T>(BY_LANE ? lanes[u] : A[k + u]);
#pragma GCC unroll 8
      for (int j = 0; j < vectors; j++)
        c[u % 2][j] += a * load(W + j / WIDE * next + (k + u) * PANEL<T> + j % WIDE * n);
    }
  }
  for (int j = 0; j < vectors; j++) store(C + j * n, c[0][j] + c[1][j] + (add ? load(C + j * n) : V<T>{}));
}

constexpr int DEEP = 256;  // rows of a panel that stay in the L1 cache

// Compute the columns `columns` of every gate. Results do not depend on how columns are divided among
// threads.
template <class T>
inline void gemm(const T* A, int64_t lda, const Packed<T>& W, T* C, int64_t ldc, int64_t M, const T* bias,
                 Span columns, bool add = false) {
  const int64_t blocks = (M + ROWS - 1) / ROWS, deep = M > 3 ? DEEP : W.k;
  for (int64_t gate = 0; gate < W.n; gate += W.gate) {
    int64_t n = gate + columns.lo;
    const int64_t end = gate + columns.hi;
    if (W.is_unpacked) {
      const auto& [from, by] = W.gates[gate / W.gate];
      multiply_row<T>(from + columns.lo * by, by, columns.hi - columns.lo, W.k, A, bias ? bias + n : nullptr,
                      C + n, add);
      continue;
    }
    if (M == 1)
      for (; n + PANELS * PANEL<T> <= end; n += PANELS * PANEL<T>)
        micro_one<T>(A, W.w + n * W.k, W.k * PANEL<T>, C + n, W.k, bias ? bias + n : nullptr, add);
    for (; n < end; n += PANEL<T>)
      for (int64_t k = 0; k < W.k; k += deep) {
        const int64_t K = std::min<int64_t>(deep, W.k - k);
        const T *w = W.w + n * W.k + k * PANEL<T>, *b = bias && !k ? bias + n : nullptr;
        for (int64_t i = 0, m = 0; i < blocks; i++) {
          const int64_t rows = (M - m + blocks - i - 1) / (blocks - i);
          // each of the first two blocks prefetches half
          const T* ahead = i < 2 ? w + K * PANEL<T> + i * K * (PANEL<T> / 2) : w;
          run_micro<T, true>(rows, A + m * lda + k, lda, w, C + m * ldc + n, ldc, K, b, add || k, ahead);
          m += rows;
        }
      }
  }
}

// Sums of outer products, C[m][n] += D[k][m] X[k][n], for the gradients of weights: a few rows k at a time. C
// is stored as panels [n / PANEL][m][PANEL], and X and D are packed, so that a micro-kernel reads and writes
// contiguous memory.
template <class T>
struct Outer {
  int64_t m, n;
  Buffer<T> c;
  Outer(int64_t m, int64_t n) : m(m), n(n), c(m * n, false) {}

  static int64_t room(int64_t rows, int64_t m) {
    return std::min<int64_t>(rows, DEEP / 2) * (m + PANEL<T>)+N<T>;
  }

  void clear(const Team& team) {
    const Span columns = team.share(n, PANEL<T>);
    if (m && columns.lo < columns.hi)
      std::memset(c + columns.lo * m, 0, (columns.hi - columns.lo) * m * sizeof(T));
  }
  // a thread's share of the columns, with its own scratch memory; the first sums overwrite instead of
  // accumulate
  void add(const Team& team, int64_t rows, const T* D, int64_t ldd, const T* X, int64_t ldx, T* room,
           bool is_first) {
    add_to(c, PANEL<T>, m * PANEL<T>, team, m, n, rows, D, ldd, X, ldx, room, is_first);
  }
  // All sums at once, m x n full panels, written to a matrix of the caller.
  static void put(T* to, int64_t ldt, const Team& team, int64_t m, int64_t n, int64_t rows, const T* D,
                  int64_t ldd, const T* X, int64_t ldx, T* room) {
    add_to(to, ldt, PANEL<T>, team, m, n, rows, D, ldd, X, ldx, room, true);
  }
  // `by_row`, `by_panel`: strides of C between rows of a panel and between panels
  static void add_to(T* C, int64_t by_row, int64_t by_panel, const Team& team, int64_t m, int64_t n,
                     int64_t rows, const T* D, int64_t ldd, const T* X, int64_t ldx, T* room, bool is_first) {
    const Span columns = team.share(n, PANEL<T>);
    const int64_t blocks = (m + ROWS - 1) / ROWS;
    auto size = [&](int64_t i, int64_t at) { return (m - at + blocks - i - 1) / (blocks - i); };
    for (int64_t k0 = 0; k0 < rows; k0 += DEEP / 2) {
      const int64_t K = std::min<int64_t>(DEEP / 2, rows - k0);
      T *x = room, *d = room + K * PANEL<T>;
      for (int64_t i = 0, at = 0, count; i < blocks; i++, at += count) {
        count = size(i, at);
        for (int64_t k = 0; k < K; k++)  // full vectors: the next row overwrites the excess
          for (int64_t j = 0; j < count; j += N<T>)
            store(d + at * K + k * count + j, load(D + (k0 + k) * ldd + at + j));
      }
      for (int64_t j = columns.lo; j < columns.hi; j += PANEL<T>) {
        for (int64_t k = 0; k < K; k++)
          for (int e = 0; e < WIDE; e++)
            store(x + k * PANEL<T> + e * N<T>, load(X + (k0 + k) * ldx + j + e * N<T>));
        for (int64_t i = 0, at = 0, count; i < blocks; i++, at += count) {
          count = size(i, at);
          run_micro<T, false>(count, d + at * K, count, x, C + j / PANEL<T> * by_panel + at * by_row, by_row,
                              K, nullptr, !is_first || k0, x);
        }
      }
    }
  }
  // a thread's share of the rows x wide block that begins at `row`, written or added to a matrix of the
  // caller
  void write(const Team& team, T* to, int64_t ldt, int64_t row, int64_t rows, int64_t wide, bool add) const {
    const Span columns = team.share(wide, PANEL<T>);
    for (int64_t j = columns.lo; j < columns.hi; j += PANEL<T>)
      for (int64_t r = 0; r < rows; r++)
        if (!add && wide - j >= PANEL<T>)  // a call of memcpy takes longer than such a copy
          for (int e = 0; e < WIDE; e++)
            store(to + r * ldt + j + e * N<T>, load(c + j * m + (row + r) * PANEL<T> + e * N<T>));
        else
          write_row<T>(to + r * ldt + j, c + j * m + (row + r) * PANEL<T>,
                       std::min<int64_t>(PANEL<T>, wide - j), add);
  }
};
