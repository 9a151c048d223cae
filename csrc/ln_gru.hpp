// GRU with layer normalisation: x is N(W x). w: U, scale, shift. A record holds r, z, n, xhat of the three
// products, and their r; slopes are the gradients of r, z, N(U_n h), n, and of U h.
#pragma once
#include "gru.hpp"
#include "norm.hpp"

template <class T>
struct LnGru : Gated<T, 3, 1> {
  typedef Gated<T, 3, 1> Base;
  using Base::a, Base::hp, Base::ld, Base::H;
  PaddedRow<T> scale, shift;

  LnGru(const Args& a, bool backward) : Base(a, backward), scale(a.w[1], 3, a.H), shift(a.w[2], 3, a.H) {}
  static int64_t record_size(const Args& a) { return 6 * padded_size<T>(a.H) + round_up(3, N<T>) + N<T>; }
  int64_t slope_size() const { return 7 * hp + N<T>; }

  struct Work : Base::Work {
    Buffer<T> u, scale;
    Work(const LnGru& net, int64_t rows, int team, bool backward, bool is_direct = false)
        : Base::Work(net, rows, team, backward, is_direct), u(team * 4 * net.hp),
          scale(backward ? 3 * net.hp : 0) {}
  };

  void compute_inside(int64_t m, const StepView<T>& at, Work& work) const {
    const int64_t R = record_size(a);
    const Span row = at.team.share(m);
    T* u = work.u + at.team.member * 4 * hp;
    gemm<T>(at.seen, ld, this->U, at.rec + 3 * hp, R, m, nullptr, at.columns);
    at.team.wait();
    for (int64_t i = row.lo; i < row.hi; i++) {
      T *g = at.rec + i * R, *xhat = g + 3 * hp;
      for (int64_t k = 0; k < 3; k++) xhat[3 * hp + k] = normalise<T>(H, hp, xhat + k * hp);
      for (int64_t j = 0; j < 3 * hp; j += N<T>)
        store(u + j, load(xhat + j) * load(scale + j) + load(shift + j));
      compute_gru_gates<T>(hp, {0, hp}, at.x[i], u);
      std::memcpy(g, u, 3 * hp * sizeof(T));
    }
  }
  void finish(int64_t m, const StepView<T>& at, Work&) const {
    for (int64_t i = 0; i < m; i++)
      finish_gru<T>(hp, at.columns, at.rec + i * record_size(a), at.s[0] + i * ld);
  }
  void prepare(int64_t, const StepView<T>&, Work&) const {}
  void backpropagate(int64_t m, const StepView<T>& at, int64_t, Work& work) const {
    const int64_t R = record_size(a), S = slope_size();
    const Span row = at.team.share(m), all{0, hp};
    T* u = work.u + at.team.member * 4 * hp;
    at.team.wait();
    for (int64_t i = row.lo; i < row.hi; i++) {
      const T *g = at.rec + i * R, *xhat = g + 3 * hp;
      T* o = at.slope + i * S;
      for (int64_t j = 0; j < hp; j += N<T>)
        store(u + j, load(xhat + 2 * hp + j) * load(scale + 2 * hp + j) + load(shift + 2 * hp + j));
      back_gru<T>(hp, all, g, u, at.s[0] + i * ld, at.d[0] + i * ld, o);
      for (int64_t k = 0; k < 3; k++)
        back_norm<T>(H, hp, xhat + k * hp, xhat[3 * hp + k], scale + k * hp, o + k * hp, o + (4 + k) * hp);
      unpad<T>(at.dx[i], o, 2, H, all);
      unpad<T>(at.dx[i] + 2 * H, o + 3 * hp, 1, H, all);
    }
    at.team.wait();
    pull_back<T>(at.slope + 4 * hp, S, this->Ut, ld, m, at);
  }
  void add_weight_gradients(int64_t count, const StepView<T>& at, Work& work) const {
    const int64_t S = slope_size();
    this->add_products(count, at, at.slope + 4 * hp, S, work);
    sum_products<T>(at.team, count, at.slope, S, at.rec + 3 * hp, record_size(a), 3 * hp, work.scale);
    sum_rows<T>(at.team, count, at.slope, S, 3 * hp, work.b);
  }
  void write_gradients(const Team& team, const Work& work, bool add) const {
    for (int64_t g = 0; g < 3; g++) {
      if (!work.is_direct) work.U.write(team, (T*)a.dw[0] + g * H * H, H, g * hp, H, H, add);
      if (team.member) continue;
      write_row<T>((T*)a.dw[1] + g * H, work.scale + g * hp, H, add);
      write_row<T>((T*)a.dw[2] + g * H, work.b + g * hp, H, add);
    }
  }
};
