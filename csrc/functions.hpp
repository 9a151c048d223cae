// Elementary functions on vectors for the vector machine, with torch's results at infinities and NaN. Those
// of vec.hpp, which hand-written cells use, clamp their arguments instead.
#pragma once
#include <limits>

#include "vec.hpp"

template <class T>
constexpr T INF = std::numeric_limits<T>::infinity();
template <class T>
constexpr T NOT_A_NUMBER = std::numeric_limits<T>::quiet_NaN();

// Apply f to every lane, for rare functions and those that compile to one instruction.
template <class T, class F>
INLINE V<T> by_lane(V<T> x, F f) {
  T t[N<T>];
  store(t, x);
  for (int i = 0; i < N<T>; i++) t[i] = f(t[i]);
  return load(t);
}
template <class T>
INLINE bool any(typename Simd<T>::I mask) {
  typename Simd<T>::I none{};
  return std::memcmp(&mask, &none, sizeof mask) != 0;
}

template <class T, int... i>
INLINE typename Simd<T>::I lanes_of(std::integer_sequence<int, i...>) {
  return typename Simd<T>::I{i...};
}
template <class T>
INLINE typename Simd<T>::I lanes() {  // 0, 1, 2, ...
  return lanes_of<T>(std::make_integer_sequence<int, N<T>>());
}

// half to even
template <class T>
INLINE V<T> round_of(V<T> x) {
  return by_lane<T>(x, [](T v) { return std::nearbyint(v); });
}
template <class T>
INLINE V<T> floor_of(V<T> x) {
  const V<T> whole = round_of<T>(x);
  return pick<T>(whole > x, whole - T(1), whole);
}

// 2^n for an integer n, if the result is a normal number
INLINE V<float> power_of_two(V<float> n) {
  return (V<float>)((__builtin_convertvector(n, Simd<float>::I) + 127) << 23);
}
INLINE V<double> power_of_two(V<double> n) {
  return (V<double>)(((Simd<double>::I)(n + 6755399441055744.) + 1023) << 52);
}
INLINE V<float> to_whole(V<float> x) { return (x + 12582912.f) - 12582912.f; }
INLINE V<double> to_whole(V<double> x) { return (x + 6755399441055744.) - 6755399441055744.; }

// exp(r) - 1 for |r| <= ln 2 / 2, with the polynomials of vec.hpp
INLINE V<float> expm1_near(V<float> r) {
  V<float> p = all(1.9875691500e-4f);
  for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = p * r + c;
  return p * r * r + r;
}
INLINE V<double> expm1_near(V<double> r) {
  V<double> p = all(1. / 6227020800.);
  for (double c : {1. / 479001600, 1. / 39916800, 1. / 3628800, 1. / 362880, 1. / 40320, 1. / 5040, 1. / 720,
                   1. / 120, 1. / 24, 1. / 6, 1. / 2})
    p = p * r + c;
  return p * r * r + r;
}
// x - n ln 2
INLINE V<float> without_twos(V<float> x, V<float> n) { return x - n * 0.693359375f + n * 2.12194440e-4f; }
INLINE V<double> without_twos(V<double> x, V<double> n) {
  return x - n * 6.93145751953125e-1 - n * 1.42860682030941723212e-6;
}

template <class T>
struct ExpRange;
template <>
struct ExpRange<float> {
  static constexpr float least = -104.f, most = 89.f, sigmoid = -88.f;  // below: 0; above: infinity
};
template <>
struct ExpRange<double> {
  static constexpr double least = -746., most = 710., sigmoid = -708.;
};

// multiply by 2^n in two steps: the result may be infinite or denormal
template <class T>
INLINE V<T> exact_exp(V<T> x) {
  x = pick<T>(x > ExpRange<T>::most, all(ExpRange<T>::most), x);
  x = pick<T>(x < ExpRange<T>::least, all(ExpRange<T>::least), x);
  const V<T> n = to_whole(x * T(1.4426950408889634)), half = to_whole(n * T(0.5));
  const V<T> p = expm1_near(without_twos(x, n)) + T(1);
  return p * power_of_two(half) * power_of_two(n - half);
}
// (2^(n-1) p + 2^(n-1) - 1/2) 2 with p = exp(x - n ln 2) - 1: no intermediate overflows unless the result
// does
template <class T>
INLINE V<T> exact_expm1(V<T> x) {
  V<T> z = pick<T>(x > ExpRange<T>::most, all(ExpRange<T>::most), x);
  z = pick<T>(z < T(-50), all(T(-50)), z);
  const V<T> n = to_whole(z * T(1.4426950408889634)), scale = power_of_two(n - T(1));
  const V<T> y = (scale * expm1_near(without_twos(z, n)) + (scale - T(0.5))) * T(2);
  return pick<T>(absolute(x) < T(1e-30), x, y);
}

template <class T>
INLINE V<T> exact_sigmoid(V<T> x) {
  const V<T> e = pick<T>(x < ExpRange<T>::sigmoid, all(INF<T>), vexp(-x));
  return T(1) / (T(1) + e);
}

// log(1 + f) without f - f^2 / 2: the series in s = f / (2 + f) of fdlibm (Sun Microsystems, 1993)
INLINE V<float> log_series(V<float> z) {
  const V<float> w = z * z;
  return w * (0.40000972152f + w * 0.24279078841f) + z * (0.66666662693f + w * 0.28498786688f);
}
INLINE V<double> log_series(V<double> z) {
  const V<double> w = z * z;
  return w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01)) +
         z * (6.666666666666735130e-01 +
              w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
}
// x = m 2^k with m between sqrt(1/2) and sqrt(2), for normal x > 0
INLINE void split(V<float> x, V<float>& m, V<float>& k) {
  const Simd<float>::I bits = (Simd<float>::I)x - 0x3f3504f3;
  k = __builtin_convertvector(bits >> 23, V<float>);
  m = (V<float>)((bits & 0x007fffff) + 0x3f3504f3);
}
INLINE void split(V<double> x, V<double>& m, V<double>& k) {
  const Simd<double>::I bits = (Simd<double>::I)x - 0x3fe6a09e667f3bcd;
  // integers of this size are exact in the low bits of 1.5 * 2^52
  k = (V<double>)((bits >> 52) + 0x4338000000000000) - 6755399441055744.;
  m = (V<double>)((bits & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd);
}
template <class T>
struct Log {
  static constexpr bool wide = sizeof(T) == 8;
  static constexpr T high = wide ? T(6.93147180369123816490e-01) : T(6.9313812256e-01f);
  static constexpr T low = wide ? T(1.90821492927058770002e-10) : T(9.0580006145e-06f);
  static constexpr T up = wide ? T(18014398509481984.) : T(33554432.);  // makes a denormal number normal
  static constexpr T steps = wide ? T(54) : T(25);
};
template <class T>
INLINE V<T> exact_log(V<T> x) {
  V<T> m, k;
  const auto tiny = x < std::numeric_limits<T>::min();
  split(pick<T>(x > T(0), pick<T>(tiny, x * Log<T>::up, x), all(T(1))), m, k);
  k = pick<T>(tiny, k - Log<T>::steps, k);
  const V<T> f = m - T(1), s = f / (T(2) + f), half = T(0.5) * f * f;
  V<T> y = k * Log<T>::high - ((half - (s * (half + log_series(s * s)) + k * Log<T>::low)) - f);
  y = pick<T>(x > T(0), y, pick<T>(x == T(0), all(-INF<T>), all(NOT_A_NUMBER<T>)));
  return pick<T>(x == INF<T>, x, y);
}
// log(u) + c / u, where u + c = 1 + x without rounding
template <class T>
INLINE V<T> exact_log1p(V<T> x) {
  const V<T> u = T(1) + x, b = u - T(1), c = (T(1) - (u - b)) + (x - b), log = exact_log<T>(u);
  return pick<T>((u > T(0)) & (u < INF<T>), log + c / u, log);
}

// Near 0, an odd polynomial (without its leading x), fitted on Chebyshev points with an error of 4e-11;
// elsewhere as in normal() of vec.hpp.
INLINE V<float> exact_erf(V<float> x) {
  V<float> a = absolute(x);
  a = pick<float>(a > 5.f, all(5.f), a);
  const V<float> z = a * a;
  V<float> near = all(-9.667043741501402e-06f);
  for (float c : {0.0001126595867759761f, -0.0008484080348125644f, 0.005221031803158027f,
                  -0.02686543072569947f, 0.11283782495197922f, -0.3761263846802593f, 0.128379167061543f})
    near = near * z + c;
  const V<float> t = 1.f / (1.f + 0.5f * a);
  V<float> p = all(0.03208590687873985f);
  for (float c : {-0.23244797321266894f, 0.690142564963527f, -1.0252270288589944f, 0.7233445575382309f,
                  -0.2646517516413482f, 0.28476281596520325f, 0.22551376900524997f, 0.28450119827572795f,
                  0.2819759402243767f})
    p = p * t + c;
  const V<float> far = 1.f - vexp(-z) * t * p;
  return pick<float>(z < 1.f, x + x * near, pick<float>(x < 0.f, -far, far));
}
INLINE V<double> exact_erf(V<double> x) {
  return by_lane<double>(x, [](double v) { return std::erf(v); });
}

// x - n pi / 2 in a few steps (Cody and Waite); exact enough up to `most`
template <class T>
struct Turn;
template <>
struct Turn<float> {
  static constexpr float most = 10000.f;
  static INLINE V<float> reduce(V<float> x, V<float> n) {
    return x - n * 1.5703125f - n * 4.837512969970703e-4f - n * 7.549533620476723e-08f -
           n * 2.5633440682570896e-12f;
  }
  static INLINE V<float> sine(V<float> r, V<float> z) {
    return r + r * z * (-1.6666654611e-1f + z * (8.3321608736e-3f + z * -1.9515295891e-4f));
  }
  static INLINE V<float> cosine(V<float> z) {
    return 1.f - 0.5f * z +
           z * z * (4.166664568298827e-2f + z * (-1.388731625493765e-3f + z * 2.443315711809948e-5f));
  }
};
template <>
struct Turn<double> {
  static constexpr double most = 1e5;
  static INLINE V<double> reduce(V<double> x, V<double> n) {
    return x - n * 1.57079632673412561417e+00 - n * 6.07710050630396597660e-11 -
           n * 2.02226624879595063154e-21;
  }
  static INLINE V<double> sine(V<double> r, V<double> z) {
    V<double> p = all(1.58969099521155010221e-10);
    for (double c : {-2.50507602534068634195e-08, 2.75573137070700676789e-06, -1.98412698298579493134e-04,
                     8.33333333332248946124e-03, -1.66666666666666324348e-01})
      p = p * z + c;
    return r + r * z * p;
  }
  static INLINE V<double> cosine(V<double> z) {
    V<double> p = all(-1.13596475577881948265e-11);
    for (double c : {2.08757232129817482790e-09, -2.75573143513906633035e-07, 2.48015872894767294178e-05,
                     -1.38888888888741095749e-03, 4.16666666666666019037e-02})
      p = p * z + c;
    const V<double> half = 0.5 * z, w = 1. - half;
    return w + (((1. - w) - half) + z * z * p);
  }
};
// sin(x + quarters pi / 2)
template <class T, int QUARTERS>
INLINE V<T> sine(V<T> x) {
  typedef typename Simd<T>::I I;
  const V<T> n = to_whole(x * T(0.63661977236758134308)), r = Turn<T>::reduce(x, n), z = r * r;
  const I quadrant = (I)(n + (sizeof(T) == 8 ? T(6755399441055744.) : T(12582912.))) + QUARTERS;
  const V<T> y = pick<T>((quadrant & 1) != 0, Turn<T>::cosine(z), Turn<T>::sine(r, z));
  return pick<T>((quadrant & 2) != 0, -y, y);
}
template <class T, int QUARTERS>
INLINE V<T> exact_sine(V<T> x) {
  V<T> y = sine<T, QUARTERS>(x);
  const auto large = ~(absolute(x) <= Turn<T>::most);
  if (any<T>(large))
    for (int i = 0; i < N<T>; i++)
      if (large[i]) y[i] = QUARTERS ? std::cos(x[i]) : std::sin(x[i]);
  return y;
}
