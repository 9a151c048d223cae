// The plain RNN over time: gx = W x + b_ih is given; norm = 0: tanh, 1: relu. Its slope is a function of its output.
#pragma once
#include "rows.hpp"

template <class T>
void rnn_forward(const Args& a, int part, int parts) {
  const int64_t H = a.H, hp = padded<T>(H);
  Rows rows(a.B, a.T, a.lengths, part, parts);
  Packed<T> U((const T*)a.w[0], 1, H, H, H, 1);
  Spread<T> b((const T*)a.b[0], 1, H);
  Buffer<T> h(rows.count() * hp), gx(hp), gh(rows.count() * hp);
  for (int64_t i = 0; i < rows.count(); i++) spread<T>(h + i * hp, (const T*)a.h0 + rows.row[i] * H, 1, H);
  for (int64_t t = 0; t < rows.T; t++) {
    int64_t m = rows.going(t);
    gemm<T>(h, hp, U, gh, hp, m, b);
    for (int64_t i = 0; i < m; i++) {
      int64_t at = rows.row[i] * a.T + t;
      T* hi = h + i * hp;
      spread<T>(gx, (const T*)a.x + at * H, 1, H);
      for (int64_t j = 0; j < hp; j += N<T>) {
        V<T> s = load(gx + j) + load(gh + i * hp + j);
        store(hi + j, a.norm ? pick<T>(s > T(0), s, V<T>{}) : vtanh(s));
      }
      std::memcpy((T*)a.y + at * H, hi, H * sizeof(T));
    }
  }
  for (int64_t i = 0; i < rows.count(); i++) std::memcpy((T*)a.h1 + rows.row[i] * H, h + i * hp, H * sizeof(T));
}

template <class T>
void rnn_backward(const Args& a, int part, int parts) {
  const int64_t H = a.H, hp = padded<T>(H);
  Rows rows(a.B, a.T, a.lengths, part, parts);
  Packed<T> Ut((const T*)a.w[0], 1, H, H, 1, H);
  Buffer<T> dh(rows.count() * hp), da(rows.count() * hp), y(hp);
  for (int64_t i = 0; i < rows.count(); i++) spread<T>(dh + i * hp, (const T*)a.dh1 + rows.row[i] * H, 1, H);
  for (int64_t t = rows.T - 1; t >= 0; t--) {
    int64_t m = rows.going(t);
    for (int64_t i = 0; i < m; i++) {
      int64_t at = rows.row[i] * a.T + t;
      T *d = dh + i * hp, *o = da + i * hp;
      accumulate<T>(d, (const T*)a.dy + at * H, H);
      spread<T>(y, (const T*)a.y + at * H, 1, H);
      for (int64_t j = 0; j < hp; j += N<T>) {
        V<T> s = load(y + j), dv = load(d + j);
        store(o + j, a.norm ? pick<T>(s > T(0), dv, V<T>{}) : dv * (T(1) - s * s));
      }
      std::memcpy((T*)a.dx + at * H, o, H * sizeof(T));
    }
    gemm<T>(da, hp, Ut, dh, hp, m, nullptr);
  }
  for (int64_t i = 0; i < rows.count(); i++) std::memcpy((T*)a.dh0 + rows.row[i] * H, dh + i * hp, H * sizeof(T));
}
