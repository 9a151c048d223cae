// GRU: x is W x + b_ih. A record holds r, z, n and U_n h + b_n; slopes are the gradients of r, z and U_n h,
// and of n.
#pragma once
#include "gated.hpp"

// Replace the products of one row by r, z and n; the product of n is stored after them.
template <class T>
inline void compute_gru_gates(int64_t hp, Span columns, const T* x, T* g) {
  for (int64_t i = columns.lo; i < columns.hi; i += N<T>) {
    V<T> r = sigmoid<T>(load(x + i) + load(g + i)), z = sigmoid<T>(load(x + hp + i) + load(g + hp + i));
    V<T> u = load(g + 2 * hp + i);
    store(g + i, r);
    store(g + hp + i, z);
    store(g + 2 * hp + i, vtanh(load(x + 2 * hp + i) + r * u));
    store(g + 3 * hp + i, u);
  }
}
// h' = n + z (h - n)
template <class T>
inline void finish_gru(int64_t hp, Span columns, const T* g, T* h) {
  for (int64_t i = columns.lo; i < columns.hi; i += N<T>) {
    V<T> n = load(g + 2 * hp + i);
    store(h + i, n + load(g + hp + i) * (load(h + i) - n));
  }
}
// d: the gradient of h' -> of h; o: those of r, z, u and n before their functions
template <class T>
inline void back_gru(int64_t hp, Span columns, const T* g, const T* u, const T* h, T* d, T* o) {
  for (int64_t i = columns.lo; i < columns.hi; i += N<T>) {
    V<T> dv = load(d + i), r = load(g + i), z = load(g + hp + i), n = load(g + 2 * hp + i);
    V<T> dn = dv * (T(1) - z) * (T(1) - n * n);
    store(o + i, dn * load(u + i) * r * (T(1) - r));
    store(o + hp + i, dv * (load(h + i) - n) * z * (T(1) - z));
    store(o + 2 * hp + i, dn * r);
    store(o + 3 * hp + i, dn);
    store(d + i, dv * z);
  }
}

template <class T>
struct Gru : Gated<T, 3, 1> {
  typedef Gated<T, 3, 1> Base;
  using Base::Base;
  using Base::hp, Base::ld, Base::H;
  using typename Base::Work;
  static int64_t record_size(const Args& a) { return 4 * padded_size<T>(a.H) + N<T>; }
  int64_t slope_size() const { return 4 * hp + N<T>; }

  void compute_inside(int64_t m, const StepView<T>& at, Work&) const {
    const int64_t R = slope_size();
    gemm<T>(at.seen, ld, this->U, at.rec, R, m, this->b, at.columns);
    for (int64_t i = 0; i < m; i++) compute_gru_gates<T>(hp, at.columns, at.x[i], at.rec + i * R);
  }
  void finish(int64_t m, const StepView<T>& at, Work&) const {
    for (int64_t i = 0; i < m; i++)
      finish_gru<T>(hp, at.columns, at.rec + i * slope_size(), at.s[0] + i * ld);
  }
  void backpropagate(int64_t m, const StepView<T>& at, int64_t, Work&) const {
    const int64_t R = slope_size();
    for (int64_t i = 0; i < m; i++) {
      T *g = at.rec + i * R, *o = at.slope + i * R;
      back_gru<T>(hp, at.columns, g, g + 3 * hp, at.s[0] + i * ld, at.d[0] + i * ld, o);
      unpad<T>(at.dx[i], o, 2, H, at.columns);
      unpad<T>(at.dx[i] + 2 * H, o + 3 * hp, 1, H, at.columns);
    }
    at.team.wait();
    pull_back<T>(at.slope, R, this->Ut, ld, m, at);
  }
  void add_weight_gradients(int64_t count, const StepView<T>& at, Work& work) const {
    Base::add_weight_gradients(count, at, slope_size(), work);
  }
};
