// Small products with weights that are packed once: C[m][n] (+)= A[m][k] W[n][k].
#pragma once
#include <cstdlib>
#include <new>

#include "vec.hpp"

template <class T>
constexpr int PANEL = 4 * N<T>;  // columns that one micro-kernel makes

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

template <class T>
inline int64_t padded(int64_t n) {
  return round_up(n, PANEL<T>);
}

// Memory for one thread, aligned, zeroed, given back at the end of its scope.
template <class T>
struct Buffer {
  T* p;
  explicit Buffer(int64_t n) {
    size_t bytes = round_up((n > 0 ? n : 1) * sizeof(T), 64);
    p = (T*)std::aligned_alloc(64, bytes);
    if (!p) throw std::bad_alloc();
    std::memset(p, 0, bytes);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(p); }
  operator T*() const { return p; }
};

// A weight matrix as panels [n / PANEL][k][PANEL]. Each gate of `hidden` rows is padded to whole panels; what is padded is 0,
// and with it every value that a cell computes there.
template <class T>
struct Packed {
  int64_t n, k;
  Buffer<T> w;
  // W[row][col] = from[row * rows_by + col * cols_by]: `gates` blocks of `hidden` rows, `cols` columns
  Packed(const T* from, int64_t gates, int64_t hidden, int64_t cols, int64_t rows_by, int64_t cols_by)
      : n(gates * padded<T>(hidden)), k(padded<T>(cols)), w(n * k) {
    for (int64_t g = 0; g < gates; g++)
      put(g * padded<T>(hidden), 0, from + g * hidden * rows_by, hidden, cols, rows_by, cols_by);
  }
  Packed(int64_t n, int64_t k) : n(n), k(k), w(n * k) {}
  // a block of it, read in the order it lies in memory
  void put(int64_t row, int64_t col, const T* from, int64_t rows, int64_t cols, int64_t rows_by, int64_t cols_by) {
    if (cols_by == 1) {
      for (int64_t r = 0; r < rows; r++) {
        T* to = at(row + r, col);
        for (int64_t c = 0; c < cols; c++) to[c * PANEL<T>] = from[r * rows_by + c];
      }
      return;
    }
    for (int64_t r = 0; r < rows; r += PANEL<T>)  // rows begin at a panel here
      for (int64_t c = 0; c < cols; c++) {
        T* to = at(row + r, col + c);
        const T* f = from + r * rows_by + c * cols_by;
        int64_t some = rows - r < PANEL<T> ? rows - r : PANEL<T>;
        for (int64_t j = 0; j < some; j++) to[j] = f[j * rows_by];
      }
  }
  T* at(int64_t row, int64_t col) const { return w.p + (row / PANEL<T> * k + col) * PANEL<T> + row % PANEL<T>; }
};

// What C held is added last: small products added one by one to a large number would each be rounded to its size.
template <class T, int M>
inline void micro(const T* A, int64_t lda, const T* W, T* C, int64_t ldc, int64_t K, const T* bias, bool add) {
  constexpr int n = N<T>;
  V<T> c[M][4];
  for (int m = 0; m < M; m++)
    for (int j = 0; j < 4; j++) c[m][j] = bias ? load(bias + j * n) : V<T>{};
  for (int64_t k = 0; k < K; k++) {
    V<T> w[4];
    for (int j = 0; j < 4; j++) w[j] = load(W + k * PANEL<T> + j * n);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      V<T> a = all(A[m * lda + k]);
      for (int j = 0; j < 4; j++) c[m][j] += a * w[j];
    }
  }
  for (int m = 0; m < M; m++)
    for (int j = 0; j < 4; j++) store(C + m * ldc + j * n, add ? c[m][j] + load(C + m * ldc + j * n) : c[m][j]);
}

// One row alone waits for its own sums, so there are two sets of them, and for the weights, so they are asked for ahead.
constexpr int AHEAD = 16;

template <class T>
inline void micro_one(const T* A, const T* W, T* C, int64_t K, const T* bias, bool add) {
  constexpr int n = N<T>;
  V<T> c[4], d[4];
  for (int j = 0; j < 4; j++) c[j] = bias ? load(bias + j * n) : V<T>{}, d[j] = V<T>{};
  for (int64_t k = 0; k < K; k += 2) {
    V<T> a = all(A[k]), b = all(A[k + 1]);
    for (int j = 0; j < 8; j++) __builtin_prefetch(W + (k + AHEAD) * PANEL<T> + j * n);
    for (int j = 0; j < 4; j++) {
      c[j] += a * load(W + k * PANEL<T> + j * n);
      d[j] += b * load(W + (k + 1) * PANEL<T> + j * n);
    }
  }
  for (int j = 0; j < 4; j++) store(C + j * n, add ? c[j] + d[j] + load(C + j * n) : c[j] + d[j]);
}

constexpr int ROWS = VBYTES == 64 ? 6 : 3;  // rows of one micro-kernel: 4 ROWS sums must fit the registers

template <class T>
inline void gemm(const T* A, int64_t lda, const Packed<T>& W, T* C, int64_t ldc, int64_t M, const T* bias, bool add = false) {
  for (int64_t n = 0; n < W.n; n += PANEL<T>) {
    const T *w = W.w + n * W.k, *b = bias ? bias + n : nullptr;
    int64_t m = 0;
    for (; m + ROWS <= M; m += ROWS) micro<T, ROWS>(A + m * lda, lda, w, C + m * ldc + n, ldc, W.k, b, add);
    const T* a = A + m * lda;
    T* c = C + m * ldc + n;
    switch (M - m) {
      case 5: micro<T, 5>(a, lda, w, c, ldc, W.k, b, add); break;
      case 4: micro<T, 4>(a, lda, w, c, ldc, W.k, b, add); break;
      case 3: micro<T, 3>(a, lda, w, c, ldc, W.k, b, add); break;
      case 2: micro<T, 2>(a, lda, w, c, ldc, W.k, b, add); break;
      case 1: micro_one<T>(a, w, c, W.k, b, add); break;
    }
  }
}
