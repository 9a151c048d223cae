// IEEE binary16 in software. g++ has no `_Float16` in C++ on ARM before version 13, and clang none on x86
// before version 15.
#pragma once
#include <cstdint>
#include <cstring>

// Widen a binary16 to float. Every value is representable, so nothing is rounded.
inline float half_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
  uint32_t bits;
  if (exponent == 31) {
    bits = 0x7f800000 | fraction << 13;  // infinity, or NaN with its payload
  } else if (exponent) {
    bits = (exponent + 112) << 23 | fraction << 13;  // the biases are 15 and 127
  } else {
    const float subnormal = (float)fraction * 0x1p-24f;
    memcpy(&bits, &subnormal, 4);
  }
  bits |= sign;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

// Round a float to the nearest binary16, ties to even; overflow to infinity, underflow through the subnormals
// to zero.
inline uint16_t float_to_half(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  const uint16_t sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00 | (bits >> 13 & 0x3ff);  // a quiet NaN
  if (bits >= 0x477ff000) return sign | 0x7c00;                        // 65,520 and above round to infinity
  if (bits >= 0x38800000) {                                            // 2^-14, the smallest normal binary16
    bits -= 112u << 23;
    return sign | (bits + 0xfff + (bits >> 13 & 1)) >> 13;  // a carry out of the fraction raises the exponent
  }
  const int exponent = bits >> 23;
  if (exponent < 102) return sign;  // below 2^-25, half of the smallest subnormal
  const uint32_t fraction = (bits & 0x7fffff) | 0x800000, shift = 126 - exponent, half = 1u << (shift - 1);
  return sign | (fraction + half - 1 + (fraction >> shift & 1)) >> shift;
}
