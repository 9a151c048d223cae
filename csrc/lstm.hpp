// LSTM: x is W x + b_ih. A record is i, f, g and o.
#pragma once
#include "gated.hpp"

template <class T>
inline void lstm_gates(int64_t hp, Span mine, const T* x, T* g) {
  for (int64_t i = mine.lo; i < mine.hi; i += N<T>) {
    store(g + i, sigmoid<T>(load(x + i) + load(g + i)));
    store(g + hp + i, sigmoid<T>(load(x + hp + i) + load(g + hp + i)));
    store(g + 2 * hp + i, vtanh(load(x + 2 * hp + i) + load(g + 2 * hp + i)));
    store(g + 3 * hp + i, sigmoid<T>(load(x + 3 * hp + i) + load(g + 3 * hp + i)));
  }
}
// c' = f c + i g
template <class T>
inline V<T> lstm_memory(int64_t hp, const T* g, const T* c, int64_t j) {
  return load(g + hp + j) * load(c + j) + load(g + j) * load(g + 2 * hp + j);
}
// de: the gradient of c' -> of c; o: those of the gates i, f and g before their functions
template <class T>
inline V<T> lstm_back(int64_t hp, const T* g, const T* c, V<T> de, T* o, int64_t j) {
  V<T> in = load(g + j), f = load(g + hp + j), q = load(g + 2 * hp + j);
  store(o + j, de * q * in * (T(1) - in));
  store(o + hp + j, de * load(c + j) * f * (T(1) - f));
  store(o + 2 * hp + j, de * in * (T(1) - q * q));
  return de * f;
}

template <class T>
struct Lstm : Gated<T, 4, 2> {
  typedef Gated<T, 4, 2> Base;
  using Base::Base;
  using Base::hp, Base::ld, Base::H;
  using typename Base::Work;
  static int64_t record(const Args& a) { return 4 * padded<T>(a.H) + N<T>; }
  int64_t slopes() const { return 4 * hp + N<T>; }

  void inside(int64_t m, const At<T>& at, Work&) const {
    const int64_t R = slopes();
    gemm<T>(at.seen, ld, this->U, at.rec, R, m, this->b, at.mine);
    for (int64_t i = 0; i < m; i++) lstm_gates<T>(hp, at.mine, at.x[i], at.rec + i * R);
  }
  void finish(int64_t m, const At<T>& at, Work&) const {
    for (int64_t i = 0; i < m; i++) {
      T *g = at.rec + i * slopes(), *h = at.s[0] + i * ld, *c = at.s[1] + i * ld;
      for (int64_t j = at.mine.lo; j < at.mine.hi; j += N<T>) {
        V<T> cj = lstm_memory<T>(hp, g, c, j);
        store(c + j, cj);
        store(h + j, load(g + 3 * hp + j) * vtanh(cj));
      }
    }
  }
  void back(int64_t m, const At<T>& at, int64_t, Work&) const {
    const int64_t R = slopes();
    for (int64_t i = 0; i < m; i++) {
      T *g = at.rec + i * R, *c = at.s[1] + i * ld, *d = at.d[0] + i * ld, *e = at.d[1] + i * ld,
        *o = at.slope + i * R;
      for (int64_t j = at.mine.lo; j < at.mine.hi; j += N<T>) {
        V<T> dv = load(d + j), out = load(g + 3 * hp + j), s = vtanh(lstm_memory<T>(hp, g, c, j));
        store(o + 3 * hp + j, dv * s * out * (T(1) - out));
        store(e + j, lstm_back<T>(hp, g, c, load(e + j) + dv * out * (T(1) - s * s), o, j));
        store(d + j, V<T>{});
      }
      gather<T>(at.dx[i], o, 4, H, at.mine);
    }
    at.team.wait();
    gemm<T>(at.slope, R, this->Ut, at.dseen, ld, m, nullptr, at.mine, at.add);
  }
  void weigh(int64_t many, const At<T>& at, Work& work) const { Base::weigh(many, at, slopes(), work); }
};
