// One step of a stream. Weights are read in torch's layout, (out, in) row by row: for a few rows a packed
// copy would cost more than it saves, and it could be stale.
#pragma once
#include <vector>

#include "product.hpp"

// One layer, with the names of kernels/cpu/step.py. The order of the weights is in step_cells.hpp.
struct Step {
  int64_t cell, wide, D, H, heads, parts, norm, slots;  // wide: double; parts: the bits of attn_rnn.hpp
  const void *w[5], *b[5];
};

// A stack of layers, and one call of it: x (B, D), y (B, H), the others (layers, B, H), or (layers, B, slots,
// H); c0 and c1 are null for cells without c.
struct Stack {
  const Step* layers;
  int64_t count, B;
};
struct Call {
  const Stack* stack;
  const void *x, *h0, *c0;
  void *y, *h1, *c1;
};

// LayerNorm of the first H elements of `a`, in place, with scale and shift.
template <class T>
inline void apply_norm(T* a, int64_t H, const T* scale, const T* shift) {
  constexpr int n = N<T>;
  V<T> s{};
  int64_t i = 0;
  for (; i + n <= H; i += n) s += load(a + i);
  if (i < H) s += load_partial(a + i, H - i);
  const T mean = sum<T>(s) / T(H);
  s = V<T>{};
  for (i = 0; i + n <= H; i += n) {
    V<T> z = load(a + i) - mean;
    s += z * z;
  }
  T variance = sum<T>(s);
  for (; i < H; i++) variance += (a[i] - mean) * (a[i] - mean);
  const T r = T(1) / std::sqrt(variance / T(H) + T(1e-5));
  for (i = 0; i + n <= H; i += n) store(a + i, (load(a + i) - mean) * r * load(scale + i) + load(shift + i));
  for (; i < H; i++) a[i] = (a[i] - mean) * r * scale[i] + shift[i];
}
