// AttnRNN: x is u. w: W_q, b_q, W_o, b_o, W_g (H x 2H: for h, for o), b_g, scale and shift of the norm; kind
// = 1: with the norm. A record holds q, g, s (the input of gelu), the attention of each head (4 values per
// slot), and the mean and r of the norm. Of the four context rows, h + u needs no separate product: its score
// is the sum of two others. A sequence with m slots is m rows, each of which attends to four rows of every
// slot; u, which the slots share, counts only with the first slot.
#pragma once
#include "norm.hpp"
#include "scan.hpp"

enum { ROW_H = 1, ROW_X = 2, ROW_SUM = 4, ROW_PRODUCT = 8 };

template <class T>
struct Attn {
  static constexpr int STATES = 1;
  const Args& a;
  const int64_t H, hp, ld, d, slots, norm;  // norm: offset of its values in a record
  const T scale;
  const bool ragged;               // H is not a multiple of the panel width
  Packed<T> A, O, G, At_, Ot, Gt;  // [W_q; W_g for h], W_o, W_g for o; and their transposes
  Buffer<T> bA;
  PaddedRow<T> bo, gamma, beta;

  Attn(const Args& a, bool backward)
      : a(a), H(a.H), hp(padded_size<T>(H)), ld(row_stride<T>(H)), d(H / a.heads), slots(a.slots),
        norm(3 * hp + 4 * a.heads * slots), scale(T(1) / std::sqrt(T(H / a.heads))), ragged(hp != H),
        A(backward && a.saved ? 0 : 2 * hp, hp, H, !backward && is_one_row<T>(a)),
        O(A.n ? hp : 0, hp, H, A.is_unpacked), G(A.n ? hp : 0, hp, H, A.is_unpacked),
        At_(backward && is_state_wanted(a, a.T - 1) ? hp : 0, 2 * hp, H), Ot(backward ? hp : 0, hp, H),
        Gt(Ot.n, hp, H), bA(2 * hp), bo(a.w[3], 1, H), gamma(a.w[6], 1, H), beta(a.w[7], 1, H) {
    pad<T>(bA, (const T*)a.w[1], 1, H);
    pad<T>(bA + hp, (const T*)a.w[5], 1, H);
  }
  void pack(const Team& team) {
    const T *Wq = (const T*)a.w[0], *Wo = (const T*)a.w[2], *Wg = (const T*)a.w[4];
    if (A.n) {
      A.put(team, 0, 0, Wq, H, H, 1);
      A.put(team, hp, 0, Wg, H, 2 * H, 1);
      O.put(team, 0, 0, Wo, H, H, 1);
      G.put(team, 0, 0, Wg + H, H, 2 * H, 1);
    }
    if (At_.n) {
      At_.put(team, 0, 0, Wq, H, 1, H);
      At_.put(team, 0, hp, Wg, H, 1, 2 * H);
    }
    if (Ot.n) {
      Ot.put(team, 0, 0, Wo, H, 1, H);
      Gt.put(team, 0, 0, Wg + H, H, 1, 2 * H);
    }
  }
  int64_t gates() const { return 1; }
  static int64_t record_size(const Args& a) {
    return 3 * padded_size<T>(a.H) + round_up(4 * a.heads * a.slots + 2, N<T>);
  }
  int64_t slope_size() const { return 4 * hp + N<T>; }

  struct Work {
    const bool is_direct;  // the gradients of the weights are written directly to the caller
    const int64_t share;   // scratch memory per thread
    Buffer<T> aC, o, score, slope, xhat, out, v;
    Outer<T> A, O, G;
    Buffer<T> b, dscale, room;
    Work(const Attn& net, int64_t rows, int team, bool backward, bool is_direct = false)
        : is_direct(is_direct), share(backward ? Outer<T>::room(rows, 2 * net.hp) : 0),
          aC(rows * net.ld, net.ragged), o(rows * net.ld, false),
          score(7 * net.slots * round_up(rows * net.a.heads, N<T>)),
          slope(backward ? rows * net.ld : 0, false), xhat(backward ? rows * net.ld : 0, false),
          out(backward ? rows * net.ld : 0, false), v(backward ? rows * net.ld : 0, false),
          A(backward && !is_direct ? 2 * net.hp : 0, net.hp), O(A.m / 2, net.hp), G(A.m / 2, net.hp),
          b(3 * net.hp), dscale(2 * net.hp), room(team * share, false) {}
    void clear(const Team& team) { A.clear(team), O.clear(team), G.clear(team); }
  };

  // the row of the sequence's first slot
  int64_t first_slot(int64_t row) const { return slots == 1 ? row : row - row % slots; }

  // sums over one head of v * h, v * u and v * h * u
  void compute_dots(const T* v, const T* h, const T* u, T& sh, T& su, T& sp) const {
    V<T> s0{}, s1{}, s2{};
    int64_t i = 0;
    for (; i + N<T> <= d; i += N<T>) {
      V<T> x = load(v + i), xh = x * load(h + i), y = load(u + i);
      s0 += xh, s1 += x * y, s2 += xh * y;
    }
    sh = sum<T>(s0), su = sum<T>(s1), sp = sum<T>(s2);
    for (; i < d; i++) sh += v[i] * h[i], su += v[i] * u[i], sp += v[i] * h[i] * u[i];
  }

  // out = wh h + wu u + wp h u over one head, or out += with ADD
  template <bool ADD>
  void mix_one(T* out, const T* h, const T* u, const T* p) const {
    const T wh = p[0] + p[2], wu = p[1] + p[2], wp = p[3];
    int64_t i = 0;
    for (; i + N<T> <= d; i += N<T>) {
      V<T> hi = load(h + i), ui = load(u + i), value = wh * hi + wu * ui + wp * (hi * ui);
      put<ADD>(out + i, value);
    }
    for (; i < d; i++) {
      const T value = wh * h[i] + wu * u[i] + wp * h[i] * u[i];
      out[i] = ADD ? out[i] + value : value;
    }
  }
  // the sum over all slots, whose h are consecutive rows
  void mix(T* out, const T* h, const T* u, const T* p) const {
    mix_one<false>(out, h, u, p);
    for (int64_t k = 1; k < slots; k++) mix_one<true>(out, h + k * ld, u, p + 4 * k);
  }
  template <bool ADD>
  static void put(T* to, V<T> v) {
    store(to, ADD ? load(to) + v : v);
  }

  // The attention of some rows and heads: softmax over the context rows, 0 for excluded rows; several heads
  // per vector. The scores of the slots are `stride` apart, and so are the weights.
  void attend(Span pairs, int64_t stride, const T* sh, const T* su, const T* sp, T* p) const {
    const auto is_used = [&](int64_t k) { return a.parts >> k % 4 & 1 && (k < 4 || k % 4 != 1); };
    for (int64_t i = pairs.lo; i < pairs.hi; i += N<T>) {
      V<T> top = all(T(-INFINITY)), total{};
      for (int64_t slot = 0; slot < slots; slot++) {
        V<T> h = load(sh + slot * stride + i), u = load(su + i), both = load(sp + slot * stride + i);
        const V<T> s[4] = {h * scale, u * scale, (h + u) * scale, both * scale};
        for (int k = 0; k < 4; k++) {
          if (is_used(4 * slot + k)) top = pick<T>(s[k] > top, s[k], top);
          store(p + (4 * slot + k) * stride + i, s[k]);
        }
      }
      for (int64_t k = 0; k < 4 * slots; k++) {
        V<T> e = is_used(k) ? vexp(load(p + k * stride + i) - top) : V<T>{};
        total += e;
        store(p + k * stride + i, e);
      }
      for (int64_t k = 0; k < 4 * slots; k++) store(p + k * stride + i, load(p + k * stride + i) / total);
    }
  }

  void compute_inside(int64_t m, const StepView<T>& at, Work& work) const {
    const int64_t R = record_size(a), heads = a.heads, pairs = round_up(m * heads, N<T>);
    const Span pair = at.team.share(m * heads, N<T>), row = at.team.share(m);
    T *p = work.score, *sh = p + 4 * slots * pairs, *sp = sh + slots * pairs, *su = sp + slots * pairs;
    gemm<T>(at.seen, ld, A, at.rec, R, m, bA, at.columns);
    at.team.wait();
    for (int64_t j = pair.lo; j < pair.hi; j++) {
      const int64_t i = j / heads, e = j % heads * d;
      const T* h = at.s[0] + first_slot(i) * ld + e;
      for (int64_t k = j; k < j + slots * pairs; k += pairs, h += ld)
        compute_dots(at.rec + i * R + e, h, at.x[i] + e, sh[k], su[j], sp[k]);
    }
    attend(pair, pairs, sh, su, sp, p);
    for (int64_t j = pair.lo; j < pair.hi; j++) {
      const int64_t i = j / heads, e = j % heads;
      T* w = at.rec + i * R + 3 * hp + 4 * slots * e;
      for (int64_t k = 0; k < 4 * slots; k++) w[k] = p[k * pairs + j];
      mix(work.aC + i * ld + e * d, at.s[0] + first_slot(i) * ld + e * d, at.x[i] + e * d, w);
    }
    at.team.wait();
    gemm<T>(work.aC, ld, O, at.rec + 2 * hp, R, m, bo, at.columns);
    for (int64_t i = 0; i < m; i++)
      for (int64_t j = at.columns.lo; j < at.columns.hi; j += N<T>)
        store(work.o + i * ld + j, gelu<T>(load(at.rec + i * R + 2 * hp + j)));
    at.team.wait();
    gemm<T>(work.o, ld, G, at.rec + hp, R, m, nullptr, at.columns, true);
    for (int64_t i = 0; i < m; i++) {
      T* g = at.rec + i * R + hp;
      for (int64_t j = at.columns.lo; j < at.columns.hi; j += N<T>) store(g + j, sigmoid<T>(load(g + j)));
    }
    for (int64_t i = row.lo; i < row.hi && a.kind; i++) {
      const Moments<T> z = compute_moments<T>(
          H, [&](int64_t j) { return load(work.o + i * ld + j) + load(at.s[0] + i * ld + j); });
      T* rest = at.rec + i * R + norm;
      rest[0] = z.mean, rest[1] = z.r;
    }
  }
  void finish(int64_t m, const StepView<T>& at, Work& work) const {
    for (int64_t i = 0; i < m; i++) {
      T *g = at.rec + i * record_size(a) + hp, *rest = g - hp + norm, *h = at.s[0] + i * ld;
      for (int64_t j = at.columns.lo; j < at.columns.hi; j += N<T>) {
        V<T> hj = load(h + j), n = load(work.o + i * ld + j);
        if (a.kind) n = (n + hj - rest[0]) * rest[1] * load(gamma + j) + load(beta + j);
        store(h + j, hj + load(g + j) * (n - hj));
      }
    }
  }

  void prepare(int64_t count, const StepView<T>& at, Work& work) const;
  void backpropagate(int64_t m, const StepView<T>& at, int64_t at0, Work& work) const;
  void back_gate(const StepView<T>& at, Span row, int64_t at0, Work& work) const;
  void back_heads(const StepView<T>& at, Span pair, Work& work) const;
  void back_head(const StepView<T>& at, int64_t row, int64_t e, T* s, const Work& work) const;
  template <bool ADD>
  void back_one(const T* p, const T* s, const T* v, const T* q, const T* h, const T* u, T* dh, T* du,
                T* dq) const;
  void add_weight_gradients(int64_t count, const StepView<T>& at, Work& work) const;
  void write_gradients(const Team& team, const Work& work, bool add) const;
};
