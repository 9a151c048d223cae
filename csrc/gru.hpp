// GRU over time: gx = W x + b_ih is given; the states are all that the forward keeps.
#pragma once
#include "rows.hpp"

template <class T>
inline void gru_gates(int64_t hp, const T* gx, T* gh) {  // r, z, and n; U_n h + b_n stays behind them
  for (int64_t i = 0; i < hp; i += N<T>) {
    V<T> r = sigmoid<T>(load(gx + i) + load(gh + i)), z = sigmoid<T>(load(gx + hp + i) + load(gh + hp + i));
    V<T> u = load(gh + 2 * hp + i);
    store(gh + i, r);
    store(gh + hp + i, z);
    store(gh + 2 * hp + i, vtanh(load(gx + 2 * hp + i) + r * u));
    store(gh + 3 * hp + i, u);
  }
}

template <class T>
void gru_forward(const Args& a, int part, int parts) {
  const int64_t H = a.H, hp = padded<T>(H), n = 3;
  Rows rows(a.B, a.T, a.lengths, part, parts);
  Packed<T> U((const T*)a.w[0], n, H, H, H, 1);
  Spread<T> b((const T*)a.b[0], n, H);
  Buffer<T> h(rows.count() * hp), gx(n * hp), gh(rows.count() * (n + 1) * hp);
  for (int64_t i = 0; i < rows.count(); i++) spread<T>(h + i * hp, (const T*)a.h0 + rows.row[i] * H, 1, H);
  for (int64_t t = 0; t < rows.T; t++) {
    int64_t m = rows.going(t);
    gemm<T>(h, hp, U, gh, (n + 1) * hp, m, b);
    for (int64_t i = 0; i < m; i++) {
      int64_t at = rows.row[i] * a.T + t;
      T *hi = h + i * hp, *g = gh + i * (n + 1) * hp;
      spread<T>(gx, (const T*)a.x + at * n * H, n, H);
      gru_gates<T>(hp, gx, g);
      for (int64_t j = 0; j < hp; j += N<T>) {
        V<T> c = load(g + 2 * hp + j);
        store(hi + j, c + load(g + hp + j) * (load(hi + j) - c));
      }
      std::memcpy((T*)a.y + at * H, hi, H * sizeof(T));
    }
  }
  for (int64_t i = 0; i < rows.count(); i++) std::memcpy((T*)a.h1 + rows.row[i] * H, h + i * hp, H * sizeof(T));
}

// Gates again for a chunk of time in one product, then back through it. dx holds dr, dz, r dn, and dn.
template <class T>
void gru_backward(const Args& a, int part, int parts) {
  const int64_t H = a.H, hp = padded<T>(H), n = 3;
  Rows rows(a.B, a.T, a.lengths, part, parts);
  const int64_t m0 = rows.count(), chunk = chunk_of(m0);
  Packed<T> U((const T*)a.w[0], n, H, H, H, 1), Ut(hp, n * hp);
  for (int64_t g = 0; g < n; g++) Ut.put(0, g * hp, (const T*)a.w[0] + g * H * H, H, H, 1, H);
  Spread<T> b((const T*)a.b[0], n, H);
  Buffer<T> h(chunk * m0 * hp), g(chunk * m0 * (n + 1) * hp), gx(n * hp), dh(m0 * hp), dg(m0 * (n + 1) * hp);
  for (int64_t i = 0; i < m0; i++) spread<T>(dh + i * hp, (const T*)a.dh1 + rows.row[i] * H, 1, H);
  std::vector<int64_t> first;
  for (int64_t end = rows.T; end > 0;) {
    int64_t begin = std::max<int64_t>(0, end - chunk), many = history<T>(a, rows, begin, end, h, first);
    gemm<T>(h, hp, U, g, (n + 1) * hp, many, b);
    for (int64_t t = end - 1; t >= begin; t--) {
      int64_t m = rows.going(t);
      for (int64_t i = 0; i < m; i++) {
        int64_t at = rows.row[i] * a.T + t, k = first[t - begin] + i;
        T *gi = g + k * (n + 1) * hp, *hi = h + k * hp, *d = dh + i * hp, *o = dg + i * (n + 1) * hp;
        spread<T>(gx, (const T*)a.x + at * n * H, n, H);
        gru_gates<T>(hp, gx, gi);
        accumulate<T>(d, (const T*)a.dy + at * H, H);
        for (int64_t j = 0; j < hp; j += N<T>) {
          V<T> dv = load(d + j), r = load(gi + j), z = load(gi + hp + j), c = load(gi + 2 * hp + j), u = load(gi + 3 * hp + j);
          V<T> dn = dv * (T(1) - z) * (T(1) - c * c);
          store(o + j, dn * u * r * (T(1) - r));
          store(o + hp + j, dv * (load(hi + j) - c) * z * (T(1) - z));
          store(o + 2 * hp + j, dn * r);  // what U_n h is to the loss
          store(o + 3 * hp + j, dn);
          store(d + j, dv * z);
        }
        gather<T>((T*)a.dx + at * (n + 1) * H, o, n + 1, H);
      }
      gemm<T>(dg, (n + 1) * hp, Ut, dh, hp, m, nullptr, true);
    }
    end = begin;
  }
  for (int64_t i = 0; i < m0; i++) std::memcpy((T*)a.dh0 + rows.row[i] * H, dh + i * hp, H * sizeof(T));
}
