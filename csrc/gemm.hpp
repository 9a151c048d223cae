// Small products with weights that are packed once: C[m][n] (+)= A[m][k] W[n][k].
#pragma once
#include <algorithm>

#include "memory.hpp"
#include "product.hpp"
#include "threads.hpp"

template <class T>
constexpr int PANEL = 2 * N<T>;  // columns that one micro-kernel makes

template <class T>
inline int64_t padded(int64_t n) {
  return round_up(n, PANEL<T>);
}
// The way from one padded row to the next: rows a power of two apart would share their places in the cache.
template <class T>
inline int64_t apart(int64_t n) {
  return round_up(n, PANEL<T>) + N<T>;
}

// A weight matrix as panels [n / PANEL][k][PANEL]. Each gate of `hidden` rows is padded to whole panels; what is padded is 0,
// and with it every value that a cell computes there. For products with one row alone it may be left as it is.
template <class T>
struct Packed {
  struct Gate {
    const T* from;
    int64_t by;
  };
  const int64_t n, k, gate;  // gate: rows of one, padded
  const bool as_is;
  Gate gates[4];             // where they are as they are
  Buffer<T> w;
  // `hidden` rows and columns in each block: without padding, all of it will be written
  Packed(int64_t n, int64_t k, int64_t hidden, bool as_is = false)
      : n(n), k(k), gate(padded<T>(hidden)), as_is(as_is), w(as_is ? 0 : n * k, hidden != gate) {}

  // A thread's share of a block of `hidden` rows and columns, which begins at a panel:
  // W[row + r][col + c] = from[r * rows_by + c * cols_by], one of the two being 1.
  void put(const Team& team, int64_t row, int64_t col, const T* from, int64_t hidden, int64_t rows_by, int64_t cols_by) {
    if (as_is) {
      if (!team.member) gates[row / gate] = {from, rows_by};
      return;
    }
    const Span mine = team.share(hidden, PANEL<T>);
    for (int64_t r = mine.lo; r < mine.hi; r += PANEL<T>) {
      T* to = w.p + (row + r) * k + col * PANEL<T>;
      const T* f = from + r * rows_by;
      const int64_t some = std::min<int64_t>(PANEL<T>, hidden - r);
      if (rows_by == 1) {
        for (int64_t c = 0; c < hidden; c++) std::memcpy(to + c * PANEL<T>, f + c * cols_by, some * sizeof(T));
        continue;
      }
      const int64_t square = some == PANEL<T> ? hidden / N<T> * N<T> : 0;
      for (int64_t c = 0; c < square; c += N<T>)
        for (int half = 0; half < 2; half++) {
          V<T> v[N<T>];
          for (int j = 0; j < N<T>; j++) v[j] = load(f + (half * N<T> + j) * rows_by + c);
          transpose<T>(v);
          for (int j = 0; j < N<T>; j++) store(to + (c + j) * PANEL<T> + half * N<T>, v[j]);
        }
      for (int64_t j = 0; j < some; j++)
        for (int64_t c = square; c < hidden; c++) to[c * PANEL<T> + j] = f[j * rows_by + c];
    }
  }
};

template <class T>
inline void give_row(T* to, const T* from, int64_t n, bool add) {
  if (add)
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
  else
    std::memcpy(to, from, n * sizeof(T));
}

// M rows of A (elements `by_m` and `by_k` apart) with a panel of W. What C held is added last: small products added one by
// one to a large number would each be rounded to its size. UNROLL sets of sums where a few rows would wait for their own.
// `ahead` is asked for meanwhile: the weights of the next panel.
template <class T, int M, int UNROLL>
void micro(const T* A, int64_t by_m, int64_t by_k, const T* W, T* C, int64_t ldc, int64_t K, const T* bias, bool add, const T* ahead) {
  constexpr int n = N<T>;
  if (add)
    for (int m = 0; m < M; m++) __builtin_prefetch(C + m * ldc), __builtin_prefetch(C + m * ldc + n);
  V<T> c[UNROLL][M][2];
  for (int u = 0; u < UNROLL; u++)
    for (int m = 0; m < M; m++)
      for (int j = 0; j < 2; j++) c[u][m][j] = bias && !u ? load(bias + j * n) : V<T>{};
  for (int64_t k = 0; k < K; k += UNROLL) {  // where UNROLL is not 1, K is a multiple of it
#pragma GCC unroll 4
    for (int u = 0; u < UNROLL; u++) {
      V<T> w0 = load(W + u * 2 * n), w1 = load(W + u * 2 * n + n);
      __builtin_prefetch(ahead + u * n, 0, 2);
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) {
        V<T> a = all(A[m * by_m + u * by_k]);
        c[u][m][0] += a * w0, c[u][m][1] += a * w1;
      }
    }
    W += UNROLL * 2 * n, A += UNROLL * by_k, ahead += UNROLL * n;
  }
  for (int m = 0; m < M; m++)
    for (int j = 0; j < 2; j++) {
      V<T> s = c[0][m][j];
      for (int u = 1; u < UNROLL; u++) s += c[u][m][j];
      store(C + m * ldc + j * n, add ? s + load(C + m * ldc + j * n) : s);
    }
}

constexpr int ROWS = VBYTES == 64 ? 12 : 6;  // rows of one micro-kernel: 2 ROWS sums must fit the registers

template <class T, int M = ROWS>
inline void micro_of(int64_t rows, const T* A, int64_t by_m, int64_t by_k, const T* W, T* C, int64_t ldc, int64_t K, const T* bias,
                     bool add, const T* ahead) {
  if (rows == M) return micro<T, M, M < 4 ? 2 : 1>(A, by_m, by_k, W, C, ldc, K, bias, add, ahead);
  if constexpr (M > 1) micro_of<T, M - 1>(rows, A, by_m, by_k, W, C, ldc, K, bias, add, ahead);
}

// One row alone: two panels at a time, or it would wait for its own sums.
template <class T>
void micro_one(const T* A, const T* W, int64_t next, T* C, int64_t K, const T* bias, bool add) {
  constexpr int n = N<T>;
  V<T> c[2][4];
  for (int j = 0; j < 4; j++) c[0][j] = bias ? load(bias + j * n) : V<T>{}, c[1][j] = V<T>{};
  for (int64_t k = 0; k < K; k += 2)
#pragma GCC unroll 2
    for (int u = 0; u < 2; u++) {
      const V<T> a = all(A[k + u]);
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++) c[u][j] += a * load(W + j / 2 * next + (k + u) * PANEL<T> + j % 2 * n);
    }
  for (int j = 0; j < 4; j++) store(C + j * n, c[0][j] + c[1][j] + (add ? load(C + j * n) : V<T>{}));
}

constexpr int DEEP = 256;  // rows of a panel that stay in the first cache

// The columns `mine` of every gate. What a number is does not depend on who else makes which.
template <class T>
inline void gemm(const T* A, int64_t lda, const Packed<T>& W, T* C, int64_t ldc, int64_t M, const T* bias, Span mine, bool add = false) {
  const int64_t blocks = (M + ROWS - 1) / ROWS, deep = M > 3 ? DEEP : W.k;
  for (int64_t gate = 0; gate < W.n; gate += W.gate) {
    int64_t n = gate + mine.lo;
    const int64_t end = gate + mine.hi;
    if (W.as_is) {
      const auto& [from, by] = W.gates[gate / W.gate];
      product<T>(from + mine.lo * by, by, mine.hi - mine.lo, W.k, A, bias ? bias + n : nullptr, C + n, add);
      continue;
    }
    if (M == 1)
      for (; n + 2 * PANEL<T> <= end; n += 2 * PANEL<T>)
        micro_one<T>(A, W.w + n * W.k, W.k * PANEL<T>, C + n, W.k, bias ? bias + n : nullptr, add);
    for (; n < end; n += PANEL<T>)
      for (int64_t k = 0; k < W.k; k += deep) {
        const int64_t K = std::min<int64_t>(deep, W.k - k);
        const T *w = W.w + n * W.k + k * PANEL<T>, *b = bias && !k ? bias + n : nullptr;
        for (int64_t i = 0, m = 0; i < blocks; i++) {
          const int64_t rows = (M - m + blocks - i - 1) / (blocks - i);
          const T* ahead = i < 2 ? w + K * PANEL<T> + i * K * N<T> : w;  // each of the first two blocks asks for half
          micro_of<T>(rows, A + m * lda + k, lda, 1, w, C + m * ldc + n, ldc, K, b, add || k, ahead);
          m += rows;
        }
      }
  }
}

// Sums of outer products, C[m][n] += D[k][m] X[k][n], for the gradients of weights: a few rows k at a time. C is kept as
// panels [n / PANEL][m][PANEL], X and D are packed: what a micro-kernel reads and writes lies in one piece.
template <class T>
struct Outer {
  int64_t m, n;
  Buffer<T> c;
  Outer(int64_t m, int64_t n) : m(m), n(n), c(m * n, false) {}

  static int64_t room(int64_t rows, int64_t m) { return std::min<int64_t>(rows, DEEP / 2) * (m + PANEL<T>) + N<T>; }

  void clear(const Team& team) {
    const Span mine = team.share(n, PANEL<T>);
    if (m && mine.lo < mine.hi) std::memset(c + mine.lo * m, 0, (mine.hi - mine.lo) * m * sizeof(T));
  }
  // a thread's share of the columns, with a room of its own
  void add(const Team& team, int64_t rows, const T* D, int64_t ldd, const T* X, int64_t ldx, T* room) {
    const Span mine = team.share(n, PANEL<T>);
    const int64_t blocks = (m + ROWS - 1) / ROWS;
    auto size = [&](int64_t i, int64_t at) { return (m - at + blocks - i - 1) / (blocks - i); };
    for (int64_t k0 = 0; k0 < rows; k0 += DEEP / 2) {
      const int64_t K = std::min<int64_t>(DEEP / 2, rows - k0);
      T *x = room, *d = room + K * PANEL<T>;
      for (int64_t i = 0, at = 0, some; i < blocks; i++, at += some) {
        some = size(i, at);
        for (int64_t k = 0; k < K; k++)  // whole vectors: the next row writes over what is too much
          for (int64_t j = 0; j < some; j += N<T>) store(d + at * K + k * some + j, load(D + (k0 + k) * ldd + at + j));
      }
      for (int64_t j = mine.lo; j < mine.hi; j += PANEL<T>) {
        for (int64_t k = 0; k < K; k++)
          for (int e = 0; e < 2; e++) store(x + k * PANEL<T> + e * N<T>, load(X + (k0 + k) * ldx + j + e * N<T>));
        for (int64_t i = 0, at = 0, some; i < blocks; i++, at += some) {
          some = size(i, at);
          micro_of<T>(some, d + at * K, 1, some, x, c + j * m + at * PANEL<T>, PANEL<T>, K, nullptr, true, x);
        }
      }
    }
  }
  // a thread's share of the block that begins at `row`, to a matrix of the caller's, put there or added
  void give(const Team& team, T* to, int64_t ldt, int64_t row, int64_t hidden, bool add) const {
    const Span mine = team.share(hidden, PANEL<T>);
    for (int64_t j = mine.lo; j < mine.hi; j += PANEL<T>)
      for (int64_t r = 0; r < hidden; r++)
        give_row<T>(to + r * ldt + j, c + j * m + (row + r) * PANEL<T>, std::min<int64_t>(PANEL<T>, hidden - j), add);
  }
};
