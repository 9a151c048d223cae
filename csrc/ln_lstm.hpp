// LSTM with layer normalisation: x is N(W x). w: U, scale, shift, scale and shift of the memory's norm. A
// record holds i, f, g, o, xhat of the four products, their r, and the mean and r of c'; slopes are the
// gradients of the gates, of U h, and of N(c'), followed by xhat of c'.
#pragma once
#include "lstm.hpp"
#include "norm.hpp"

template <class T>
struct LnLstm : Gated<T, 4, 2> {
  typedef Gated<T, 4, 2> Base;
  using Base::a, Base::hp, Base::ld, Base::H;
  PaddedRow<T> scale, shift, scale_c, shift_c;

  LnLstm(const Args& a, bool backward)
      : Base(a, backward), scale(a.w[1], 4, a.H), shift(a.w[2], 4, a.H), scale_c(a.w[3], 1, a.H),
        shift_c(a.w[4], 1, a.H) {}
  static int64_t record_size(const Args& a) { return 8 * padded_size<T>(a.H) + round_up(6, N<T>) + N<T>; }
  int64_t slope_size() const { return 10 * hp + N<T>; }

  struct Work : Base::Work {
    Buffer<T> u, scale, scale_c, shift_c;
    Work(const LnLstm& net, int64_t rows, int team, bool backward, bool is_direct = false)
        : Base::Work(net, rows, team, backward, is_direct), u(team * 4 * net.hp),
          scale(backward ? 4 * net.hp : 0), scale_c(backward ? net.hp : 0), shift_c(backward ? net.hp : 0) {}
  };

  void compute_inside(int64_t m, const StepView<T>& at, Work&) const {
    const int64_t R = record_size(a);
    const Span row = at.team.share(m);
    gemm<T>(at.seen, ld, this->U, at.rec + 4 * hp, R, m, nullptr, at.columns);
    at.team.wait();
    for (int64_t i = row.lo; i < row.hi; i++) {
      T *g = at.rec + i * R, *xhat = g + 4 * hp, *rest = g + 8 * hp;
      for (int64_t k = 0; k < 4; k++) rest[k] = normalise<T>(H, hp, xhat + k * hp);
      for (int64_t j = 0; j < 4 * hp; j += N<T>)
        store(g + j, load(xhat + j) * load(scale + j) + load(shift + j));
      compute_lstm_gates<T>(hp, {0, hp}, at.x[i], g);
      const Moments<T> c = compute_moments<T>(
          H, [&](int64_t j) { return compute_lstm_memory<T>(hp, g, at.s[1] + i * ld, j); });
      rest[4] = c.mean, rest[5] = c.r;
    }
  }
  void finish(int64_t m, const StepView<T>& at, Work&) const {
    for (int64_t i = 0; i < m; i++) {
      T *g = at.rec + i * record_size(a), *h = at.s[0] + i * ld, *c = at.s[1] + i * ld, *rest = g + 8 * hp;
      for (int64_t j = at.columns.lo; j < at.columns.hi; j += N<T>) {
        V<T> cj = compute_lstm_memory<T>(hp, g, c, j),
             n = (cj - rest[4]) * rest[5] * load(scale_c + j) + load(shift_c + j);
        store(c + j, cj);
        store(h + j, load(g + 3 * hp + j) * vtanh(n));
      }
    }
  }
  void prepare(int64_t, const StepView<T>&, Work&) const {}
  void backpropagate(int64_t m, const StepView<T>& at, int64_t, Work& work) const {
    const int64_t R = record_size(a), S = slope_size();
    const Span row = at.team.share(m);
    T* u = work.u + at.team.member * 4 * hp;
    at.team.wait();
    for (int64_t i = row.lo; i < row.hi; i++) {
      T *g = at.rec + i * R, *c = at.s[1] + i * ld, *d = at.d[0] + i * ld, *e = at.d[1] + i * ld,
        *o = at.slope + i * S;
      const T *xhat = g + 4 * hp, *rest = g + 8 * hp;
      T *dn = o + 8 * hp, *xc = o + 9 * hp;
      for (int64_t j = 0; j < hp; j += N<T>) {
        V<T> x = (compute_lstm_memory<T>(hp, g, c, j) - rest[4]) * rest[5],
             s = vtanh(x * load(scale_c + j) + load(shift_c + j));
        V<T> dv = load(d + j), out = load(g + 3 * hp + j);
        store(xc + j, x);
        store(dn + j, dv * out * (T(1) - s * s));
        store(o + 3 * hp + j, dv * s * out * (T(1) - out));
        store(d + j, V<T>{});
      }
      back_norm<T>(H, hp, xc, rest[5], scale_c, dn, u);
      for (int64_t j = 0; j < hp; j += N<T>)
        store(e + j, back_lstm<T>(hp, g, c, load(e + j) + load(u + j), o, j));
      for (int64_t k = 0; k < 4; k++)
        back_norm<T>(H, hp, xhat + k * hp, rest[k], scale + k * hp, o + k * hp, o + (4 + k) * hp);
      unpad<T>(at.dx[i], o, 4, H, {0, hp});
    }
    at.team.wait();
    pull_back<T>(at.slope + 4 * hp, S, this->Ut, ld, m, at);
  }
  void add_weight_gradients(int64_t count, const StepView<T>& at, Work& work) const {
    const int64_t S = slope_size();
    this->add_products(count, at, at.slope + 4 * hp, S, work);
    sum_products<T>(at.team, count, at.slope, S, at.rec + 4 * hp, record_size(a), 4 * hp, work.scale);
    sum_rows<T>(at.team, count, at.slope, S, 4 * hp, work.b);
    sum_products<T>(at.team, count, at.slope + 8 * hp, S, at.slope + 9 * hp, S, hp, work.scale_c);
    sum_rows<T>(at.team, count, at.slope + 8 * hp, S, hp, work.shift_c);
  }
  void write_gradients(const Team& team, const Work& work, bool add) const {
    for (int64_t g = 0; g < 4; g++) {
      if (!work.is_direct) work.U.write(team, (T*)a.dw[0] + g * H * H, H, g * hp, H, H, add);
      if (team.member) continue;
      write_row<T>((T*)a.dw[1] + g * H, work.scale + g * hp, H, add);
      write_row<T>((T*)a.dw[2] + g * H, work.b + g * hp, H, add);
    }
    if (team.member) return;
    write_row<T>((T*)a.dw[3], work.scale_c, H, add);
    write_row<T>((T*)a.dw[4], work.shift_c, H, add);
  }
};
