// The plain RNN: x is W x + b_ih; kind = 0: tanh, 1: relu. Its slope is a function of its output.
#pragma once
#include "gated.hpp"

template <class T>
struct Rnn : Gated<T, 1, 1> {
  typedef Gated<T, 1, 1> Base;
  using Base::a, Base::hp, Base::ld, Base::H;
  using Base::Base;
  using typename Base::Work;
  static int64_t record_size(const Args& a) { return row_stride<T>(a.H); }
  int64_t slope_size() const { return ld; }

  void compute_inside(int64_t m, const StepView<T>& at, Work&) const {
    gemm<T>(at.seen, ld, this->U, at.rec, ld, m, this->b, at.columns);
    for (int64_t i = 0; i < m; i++)
      for (int64_t j = at.columns.lo; j < at.columns.hi; j += N<T>) {
        V<T> s = load(at.x[i] + j) + load(at.rec + i * ld + j);
        store(at.rec + i * ld + j, a.kind ? pick<T>(s > T(0), s, V<T>{}) : vtanh(s));
      }
  }
  void finish(int64_t m, const StepView<T>& at, Work&) const {
    for (int64_t i = 0; i < m; i++)
      for (int64_t j = at.columns.lo; j < at.columns.hi; j += N<T>)
        store(at.s[0] + i * ld + j, load(at.rec + i * ld + j));
  }

  void backpropagate(int64_t m, const StepView<T>& at, int64_t, Work&) const {
    for (int64_t i = 0; i < m; i++) {
      T *d = at.d[0] + i * ld, *o = at.slope + i * ld;
      for (int64_t j = at.columns.lo; j < at.columns.hi; j += N<T>) {
        V<T> s = load(at.rec + i * ld + j), dv = load(d + j);
        store(o + j, a.kind ? pick<T>(s > T(0), dv, V<T>{}) : dv * (T(1) - s * s));
        store(d + j, V<T>{});
      }
      unpad<T>(at.dx[i], o, 1, H, at.columns);
    }
    at.team.wait();
    pull_back<T>(at.slope, ld, this->Ut, ld, m, at);
  }
  void add_weight_gradients(int64_t count, const StepView<T>& at, Work& work) const {
    Base::add_weight_gradients(count, at, ld, work);
  }
};
