// The pointwise parts of AttnRNN's forward step in float32, with one row per block.
#pragma once
#include "attn_rnn/row.cuh"

constexpr float LOG2E = 1.4426950408889634f;

// QUAD_LANES: quads (4 floats) of a vector that a warp reads at once. LANES_TO_QUAD neighbouring lanes read
// the same quad.
constexpr int QUAD_LANES = H > 64 ? 32 : H > 32 ? 16 : H > 16 ? 8 : 4, LANES_TO_QUAD = 32 / QUAD_LANES;
DEV bool has_quad(const Lane& l) { return QUAD_LANES == H / 4 || l.lane / LANES_TO_QUAD < H / 4; }
DEV u32 find_quad(const Lane& l, int vector) {
  return l.vector(vector) + (has_quad(l) ? 16 * (l.lane / LANES_TO_QUAD) : 0);
}
// Find the mean and 1 / deviation of all units from this lane's quad. On entry `mean` is an estimate, the
// mean of the previous step; it is subtracted before summing, since a difference of large sums would lose
// digits. All lanes and warps get the same result.
DEV void find_moments(float& mean, float& r, const float (&quad)[4], const Lane& l) {
  float z[4];
#pragma unroll
  for (int e = 0; e < 4; e++) z[e] = has_quad(l) ? quad[e] - mean : 0.f;
  float sum = (z[0] + z[1]) + (z[2] + z[3]),
        square = (z[0] * z[0] + z[1] * z[1]) + (z[2] * z[2] + z[3] * z[3]);
#pragma unroll
  for (int bits = 16; bits >= LANES_TO_QUAD; bits /= 2) {
    sum += shuffle_xor(sum, bits);
    square += shuffle_xor(square, bits);
  }
  const float offset = sum * (1.0f / REAL_H), variance = (square - sum * offset) * (1.0f / REAL_H) + 1e-5f;
  mean += offset;
  r = inverse_root(variance);
  r += 0.5f * r * (1.f - variance * r * r);  // a Newton step, to full float32 precision
}
// Approximate log2 Phi(-u) for u in [0, 6] by a polynomial of degree 8, fitted to the product u Phi(-u); the
// error in gelu is 7e-9. Terms are evaluated in pairs to shorten the chain of dependent operations.
DEV float gelu(float v) {
  const float u = minimum(absolute(v), 6.0f), u2 = u * u, u4 = u2 * u2;
  const float p0 = -1.151123285293579f * u - 0.9999988675117493f,
              p2 = -0.05271420255303383f * u - 0.4591154456138611f;
  const float p4 = -0.00032334536081179976f * u + 0.007333389483392239f,
              p6 = 2.5083121727220714e-05f * u - 0.00011446159624028951f;
  const float high = p6 * u2 + p4 - 1.6903887853914057e-06f * u4;
  return maximum(v, 0.f) - absolute(v) * exp2_(high * u4 + (p2 * u2 + p0));
}
DEV float sigmoid(float v) { return inverse(1.f + exp2_(-LOG2E * v)); }
// Return the factor of the scores: 1 / sqrt d, times log2 e because attend() uses exp2.
DEV float find_score_scale() { return LOG2E / sqrtf((float)REAL_D); }
// Return the attended context: softmax(scores) times the rows of the context. Approximate exponentials do not
// reduce the accuracy, here or in the gate: where their relative error is large, the exponential is
// negligible. Accurate exponentials contain branches, across which the compiler does not schedule
// instructions.
DEV float attend(float h, float x, const float (&s)[3]) {
  const float t[4] = {s[0], s[1], s[0] + s[1], s[2]}, none = -3.0e38f;
  float e[4], low = CONTEXT & 1 ? t[0] : none, high = CONTEXT & 4 ? t[2] : none;
  if (CONTEXT & 2) low = maximum(low, t[1]);
  if (CONTEXT & 8) high = maximum(high, t[3]);
  const float top = maximum(low, high);
#pragma unroll
  for (int j = 0; j < 4; j++) e[j] = CONTEXT >> j & 1 ? exp2_(t[j] - top) : 0.f;
  return inverse((e[0] + e[1]) + (e[2] + e[3])) * ((e[0] + e[2]) * h + ((e[1] + e[2]) * x + e[3] * (h * x)));
}
