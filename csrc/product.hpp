// One row with a matrix as torch has it, (out, in) row by row.
#pragma once
#include <algorithm>

#include "vec.hpp"

// The first `some` of N numbers, the others 0.
template <class T>
inline V<T> load_some(const T* p, int64_t some) {
  T t[N<T>] = {};
  for (int64_t i = 0; i < some; i++) t[i] = p[i];
  return load(t);
}

template <class T>
inline V<T> shuffled(V<T> a, V<T> b, typename Simd<T>::I from) {
#ifdef __clang__
  V<T> v;
  for (int i = 0; i < N<T>; i++) v[i] = from[i] < N<T> ? a[from[i]] : b[from[i] - N<T>];
  return v;
#else
  return __builtin_shuffle(a, b, from);
#endif
}

// s[0][i] becomes the sum of all of s[i]: 2 W vectors into W, W into W / 2, ...
template <class T, int W>
inline void fold(V<T>* s) {
  typename Simd<T>::I here, there;
  for (int i = 0; i < N<T>; i++) here[i] = i & W ? N<T> + i : i, there[i] = i & W ? N<T> + i - W : i + W;
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) s[i] = shuffled<T>(s[i], s[i + W], here) + shuffled<T>(s[i], s[i + W], there);
  if constexpr (W > 1) fold<T, W / 2>(s);
}

// out = W x + b for one row x of K numbers; W has R rows, `by` numbers apart. N sums at a time; out has room for whole vectors.
template <class T>
inline void product(const T* W, int64_t by, int64_t R, int64_t K, const T* x, const T* b, T* out, bool add = false) {
  constexpr int n = N<T>;
  const int64_t rest = K % n, whole = K - rest;
  T end[n] = {};  // the last vector ends where the row ends; what it shares with the one before is 0 here
  for (int64_t i = 0; i < rest; i++) end[whole ? n - rest + i : i] = x[whole + i];
  const V<T> last = load(end);
  for (int64_t r = 0; r < R; r += n) {
    const int64_t some = std::min<int64_t>(n, R - r);
    const T* row[n];
    for (int i = 0; i < n; i++) row[i] = W + (r + std::min<int64_t>(i, some - 1)) * by;
    V<T> s[n] = {};
    constexpr int group = n < 8 ? n : 8;  // rows side by side: enough sums to keep the machine busy, few enough places to read
#pragma GCC unroll 2
    for (int j = 0; j < n; j += group)
      for (int64_t k = 0; k < whole; k += n) {
        V<T> xk = load(x + k);
#pragma GCC unroll 8
        for (int i = j; i < j + group; i++) s[i] += load(row[i] + k) * xk;
      }
    if (rest)
#pragma GCC unroll 16
      for (int i = 0; i < n; i++) s[i] += (whole ? load(row[i] + K - n) : load_some(row[i], K)) * last;
    fold<T, n / 2>(s);
    if (b) s[0] += some == n ? load(b + r) : load_some(b + r, some);
    store(out + r, add ? load(out + r) + s[0] : s[0]);
  }
}
