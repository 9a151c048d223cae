// Elements of any type, two at a time.
#pragma once
#include "runtime/device.cuh"

#ifndef FORMAT
#define FORMAT 0  // 0 bf16, 1 fp16, 2 float32; set by Python with -D, this default is for editors
#endif
constexpr int TYPE = FORMAT, SIZE = TYPE == FP32 ? 4 : 2;  // SIZE: bytes per element
#if FORMAT == 2
typedef float Element;
struct Pair {
  float low, high;
};
DEV Pair to_pair(float low, float high) { return {low, high}; }
DEV void from_pair(float& low, float& high, Pair v) {
  low = v.low;
  high = v.high;
}
DEV Pair get_pair(const Element* p) {
  Pair v;
  get_global(v.low, v.high, p);
  return v;
}
DEV void put_pair(Element* p, Pair v) { put_global(p, v.low, v.high); }
DEV float get_one(const Element* p) { return *p; }
DEV void put_one(Element* p, float v) { *p = v; }
DEV void put_pair_shared(u32 at, Pair v) { put_shared(at, v.low, v.high); }
#else
typedef u16 Element;
typedef u32 Pair;
DEV Pair to_pair(float low, float high) { return pack<TYPE>(low, high); }
DEV void from_pair(float& low, float& high, Pair v) { unpack<TYPE>(low, high, v); }
DEV Pair get_pair(const Element* p) { return get_global(p); }
DEV void put_pair(Element* p, Pair v) { put_global(p, v); }
DEV float get_one(const Element* p) {
  float v, none;
  unpack<TYPE>(v, none, (u32)*p);
  return v;
}
DEV void put_one(Element* p, float v) { *p = (u16)pack<TYPE>(v, 0.f); }
DEV void put_pair_shared(u32 at, Pair v) { put_shared(at, v); }
#endif
// Round two operands to the precision of the product: with TF32 to 19 bits each.
DEV Pair round_factors(Pair v) {
#if FORMAT == 2 && TF32
  v = {to_float(to_tf32(v.low)), to_float(to_tf32(v.high))};
#endif
  return v;
}
