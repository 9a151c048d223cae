// GRU: x is W x + b_ih. A record is r, z, n and U_n h + b_n; slopes are those of r, z and U_n h, and of n.
#pragma once
#include "gated.hpp"

// r, z and n of one row in place of the products; what n's product was goes behind them
template <class T>
inline void gru_gates(int64_t hp, Span mine, const T* x, T* g) {
  for (int64_t i = mine.lo; i < mine.hi; i += N<T>) {
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
inline void gru_finish(int64_t hp, Span mine, const T* g, T* h) {
  for (int64_t i = mine.lo; i < mine.hi; i += N<T>) {
    V<T> n = load(g + 2 * hp + i);
    store(h + i, n + load(g + hp + i) * (load(h + i) - n));
  }
}
// d: the gradient of h' -> of h; o: those of r, z, u and n before their functions
template <class T>
inline void gru_back(int64_t hp, Span mine, const T* g, const T* u, const T* h, T* d, T* o) {
  for (int64_t i = mine.lo; i < mine.hi; i += N<T>) {
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
  static int64_t record(const Args& a) { return 4 * padded<T>(a.H) + N<T>; }
  int64_t slopes() const { return 4 * hp + N<T>; }

  void inside(int64_t m, const At<T>& at, Work&) const {
    const int64_t R = slopes();
    gemm<T>(at.seen, ld, this->U, at.rec, R, m, this->b, at.mine);
    for (int64_t i = 0; i < m; i++) gru_gates<T>(hp, at.mine, at.x[i], at.rec + i * R);
  }
  void finish(int64_t m, const At<T>& at, Work&) const {
    for (int64_t i = 0; i < m; i++) gru_finish<T>(hp, at.mine, at.rec + i * slopes(), at.s[0] + i * ld);
  }
  void back(int64_t m, const At<T>& at, int64_t, Work&) const {
    const int64_t R = slopes();
    for (int64_t i = 0; i < m; i++) {
      T *g = at.rec + i * R, *o = at.slope + i * R;
      gru_back<T>(hp, at.mine, g, g + 3 * hp, at.s[0] + i * ld, at.d[0] + i * ld, o);
      gather<T>(at.dx[i], o, 2, H, at.mine);
      gather<T>(at.dx[i] + 2 * H, o + 3 * hp, 1, H, at.mine);
    }
    at.team.wait();
    gemm<T>(at.slope, R, this->Ut, at.dseen, ld, m, nullptr, at.mine, at.add);
  }
  void weigh(int64_t many, const At<T>& at, Work& work) const { Base::weigh(many, at, slopes(), work); }
};
