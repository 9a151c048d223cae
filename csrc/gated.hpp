// Shared code of the cells with one product with h: rnn, gru, lstm.
//   w: U (gates H, H), its bias
#pragma once
#include "scan.hpp"

template <class T, int GATES, int STATES_>
struct Gated {
  static constexpr int STATES = STATES_;
  const Args& a;
  const int64_t H, hp, ld;
  Packed<T> U, Ut;  // U to compute gates, its transpose for the backward pass
  PaddedRow<T> b;

  Gated(const Args& a, bool backward)
      : a(a), H(a.H), hp(padded_size<T>(a.H)), ld(row_stride<T>(a.H)),
        U(backward && a.saved ? 0 : GATES * hp, hp, H, !backward && is_one_row<T>(a)),
        Ut(backward && is_state_wanted(a, a.T - 1) ? hp : 0, GATES * hp, H), b(a.w[1], GATES, H) {}
  void pack(const Team& team) {
    const T* from = (const T*)a.w[0];
    for (int64_t g = 0; g < GATES; g++) {
      if (U.n) U.put(team, g * hp, 0, from + g * H * H, H, H, 1);
      if (Ut.n) Ut.put(team, 0, g * hp, from + g * H * H, H, 1, H);
    }
  }
  int64_t gates() const { return GATES; }

  struct Work {
    const bool is_direct;  // the gradients of the weights are written directly to the caller
    const int64_t share;   // scratch memory per thread
    Outer<T> U;
    Buffer<T> b, room;
    Work(const Gated& net, int64_t rows, int team, bool backward, bool is_direct = false)
        : is_direct(is_direct), share(backward ? Outer<T>::room(rows, GATES * net.hp) : 0),
          U(backward && !is_direct ? GATES * net.hp : 0, net.hp), b(backward ? GATES * net.hp : 0),
          room(team * share, false) {}
    void clear(const Team& team) { U.clear(team); }
  };
  void prepare(int64_t, const StepView<T>&, Work&) const {}
  void add_weight_gradients(int64_t count, const StepView<T>& at, int64_t slopes, Work& work) const {
    add_products(count, at, at.slope, slopes, work);
    sum_rows<T>(at.team, count, at.slope, slopes, GATES * hp, work.b);
  }
  void add_products(int64_t count, const StepView<T>& at, const T* slope, int64_t slopes, Work& work) const {
    T* room = work.room + at.team.member * work.share;
    if (work.is_direct)
      Outer<T>::put((T*)a.dw[0], H, at.team, GATES * H, H, count, slope, slopes, at.seen, ld, room);
    else
      work.U.add(at.team, count, slope, slopes, at.seen, ld, room, at.is_first);
  }
  void write_gradients(const Team& team, const Work& work, bool add) const {
    for (int64_t g = 0; g < GATES; g++) {
      if (!work.is_direct) work.U.write(team, (T*)a.dw[0] + g * H * H, H, g * hp, H, H, add);
      if (a.dw[1] && !team.member) write_row<T>((T*)a.dw[1] + g * H, work.b + g * hp, H, add);
    }
  }
};
