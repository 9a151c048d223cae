// The product of one row and a matrix in torch's layout, (out, in) row by row.
#pragma once
#include <algorithm>

#include "vec.hpp"

// The first `count` of N values, the others 0.
template <class T>
inline V<T> load_partial(const T* p, int64_t count) {
  T t[N<T>] = {};
  for (int64_t i = 0; i < count; i++) t[i] = p[i];
  return load(t);
}

template <int W, int n>
struct InPlace {  // blocks of W lanes: the even ones of a and the odd ones of b, unchanged
  static constexpr int lane(int i) { return i & W ? n + i : i; }
};
template <int W, int n>
struct Exchanged {  // the other blocks, swapped with their neighbours
  static constexpr int lane(int i) { return i & W ? n + i - W : i + W; }
};

// s[0][i] becomes the sum of all lanes of s[i]: 2 W vectors into W, W into W / 2, ...
template <class T, int W>
inline void fold(V<T>* s) {
#pragma GCC unroll 16
  for (int i = 0; i < W; i++)
    s[i] = shuffle<T, InPlace<W, N<T>>>(s[i], s[i + W]) + shuffle<T, Exchanged<W, N<T>>>(s[i], s[i + W]);
  if constexpr (W > 1) fold<T, W / 2>(s);
}

// Rows of W whose sums one pass over x computes: enough independent sums to hide the latency of a
// multiply-add, but not more streams than the hardware prefetcher can follow. ARM cores prefetch too late by
// themselves, so software prefetches AHEAD rows earlier; weights of 100 units and more come from the L2
// cache, whose latency is hidden by four sums as well: 393 KB in 10.4 us, with eight sums in 11.4, without
// AHEAD in 13.1 (Neoverse-N1, whose L2 cache delivers them in 8.5 us at best).
#ifdef __aarch64__
constexpr int STREAMS = 4, AHEAD = 4, LEAST_SUMS = 4;
#else
constexpr int STREAMS = 8, AHEAD = 0, LEAST_SUMS = 8;
#endif
// Whether the two products of a gate share their sums: reducing wide vectors costs more than reading two
// matrices alternately (an LSTM of 128 units, all products: 4.9 us apart, 4.2 in one sum with AVX-512).
constexpr bool ONE_SUM = VBYTES > 16;
template <class T>
constexpr int SUMS = N<T> < LEAST_SUMS ? LEAST_SUMS : N<T>;

// A matrix of rows of K values with a stride of `by`, the row that it is multiplied with, and the bias.
template <class T>
struct Factor {
  const T* W;
  int64_t by, K;
  const T *x, *b;
};

// s[i] += the products of the rows r, r + 1, .. of W and x, lane by lane. Rows after the last of R repeat it.
// STREAMS moving pointers stay in registers, whereas indexing SUMS rows would cost an LSTM of 128 units 2 of
// 6.2 us (AVX-512).
template <class T, bool REST>
inline void add_products(const Factor<T>& f, int64_t r, int64_t R, V<T>* s) {
  constexpr int n = N<T>, sums = SUMS<T>, line = 64 / sizeof(T);  // line: elements per cache line
  const int64_t K = f.K, rest = REST ? K % n : 0, whole = K - rest, by = f.by;
  const auto find_row = [&](int64_t i) { return f.W + std::min<int64_t>(r + i, R - 1) * by; };
#pragma GCC unroll 2
  for (int j = 0; j < sums; j += STREAMS) {
    const T *row[STREAMS], *x = f.x;
#pragma GCC unroll 8
    for (int i = 0; i < STREAMS; i++) row[i] = find_row(j + i);
    constexpr int step = AHEAD > 0 ? line : n;
    int64_t left = whole;
    for (; left >= step; left -= step, x += step) {
      if constexpr (AHEAD > 0)
#pragma GCC unroll 8
        for (int i = 0; i < STREAMS; i++) __builtin_prefetch(row[i] + AHEAD * by);
#pragma GCC unroll 8
      for (int q = 0; q < step; q += n) {
        const V<T> xk = load(x + q);
#pragma GCC unroll 8
        for (int i = 0; i < STREAMS; i++) s[j + i] += load(row[i] + q) * xk;
      }
#pragma GCC unroll 8
      for (int i = 0; i < STREAMS; i++) row[i] += step;
    }
    if constexpr (step > n)
      for (int64_t q = 0; q < left; q += n) {
        const V<T> xk = load(x + q);
#pragma GCC unroll 8
        for (int i = 0; i < STREAMS; i++) s[j + i] += load(row[i] + q) * xk;
      }
  }
  if (!REST || !rest) return;
  T end[n] = {};  // the last vector ends at the end of the row; its overlap with the previous one is 0 here
  for (int64_t i = 0; i < rest; i++) end[whole ? n - rest + i : i] = f.x[whole + i];
  const V<T> last = load(end);
#pragma GCC unroll 16
  for (int i = 0; i < sums; i++)
    s[i] += (whole ? load(find_row(i) + K - n) : load_partial(find_row(i), K)) * last;
}

// out = the sum of W x + b over some factors whose matrices have R rows. out has room for full vectors.
template <class T, int F, bool REST>
inline void multiply_groups(const Factor<T> (&factors)[F], int64_t R, T* out, bool add) {
  constexpr int n = N<T>, sums = SUMS<T>;
  for (int64_t r = 0; r < R; r += sums) {
    V<T> s[sums] = {};
#pragma GCC unroll 2
    for (int f = 0; f < F; f++) add_products<T, REST>(factors[f], r, R, s);
    const auto finish = [&](V<T>* part, int64_t at) {
      fold<T, n / 2>(part);
      V<T> all = part[0];
      const int64_t count = R - at;
#pragma GCC unroll 2
      for (int f = 0; f < F; f++)
        if (const T* b = factors[f].b) all += count >= n ? load(b + at) : load_partial(b + at, count);
      store(out + at, add ? load(out + at) + all : all);
    };
    if constexpr (sums == n)  // a non-constant index would keep the sums in memory
      finish(s, r);
    else
      for (int j = 0; j < sums && r + j < R; j += n) finish(s + j, r + j);
  }
}
template <class T, int F>
inline void multiply_row(const Factor<T> (&factors)[F], int64_t R, T* out, bool add = false) {
  bool rest = false;
  for (const Factor<T>& f : factors) rest |= f.K % N<T> != 0;
  rest ? multiply_groups<T, F, true>(factors, R, out, add)
       : multiply_groups<T, F, false>(factors, R, out, add);
}
template <class T>
inline void multiply_row(const T* W, int64_t by, int64_t R, int64_t K, const T* x, const T* b, T* out,
                         bool add = false) {
  const Factor<T> factors[] = {{W, by, K, x, b}};
  multiply_row(factors, R, out, add);
}

// Rows of x per pass over W: their sums must fit into the registers.
constexpr int TOGETHER = VBYTES == 64 ? 4 : 2 + 2 * (STREAMS == 4);

// out[m] = W x[m] + b for M rows at once, which read W once.
template <class T, int M>
inline void multiply_rows(const T* W, int64_t by, int64_t R, int64_t K, const T* const* x, const T* b,
                          T* const* out, bool add = false) {
  constexpr int n = N<T>, sums = SUMS<T>, group = 4;
  const int64_t rest = K % n, whole = K - rest;
  V<T> last[M];
  for (int m = 0; m < M; m++) {
    T end[n] = {};
    for (int64_t i = 0; i < rest; i++) end[whole ? n - rest + i : i] = x[m][whole + i];
    last[m] = load(end);
  }
  for (int64_t r = 0; r < R; r += sums) {
    V<T> s[M][sums];
    for (int j = 0; j < sums; j += group) {
      const T* row[group];
      for (int i = 0; i < group; i++) row[i] = W + std::min<int64_t>(r + j + i, R - 1) * by;
      V<T> t[M][group] = {};
      for (int64_t k = 0; k < whole; k += n) {
        V<T> w[group];
#pragma GCC unroll 4
        for (int i = 0; i < group; i++) w[i] = load(row[i] + k);
        if constexpr (AHEAD > 0)
          if (k % (64 / sizeof(T)) == 0)
#pragma GCC unroll 4
            for (int i = 0; i < group; i++) __builtin_prefetch(row[i] + AHEAD * by + k);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
          V<T> xk = load(x[m] + k);
#pragma GCC unroll 4
          for (int i = 0; i < group; i++) t[m][i] += w[i] * xk;
        }
      }
      if (rest)
#pragma GCC unroll 4
        for (int i = 0; i < group; i++) {
          const V<T> w = whole ? load(row[i] + K - n) : load_partial(row[i], K);
#pragma GCC unroll 4
          for (int m = 0; m < M; m++) t[m][i] += w * last[m];
        }
#pragma GCC unroll 4
      for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int i = 0; i < group; i++) s[m][j + i] = t[m][i];
    }
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
      for (int j = 0; j < sums; j += n) {
        const int64_t at = r + j, count = R - at;
        if (count <= 0) break;
        fold<T, n / 2>(s[m] + j);
        if (b) s[m][j] += count >= n ? load(b + at) : load_partial(b + at, count);
        store(out[m] + at, add ? load(out[m] + at) + s[m][j] : s[m][j]);
      }
  }
}
