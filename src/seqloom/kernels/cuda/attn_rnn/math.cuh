// Pointwise functions of AttnRNN's step: gelu, sigmoid and attention weights.
#pragma once
#include "attn_rnn/setting.cuh"
#include "runtime/pairs.cuh"

// Return Phi(-u) for u = min(|v|, 6): its log2 is a polynomial of degree 5, fitted to the product u Phi(-u).
// The error of gelu is 5e-7.
DEV float normal_tail(float v) {
  const float u = minimum(absolute(v), 6.0f);
  float p = -0.0004732773231808096f;
  p = p * u + 0.00708435894921422f;
  p = p * u - 0.051826950162649155f;
  p = p * u - 0.4599928557872772f;
  p = p * u - 1.1507877111434937f;
  p = p * u - 1.000037670135498f;
  return exp2_(p);
}
DEV float gelu(float v) {
  if constexpr (TYPE == FP32)
    return 0.5f * v * (1.f + erff(v * 0.7071067811865476f));
  else
    return maximum(v, 0.f) - absolute(v) * normal_tail(v);
}
DEV float gelu_slope(float v) {
  const float t = normal_tail(v), cdf = v > 0.f ? 1.f - t : t;
  return cdf + v * 0.3989422804014327f * exp2_(-0.7213475204444817f * v * v);
}
DEV float sigmoid(float v) {
  // error within 2^-11, finer than the precision of bf16
  if constexpr (TYPE == BF16)
    return 0.5f * tanh_(0.5f * v) + 0.5f;
  else if constexpr (TYPE == FP32)
    return 1.f / (1.f + expf(-v));
  else
    return inverse(1.0f + exp2_(-1.4426950408889634f * v));
}
// Compute the attention weights from q.h, q.x and q.(h * x); q.(h + x) is the sum of the first two. Rows that
// CONTEXT leaves out get weight 0.
DEV void compute_attention(float (&a)[4], float qh, float qx, float qp) {
  constexpr float LOG2E = TYPE == FP32 ? 1.f : 1.4426950408889634f;
  const float k = LOG2E * (TYPE == FP32 ? 1.f / sqrtf((float)REAL_D) : inverse_root((float)REAL_D)),
              s[4] = {k * qh, k * qx, k * (qh + qx), k * qp};
  float top = -3.0e38f, sum = 0.f;
#pragma unroll
  for (int j = 0; j < 4; j++)
    if (CONTEXT >> j & 1) top = maximum(top, s[j]);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    a[j] = !(CONTEXT >> j & 1) ? 0.f : TYPE == FP32 ? expf(s[j] - top) : exp2_(s[j] - top);
    sum += a[j];
  }
  sum = TYPE == FP32 ? 1.f / sum : inverse(sum);
#pragma unroll
  for (int j = 0; j < 4; j++) a[j] *= sum;
}
