// Vectors of T as wide as this build's registers, and the functions of a gate on them. Written with the
// vector extension of g++ and clang: one source for every instruction set.
#pragma once
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>

#if !defined(__GNUC__) && !defined(__clang__)
#error "the engine needs a compiler with GNU vector extensions: g++, clang++, or clang-cl on Windows"
#endif

#define INLINE inline __attribute__((always_inline))

#ifndef VBYTES
#define VBYTES 16
#endif

template <class T>
struct Simd;

template <>
struct Simd<float> {
  typedef float V __attribute__((vector_size(VBYTES)));
  typedef float Any __attribute__((vector_size(VBYTES), aligned(4), may_alias));  // at any address
  typedef int32_t I __attribute__((vector_size(VBYTES)));
};

template <>
struct Simd<double> {
  typedef double V __attribute__((vector_size(VBYTES)));
  typedef double Any __attribute__((vector_size(VBYTES), aligned(8), may_alias));
  typedef int64_t I __attribute__((vector_size(VBYTES)));
};

template <class T>
using V = typename Simd<T>::V;
template <class T>
constexpr int N = VBYTES / sizeof(T);

template <class T>
inline V<T> load(const T* p) {
  return *(const typename Simd<T>::Any*)p;
}
template <class T>
inline void store(T* p, V<T> v) {
  *(typename Simd<T>::Any*)p = v;
}
template <class T>
inline V<T> all(T x) {
  return x - V<T>{};
}
// The lanes `FROM(i)` of two vectors, numbered across both. FROM is a constexpr function.
template <class T, class FROM, int... i>
inline V<T> shuffle_lanes(V<T> a, V<T> b, std::integer_sequence<int, i...>) {
#ifdef __clang__
  return __builtin_shufflevector(a, b, FROM::lane(i)...);
#else
  return __builtin_shuffle(a, b, typename Simd<T>::I{FROM::lane(i)...});
#endif
}
template <class T, class FROM>
inline V<T> shuffle(V<T> a, V<T> b) {
  return shuffle_lanes<T, FROM>(a, b, std::make_integer_sequence<int, N<T>>());
}
template <int W>
struct Other {  // the lane whose index differs in bit W
  static constexpr int lane(int i) { return i ^ W; }
};
template <int W, int n>
struct Upper {  // blocks of W lanes: the even ones of a, each followed by the even one of b
  static constexpr int lane(int i) { return i & W ? n + i - W : i; }
};
template <int W, int n>
struct Lower {  // the odd ones of a and b
  static constexpr int lane(int i) { return i & W ? n + i : i + W; }
};

// The sum of all lanes.
template <class T, int W = N<T> / 2>
inline T sum(V<T> v) {
  v += shuffle<T, Other<W>>(v, v);
  if constexpr (W > 1)
    return sum<T, W / 2>(v);
  else
    return v[0];
}
// Transpose N vectors as a square matrix: swap blocks of size W across the diagonal, W = N / 2, N / 4, ...
template <class T, int W = N<T> / 2>
inline void transpose(V<T>* v) {
#pragma GCC unroll 16
  for (int i = 0; i < N<T>; i++)
    if (!(i & W)) {
      V<T> a = v[i], b = v[i + W];
      v[i] = shuffle<T, Upper<W, N<T>>>(a, b), v[i + W] = shuffle<T, Lower<W, N<T>>>(a, b);
    }
  if constexpr (W > 1) transpose<T, W / 2>(v);
}
template <class T>
inline V<T> pick(typename Simd<T>::I yes, V<T> a, V<T> b) {
  return yes ? a : b;
}

inline V<float> absolute(V<float> x) { return (V<float>)((Simd<float>::I)x & 0x7fffffff); }
inline V<double> absolute(V<double> x) { return (V<double>)((Simd<double>::I)x & 0x7fffffffffffffff); }

// exp: x = n ln 2 + r, a polynomial in r, and n into the exponent bits. Cephes' constants for float; for
// double the Taylor series, whose 13 terms are exact to rounding for |r| <= ln 2 / 2.
inline V<float> vexp(V<float> x) {
  x = pick<float>(x > 88.f, all(88.f), x);
  x = pick<float>(x < -87.f, all(-87.f), x);
  V<float> n = (x * 1.44269504f + 12582912.f) - 12582912.f;
  V<float> r = x - n * 0.693359375f + n * 2.12194440e-4f;
  V<float> p = all(1.9875691500e-4f);
  for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = p * r + c;
  p = p * r * r + r + 1.f;
  Simd<float>::I bits = (__builtin_convertvector(n, Simd<float>::I) + 127) << 23;
  return p * (V<float>)bits;
}
inline V<double> vexp(V<double> x) {
  x = pick<double>(x > 708., all(708.), x);
  x = pick<double>(x < -708., all(-708.), x);
  const V<double> shifted = x * 1.4426950408889634 + 6755399441055744.;  // n in the lowest bits
  V<double> n = shifted - 6755399441055744.;
  V<double> r = x - n * 6.93145751953125e-1 - n * 1.42860682030941723212e-6;
  V<double> p = all(1. / 6227020800.);
  for (double c : {1. / 479001600, 1. / 39916800, 1. / 3628800, 1. / 362880, 1. / 40320, 1. / 5040, 1. / 720,
                   1. / 120, 1. / 24, 1. / 6, 1. / 2, 1., 1.})
    p = p * r + c;
  // unsigned, because the sum with the bits of a NaN may wrap
  typedef uint64_t Bits __attribute__((vector_size(sizeof(V<double>))));
  const Bits bits = ((Bits)shifted + 1023) << 52;
  return p * (V<double>)bits;
}

template <class T>
inline V<T> sigmoid(V<T> x) {
  return T(1) / (T(1) + vexp(-x));
}

// tanh: by exp far from 0; near 0, where 1 - 2t / (1 + t) loses digits, x + x^3 P(x^2), for double P / Q
// (Cephes' constants).
inline V<float> vtanh(V<float> x) {
  V<float> z = x * x, p = all(-5.70498872745e-3f);
  for (float c : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f})
    p = p * z + c;
  V<float> t = vexp(-2.f * absolute(x)), far = 1.f - 2.f * t / (1.f + t);
  return pick<float>(z < 0.390625f, p * z * x + x, pick<float>(x < 0.f, -far, far));
}
inline V<double> vtanh(V<double> x) {
  V<double> z = x * x,
            p = (-9.64399179425052238628e-1 * z - 9.92877231001918586564e1) * z - 1.61468768441708447952e3;
  V<double> q =
      ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z + 4.84406305325125486048e3;
  V<double> t = vexp(-2. * absolute(x)), far = 1. - 2. * t / (1. + t);
  return pick<double>(z < 0.390625, p / q * z * x + x, pick<double>(x < 0., -far, far));
}

// The normal distribution at x: cdf and density. For float, erf(a) = 1 - exp(-a^2) t P(t) with t = 1 / (1 + a
// / 2), where P was fitted on Chebyshev points to 9e-10.
inline void normal(V<float> x, V<float>& cdf, V<float>& pdf) {
  V<float> a = x * 0.70710678f;
  a = absolute(a);
  V<float> e = vexp(-a * a), t = 1.f / (1.f + 0.5f * a), p = all(0.03208590687873985f);
  for (float c : {-0.23244797321266894f, 0.690142564963527f, -1.0252270288589944f, 0.7233445575382309f,
                  -0.2646517516413482f, 0.28476281596520325f, 0.22551376900524997f, 0.28450119827572795f,
                  0.2819759402243767f})
    p = p * t + c;
  V<float> upper = 0.5f * e * t * p;
  cdf = pick<float>(x < 0.f, upper, 1.f - upper);
  pdf = 0.39894228f * e;
}
inline void normal(V<double> x, V<double>& cdf, V<double>& pdf) {
  for (int i = 0; i < N<double>; i++) {
    cdf[i] = 0.5 * std::erfc(-x[i] * 0.70710678118654752440);
    pdf[i] = 0.39894228040143267794 * std::exp(-0.5 * x[i] * x[i]);
  }
}
template <class T>
inline V<T> gelu(V<T> x) {
  V<T> cdf, pdf;
  normal(x, cdf, pdf);
  return x * cdf;
}
