// Gate functions.
#pragma once
#include "runtime/pairs.cuh"

DEV float sigmoid(float v) {
  // within 2^-11, below the precision of bf16
  if constexpr (TYPE == BF16)
    return 0.5f * tanh_(0.5f * v) + 0.5f;
  else if constexpr (TYPE == FP32)
    return 1.f / (1.f + expf(-v));
  else
    return inverse(1.0f + exp2_(-1.4426950408889634f * v));
}
DEV float hyperbolic_tangent(float v) {
  if constexpr (TYPE == BF16)
    return tanh_(v);
  else if constexpr (TYPE == FP32)
    return tanhf(v);
  else
    return 1.0f - 2.0f * inverse(1.0f + exp2_(2.8853900817779268f * v));
}
