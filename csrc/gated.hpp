// What the cells with one product with h share: rnn, gru, lstm.
//   w: U (gates H, H), its bias
#pragma once
#include "scan.hpp"

template <class T, int GATES, int STATES_>
struct Gated {
  static constexpr int STATES = STATES_;
  const Args& a;
  const int64_t H, hp, ld;
  Packed<T> U, Ut;  // U where gates are computed, its transpose where the gradient goes back
  Spread<T> b;

  Gated(const Args& a, bool backward)
      : a(a), H(a.H), hp(padded<T>(a.H)), ld(apart<T>(a.H)), U(backward && a.saved ? 0 : GATES * hp, hp, H),
        Ut(backward ? hp : 0, GATES * hp, H), b(a.w[1], GATES, H) {
    const T* from = (const T*)a.w[0];
    for (int64_t g = 0; g < GATES; g++) {
      if (U.n) U.put(g * hp, 0, from + g * H * H, H, H, H, 1);
      if (Ut.n) Ut.put(0, g * hp, from + g * H * H, H, H, 1, H);
    }
  }
  int64_t gates() const { return GATES; }

  struct Work {
    Outer<T> U;
    Buffer<T> b, room;
    Work(const Gated& net, int64_t rows, bool backward)
        : U(backward ? GATES * net.hp : 0, net.hp), b(backward ? GATES * net.hp : 0), room(backward ? Outer<T>::room(rows, GATES * net.hp) : 0, false) {}
  };
  void prepare(int64_t, const At<T>&, Work&) const {}
  void weigh(int64_t many, const At<T>& at, int64_t slopes, Work& work) const {
    work.U.add(many, at.slope, slopes, at.seen, ld, work.room);
    sum_rows<T>(many, at.slope, slopes, GATES * hp, work.b);
  }
  void give(const Work& work, bool add) const {
    for (int64_t g = 0; g < GATES; g++) {
      work.U.give((T*)a.dw[0] + g * H * H, H, g * hp, H, H, add);
      if (a.dw[1]) give_row<T>((T*)a.dw[1] + g * H, work.b + g * hp, H, add);
    }
  }
};
