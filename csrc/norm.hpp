// LayerNorm of one padded row: N(a) = xhat scale + shift. The padding is 0 before and after, and excluded
// from the sums.
#pragma once
#include "threads.hpp"
#include "vec.hpp"

template <class T>
struct Moments {
  T mean, r;  // r: 1 / deviation
};

template <class T, class F>
inline Moments<T> compute_moments(int64_t H, F at) {  // moments of the row whose vector at i is at(i)
  V<T> s{};
  const int64_t whole = H / N<T> * N<T>;
  for (int64_t i = 0; i < H; i += N<T>) s += at(i);
  const T mean = sum<T>(s) / T(H);
  s = V<T>{};
  for (int64_t i = 0; i < whole; i += N<T>) {
    V<T> z = at(i) - mean;
    s += z * z;
  }
  T variance = sum<T>(s);
  if (whole < H) {
    V<T> last = at(whole) - mean;
    for (int64_t i = 0; i < H - whole; i++) variance += last[i] * last[i];
  }
  return {mean, T(1) / std::sqrt(variance / T(H) + T(1e-5))};
}

// a -> xhat; returns r
template <class T>
inline T normalise(int64_t H, int64_t hp, T* a) {
  const Moments<T> m = compute_moments<T>(H, [&](int64_t i) { return load(a + i); });
  for (int64_t i = 0; i < hp; i += N<T>) store(a + i, (load(a + i) - m.mean) * m.r);
  for (int64_t i = H; i < hp; i++) a[i] = 0;
  return m.r;
}

// out: gradient of a, where d is that of N(a)
template <class T>
inline void back_norm(int64_t H, int64_t hp, const T* xhat, T r, const T* scale, const T* d, T* out) {
  V<T> s1{}, s2{};
  for (int64_t i = 0; i < hp; i += N<T>) {
    V<T> dx = load(d + i) * load(scale + i);
    s1 += dx, s2 += dx * load(xhat + i);
  }
  const T m1 = sum<T>(s1) / T(H), m2 = sum<T>(s2) / T(H);
  for (int64_t i = 0; i < hp; i += N<T>)
    store(out + i, r * (load(d + i) * load(scale + i) - m1 - load(xhat + i) * m2));
  for (int64_t i = H; i < hp; i++) out[i] = 0;
}

// to += the sum of a * b over some rows, for a thread's share of the columns
template <class T>
inline void sum_products(const Team& team, int64_t rows, const T* a, int64_t by_a, const T* b, int64_t by_b,
                         int64_t n, T* to) {
  const Span columns = team.share(n, N<T>);
  for (int64_t i = columns.lo; i < columns.hi; i += N<T>) {
    V<T> s{};
    for (int64_t k = 0; k < rows; k++) s += load(a + k * by_a + i) * load(b + k * by_b + i);
    store(to + i, load(to + i) + s);
  }
}
