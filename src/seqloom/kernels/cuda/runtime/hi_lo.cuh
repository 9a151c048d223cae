// The fp16 hi/lo split of float32 (Ootomo and Yokota 2022), 11 bits each, for tensor cores: three fp16
// products give one product of 22 bits. The exponent range of fp16 is small: values that share a scale are
// first multiplied by a power of 2, so that the largest is just below 2^15. The inverse of the scale is
// called their unit.
#pragma once
#include "runtime/device.cuh"

// Return the larger magnitude of two values; a value that is not finite counts as 0, since no scale changes
// it.
DEV float find_size(float v, float w) {
  const float p = absolute(v), q = absolute(w), limit = to_float(0x7f800000u);
  return maximum(p < limit ? p : 0.f, q < limit ? q : 0.f);
}
template <int COUNT>
DEV float max_of_lanes(float v) {
#pragma unroll
  for (int bits = 1; bits < COUNT; bits *= 2) v = maximum(v, shuffle_xor(v, bits));
  return v;
}
// Return the scale, a power of 2, for magnitudes up to `largest`, and set `unit` to its inverse.
DEV float find_scale(float largest, float& unit) {
  const int wanted = 127 + 14 + 127 - (int)(to_bits(largest) >> 23), exponent = wanted < 253 ? wanted : 253;
  unit = to_float((u32)(254 - exponent) << 23);
  return to_float((u32)exponent << 23);
}
// Split two scaled values into packed high and low parts; low is NaN if a value is not finite.
DEV void split_hi_lo(u32& high, u32& low, float v, float w) {
  float p, q;
  high = pack<FP16>(v, w);
  unpack<FP16>(p, q, high);
  low = pack<FP16>(v - p, w - q);
}
// Return unit / larger as a pair of equal fp16 values, 0 on underflow; both are powers of 2, or unit is 0.
DEV u32 compare_units(float unit, float larger) {
  const int bits = (int)to_bits(unit) - (int)to_bits(larger) + 0x3f800000;
  const float ratio = to_float(bits > 0 ? (u32)bits : 0u);
  return pack<FP16>(ratio, ratio);
}
