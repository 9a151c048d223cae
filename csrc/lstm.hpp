// LSTM over time: gx = W x + b_ih is given; h and c are all that the forward keeps.
#pragma once
#include "rows.hpp"

template <class T>
inline void lstm_gates(int64_t hp, const T* gx, T* g) {
  for (int64_t i = 0; i < hp; i += N<T>) {
    store(g + i, sigmoid<T>(load(gx + i) + load(g + i)));
    store(g + hp + i, sigmoid<T>(load(gx + hp + i) + load(g + hp + i)));
    store(g + 2 * hp + i, vtanh(load(gx + 2 * hp + i) + load(g + 2 * hp + i)));
    store(g + 3 * hp + i, sigmoid<T>(load(gx + 3 * hp + i) + load(g + 3 * hp + i)));
  }
}

template <class T>
void lstm_forward(const Args& a, int part, int parts) {
  const int64_t H = a.H, hp = padded<T>(H), n = 4;
  Rows rows(a.B, a.T, a.lengths, part, parts);
  Packed<T> U((const T*)a.w[0], n, H, H, H, 1);
  Spread<T> b((const T*)a.b[0], n, H);
  Buffer<T> h(rows.count() * hp), c(rows.count() * hp), gx(n * hp), gh(rows.count() * n * hp);
  for (int64_t i = 0; i < rows.count(); i++) {
    spread<T>(h + i * hp, (const T*)a.h0 + rows.row[i] * H, 1, H);
    spread<T>(c + i * hp, (const T*)a.c0 + rows.row[i] * H, 1, H);
  }
  for (int64_t t = 0; t < rows.T; t++) {
    int64_t m = rows.going(t);
    gemm<T>(h, hp, U, gh, n * hp, m, b);
    for (int64_t i = 0; i < m; i++) {
      int64_t at = rows.row[i] * a.T + t;
      T *hi = h + i * hp, *ci = c + i * hp, *g = gh + i * n * hp;
      spread<T>(gx, (const T*)a.x + at * n * H, n, H);
      lstm_gates<T>(hp, gx, g);
      for (int64_t j = 0; j < hp; j += N<T>) {
        V<T> cj = load(g + hp + j) * load(ci + j) + load(g + j) * load(g + 2 * hp + j);
        store(ci + j, cj);
        store(hi + j, load(g + 3 * hp + j) * vtanh(cj));
      }
      std::memcpy((T*)a.y + at * H, hi, H * sizeof(T));
      std::memcpy((T*)a.c + at * H, ci, H * sizeof(T));
    }
  }
  for (int64_t i = 0; i < rows.count(); i++) {
    std::memcpy((T*)a.h1 + rows.row[i] * H, h + i * hp, H * sizeof(T));
    std::memcpy((T*)a.c1 + rows.row[i] * H, c + i * hp, H * sizeof(T));
  }
}

template <class T>
void lstm_backward(const Args& a, int part, int parts) {
  const int64_t H = a.H, hp = padded<T>(H), n = 4;
  Rows rows(a.B, a.T, a.lengths, part, parts);
  const int64_t m0 = rows.count(), chunk = chunk_of(m0);
  Packed<T> U((const T*)a.w[0], n, H, H, H, 1), Ut(hp, n * hp);
  for (int64_t g = 0; g < n; g++) Ut.put(0, g * hp, (const T*)a.w[0] + g * H * H, H, H, 1, H);
  Spread<T> b((const T*)a.b[0], n, H);
  Buffer<T> h(chunk * m0 * hp), g(chunk * m0 * n * hp), gx(n * hp), c(hp), c1(hp), dh(m0 * hp), dc(m0 * hp), dg(m0 * n * hp);
  for (int64_t i = 0; i < m0; i++) {
    spread<T>(dh + i * hp, (const T*)a.dh1 + rows.row[i] * H, 1, H);
    spread<T>(dc + i * hp, (const T*)a.dc1 + rows.row[i] * H, 1, H);
  }
  std::vector<int64_t> first;
  for (int64_t end = rows.T; end > 0;) {
    int64_t begin = std::max<int64_t>(0, end - chunk), many = history<T>(a, rows, begin, end, h, first);
    gemm<T>(h, hp, U, g, n * hp, many, b);
    for (int64_t t = end - 1; t >= begin; t--) {
      int64_t m = rows.going(t);
      for (int64_t i = 0; i < m; i++) {
        int64_t row = rows.row[i], at = row * a.T + t;
        T *gi = g + (first[t - begin] + i) * n * hp, *d = dh + i * hp, *e = dc + i * hp, *o = dg + i * n * hp;
        spread<T>(gx, (const T*)a.x + at * n * H, n, H);
        lstm_gates<T>(hp, gx, gi);
        spread<T>(c, t ? (const T*)a.c + (at - 1) * H : (const T*)a.c0 + row * H, 1, H);
        spread<T>(c1, (const T*)a.c + at * H, 1, H);
        accumulate<T>(d, (const T*)a.dy + at * H, H);
        for (int64_t j = 0; j < hp; j += N<T>) {
          V<T> dv = load(d + j), in = load(gi + j), f = load(gi + hp + j), q = load(gi + 2 * hp + j), out = load(gi + 3 * hp + j);
          V<T> s = vtanh(load(c1 + j)), de = load(e + j) + dv * out * (T(1) - s * s);
          store(o + j, de * q * in * (T(1) - in));
          store(o + hp + j, de * load(c + j) * f * (T(1) - f));
          store(o + 2 * hp + j, de * in * (T(1) - q * q));
          store(o + 3 * hp + j, dv * s * out * (T(1) - out));
          store(e + j, de * f);
          store(d + j, V<T>{});
        }
        gather<T>((T*)a.dx + at * n * H, o, n, H);
      }
      gemm<T>(dg, n * hp, Ut, dh, hp, m, nullptr, true);
    }
    end = begin;
  }
  for (int64_t i = 0; i < m0; i++) {
    std::memcpy((T*)a.dh0 + rows.row[i] * H, dh + i * hp, H * sizeof(T));
    std::memcpy((T*)a.dc0 + rows.row[i] * H, dc + i * hp, H * sizeof(T));
  }
}
