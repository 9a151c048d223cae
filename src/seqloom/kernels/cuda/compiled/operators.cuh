// The operators of the compiler's programs (compiler/ir.py), for float and double; NaN propagates as in
// torch.
#pragma once
#include "runtime/device.cuh"
constexpr int FP64 = 3;

// Storage type of a format, and the type that it is computed in.
template <int TYPE>
struct Numbers {
  typedef u16 Stored;
  typedef float Real;
};
template <>
struct Numbers<FP32> {
  typedef float Stored;
  typedef float Real;
};
template <>
struct Numbers<FP64> {
  typedef double Stored;
  typedef double Real;
};

template <int TYPE>
DEV typename Numbers<TYPE>::Real widen(typename Numbers<TYPE>::Stored v) {
  if constexpr (TYPE == BF16 || TYPE == FP16) {
    float low, high;
    unpack<TYPE>(low, high, v);
    return low;
  } else
    return v;
}
template <int TYPE>
DEV typename Numbers<TYPE>::Stored narrow(typename Numbers<TYPE>::Real v) {
  if constexpr (TYPE == BF16 || TYPE == FP16)
    return (u16)pack<TYPE>(v, 0.f);
  else
    return v;
}

namespace op {
#define FUNCTION(name, single, both)              \
  DEV float name(float v) { return ::single(v); } \
  DEV double name(double v) { return ::both(v); }
FUNCTION(absolute, fabsf, fabs)
FUNCTION(tanh, tanhf, tanh)
FUNCTION(exp, expf, exp)
FUNCTION(log, logf, log)
FUNCTION(log1p, log1pf, log1p)
FUNCTION(expm1, expm1f, expm1)
FUNCTION(sqrt, sqrtf, sqrt)
FUNCTION(sin, sinf, sin)
FUNCTION(cos, cosf, cos)
FUNCTION(sinh, sinhf, sinh)
FUNCTION(cosh, coshf, cosh)
FUNCTION(erf, erff, erf)
FUNCTION(floor, floorf, floor)
FUNCTION(ceil, ceilf, ceil)
FUNCTION(round, rintf, rint)  // ties to even
FUNCTION(trunc, truncf, trunc)
#undef FUNCTION
DEV float pow(float v, float w) { return ::powf(v, w); }
DEV double pow(double v, double w) { return ::pow(v, w); }
DEV float fma(float v, float w, float z) { return ::fmaf(v, w, z); }
DEV double fma(double v, double w, double z) { return ::fma(v, w, z); }

template <class R>
DEV R infinity() {
  return to_float(0x7f800000u);
}
template <class R>
DEV R not_a_number() {
  return to_float(0x7fc00000u);
}
template <class R>
DEV R sign(R v) {
  return R((v > R(0)) - (v < R(0)));
}
template <class R>
DEV R relu(R v) {
  return v <= R(0) ? R(0) : v;
}
template <class R>
DEV R sigmoid(R v) {
  return R(1) / (R(1) + exp(-v));
}
template <class R>
DEV R rsqrt(R v) {
  return R(1) / sqrt(v);
}
template <class R>
DEV R reciprocal(R v) {
  return R(1) / v;
}
template <class R>
DEV R maximum(R v, R w) {
  return v > w || v != v ? v : w;
}
template <class R>
DEV R minimum(R v, R w) {
  return v < w || v != v ? v : w;
}
template <class R>
DEV R sum(R v, R w) {
  return v + w;
}
template <class R>
DEV R select(R condition, R v, R w) {
  return condition != R(0) ? v : w;
}
template <class R>
DEV R sigmoid_backward(R gradient, R y) {
  return gradient * (R(1) - y) * y;
}
template <class R>
DEV R tanh_backward(R gradient, R y) {
  return gradient * (R(1) - y * y);
}

// Reduce over the lanes of a warp; all lanes get the result.
#define OVER_LANES(name)                                                     \
  template <class R>                                                         \
  DEV R name##_over_lanes(R v) {                                             \
    for (int bits = 16; bits; bits >>= 1) v = name(v, shuffle_xor(v, bits)); \
    return v;                                                                \
  }
OVER_LANES(sum)
OVER_LANES(maximum)
OVER_LANES(minimum)
#undef OVER_LANES
}  // namespace op
