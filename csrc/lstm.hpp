// LSTM: x is W x + b_ih. A record holds i, f, g and o.
#pragma once
#include "gated.hpp"

template <class T>
inline void compute_lstm_gates(int64_t hp, Span columns, const T* x, T* g) {
  for (int64_t i = columns.lo; i < columns.hi; i += N<T>) {
    store(g + i, sigmoid<T>(load(x + i) + load(g + i)));
    store(g + hp + i, sigmoid<T>(load(x + hp + i) + load(g + hp + i)));
    store(g + 2 * hp + i, vtanh(load(x + 2 * hp + i) + load(g + 2 * hp + i)));
    store(g + 3 * hp + i, sigmoid<T>(load(x + 3 * hp + i) + load(g + 3 * hp + i)));
  }
}
// c' = f c + i g
template <class T>
inline V<T> compute_lstm_memory(int64_t hp, const T* g, const T* c, int64_t j) {
  return load(g + hp + j) * load(c + j) + load(g + j) * load(g + 2 * hp + j);
}
// de: the gradient of c' -> of c; o: those of the gates i, f and g before their functions
template <class T>
inline V<T> back_lstm(int64_t hp, const T* g, const T* c, V<T> de, T* o, int64_t j) {
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
  static int64_t record_size(const Args& a) { return 4 * padded_size<T>(a.H) + N<T>; }
  int64_t slope_size() const { return 4 * hp + N<T>; }

  void compute_inside(int64_t m, const StepView<T>& at, Work&) const {
    const int64_t R = slope_size();
    gemm<T>(at.seen, ld, this->U, at.rec, R, m, this->b, at.columns);
    for (int64_t i = 0; i < m; i++) compute_lstm_gates<T>(hp, at.columns, at.x[i], at.rec + i * R);
  }
  void finish(int64_t m, const StepView<T>& at, Work&) const {
    for (int64_t i = 0; i < m; i++) {
      T *g = at.rec + i * slope_size(), *h = at.s[0] + i * ld, *c = at.s[1] + i * ld;
      for (int64_t j = at.columns.lo; j < at.columns.hi; j += N<T>) {
        V<T> cj = compute_lstm_memory<T>(hp, g, c, j);
        store(c + j, cj);
        store(h + j, load(g + 3 * hp + j) * vtanh(cj));
      }
    }
  }
  void backpropagate(int64_t m, const StepView<T>& at, int64_t, Work&) const {
    const int64_t R = slope_size();
    for (int64_t i = 0; i < m; i++) {
      T *g = at.rec + i * R, *c = at.s[1] + i * ld, *d = at.d[0] + i * ld, *e = at.d[1] + i * ld,
        *o = at.slope + i * R;
      for (int64_t j = at.columns.lo; j < at.columns.hi; j += N<T>) {
        V<T> dv = load(d + j), out = load(g + 3 * hp + j), s = vtanh(compute_lstm_memory<T>(hp, g, c, j));
        store(o + 3 * hp + j, dv * s * out * (T(1) - out));
        store(e + j, back_lstm<T>(hp, g, c, load(e + j) + dv * out * (T(1) - s * s), o, j));
        store(d + j, V<T>{});
      }
      unpad<T>(at.dx[i], o, 4, H, at.columns);
    }
    at.team.wait();
    pull_back<T>(at.slope, R, this->Ut, ld, m, at);
  }
  void add_weight_gradients(int64_t count, const StepView<T>& at, Work& work) const {
    Base::add_weight_gradients(count, at, slope_size(), work);
  }
};
