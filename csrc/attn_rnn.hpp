// AttnRNN over time: u = W_u x (or x) is given; the states are all that the forward keeps.
//   w: W_q, W_o, W_g (H x 2H: for h, for o), scale of the norm;  b: b_q, b_o, b_g, bias of the norm
// Of the four context rows, h + u needs no product of its own: its score is the sum of two others.
#pragma once
#include "rows.hpp"

enum { ROW_H = 1, ROW_X = 2, ROW_SUM = 4, ROW_PRODUCT = 8 };

template <class T>
struct Attn {
  const Args& a;
  int64_t H, hp, d;
  T scale;
  Packed<T> A, O, G;  // [W_q; W_g for h], W_o, W_g for o
  Buffer<T> bA;
  Spread<T> bo, gamma, beta;

  explicit Attn(const Args& a)
      : a(a), H(a.H), hp(padded<T>(H)), d(H / a.heads), scale(T(1) / std::sqrt(T(H / a.heads))), A(2 * hp, hp),
        O((const T*)a.w[1], 1, H, H, H, 1), G((const T*)a.w[2] + H, 1, H, H, 2 * H, 1), bA(2 * hp), bo((const T*)a.b[1], 1, H),
        gamma((const T*)a.w[3], 1, H), beta((const T*)a.b[3], 1, H) {
    A.put(0, 0, (const T*)a.w[0], H, H, H, 1);
    A.put(hp, 0, (const T*)a.w[2], H, H, 2 * H, 1);
    spread<T>(bA, (const T*)a.b[0], 1, H);
    spread<T>(bA + hp, (const T*)a.b[2], 1, H);
  }

  // sums over one head of v * h, v * u and v * h * u
  void dots(const T* v, const T* h, const T* u, T& sh, T& su, T& sp) const {
    V<T> s0{}, s1{}, s2{};
    int64_t i = 0;
    for (; i + N<T> <= d; i += N<T>) {
      V<T> x = load(v + i), xh = x * load(h + i), y = load(u + i);
      s0 += xh, s1 += x * y, s2 += xh * y;
    }
    sh = sum<T>(s0), su = sum<T>(s1), sp = sum<T>(s2);
    for (; i < d; i++) sh += v[i] * h[i], su += v[i] * u[i], sp += v[i] * h[i] * u[i];
  }

  // attention of one head: the weights p of its four rows, 0 for those left out
  void attend(const T* q, const T* h, const T* u, T* p) const {
    T sh, su, sp;
    dots(q, h, u, sh, su, sp);
    T s[4] = {sh * scale, su * scale, (sh + su) * scale, sp * scale}, top = -INFINITY, total = 0;
    for (int k = 0; k < 4; k++)
      if (a.parts >> k & 1) top = std::max(top, s[k]);
    for (int k = 0; k < 4; k++) total += p[k] = a.parts >> k & 1 ? std::exp(s[k] - top) : T(0);
    for (int k = 0; k < 4; k++) p[k] /= total;
  }

  // out = wh h + wu u + wp h u over one head
  void mix(T* out, const T* h, const T* u, const T* p) const {
    T wh = p[0] + p[2], wu = p[1] + p[2], wp = p[3];
    int64_t i = 0;
    for (; i + N<T> <= d; i += N<T>) store(out + i, wh * load(h + i) + wu * load(u + i) + wp * (load(h + i) * load(u + i)));
    for (; i < d; i++) out[i] = wh * h[i] + wu * u[i] + wp * h[i] * u[i];
  }

  // xhat = (o + h - mean) / deviation; returns 1 / deviation. The padding is left out of the sums.
  T normalise(const T* o, const T* h, T* xhat) const {
    T mean = 0, variance = 0;
    V<T> s{};
    for (int64_t i = 0; i < hp; i += N<T>) s += load(o + i) + load(h + i);  // the padding is 0
    mean = sum<T>(s) / T(H), s = V<T>{};
    int64_t i = 0;
    for (; i + N<T> <= H; i += N<T>) {
      V<T> z = load(o + i) + load(h + i) - mean;
      s += z * z;
    }
    variance = sum<T>(s);
    for (; i < H; i++) variance += (o[i] + h[i] - mean) * (o[i] + h[i] - mean);
    T r = T(1) / std::sqrt(variance / T(H) + T(1e-5));
    for (i = 0; i < hp; i += N<T>) store(xhat + i, (load(o + i) + load(h + i) - mean) * r);
    for (i = H; i < hp; i++) xhat[i] = 0;
    return r;
  }

  // the candidate, once xhat is known
  V<T> candidate(const T* o, const T* xhat, int64_t i) const {
    return a.norm ? load(xhat + i) * load(gamma + i) + load(beta + i) : load(o + i);
  }

  // Everything a step computes, for m rows at once: h, u -> q and gate (A), attention (p), aC, before gelu (s), o, xhat, r.
  void inside(int64_t m, const T* h, const T* u, T* qg, T* p, T* aC, T* s, T* o, T* xhat, T* r) const {
    gemm<T>(h, hp, A, qg, 2 * hp, m, bA);
    for (int64_t i = 0; i < m; i++)
      for (int64_t k = 0; k < a.heads; k++) {
        T* w = p + (i * a.heads + k) * 4;
        attend(qg + i * 2 * hp + k * d, h + i * hp + k * d, u + i * hp + k * d, w);
        mix(aC + i * hp + k * d, h + i * hp + k * d, u + i * hp + k * d, w);
      }
    gemm<T>(aC, hp, O, s, hp, m, bo);
    for (int64_t i = 0; i < m * hp; i += N<T>) store(o + i, gelu<T>(load(s + i)));
    gemm<T>(o, hp, G, qg + hp, 2 * hp, m, nullptr, true);
    for (int64_t i = 0; i < m; i++) {
      T* g = qg + i * 2 * hp + hp;
      for (int64_t j = 0; j < hp; j += N<T>) store(g + j, sigmoid<T>(load(g + j)));
      if (a.norm) r[i] = normalise(o + i * hp, h + i * hp, xhat + i * hp);
    }
  }
};

template <class T>
void attn_rnn_forward(const Args& a, int part, int parts) {
  Attn<T> net(a);
  const int64_t H = a.H, hp = net.hp;
  Rows rows(a.B, a.T, a.lengths, part, parts);
  const int64_t m0 = rows.count();
  Buffer<T> h(m0 * hp), u(m0 * hp), qg(m0 * 2 * hp), p(m0 * a.heads * 4), aC(m0 * hp), s(m0 * hp), o(m0 * hp), xhat(m0 * hp), r(m0);
  for (int64_t i = 0; i < m0; i++) spread<T>(h + i * hp, (const T*)a.h0 + rows.row[i] * H, 1, H);
  for (int64_t t = 0; t < rows.T; t++) {
    int64_t m = rows.going(t);
    for (int64_t i = 0; i < m; i++) spread<T>(u + i * hp, (const T*)a.x + (rows.row[i] * a.T + t) * H, 1, H);
    net.inside(m, h, u, qg, p, aC, s, o, xhat, r);
    for (int64_t i = 0; i < m; i++) {
      T* hi = h + i * hp;
      for (int64_t j = 0; j < hp; j += N<T>) {
        V<T> hj = load(hi + j), n = net.candidate(o + i * hp, xhat + i * hp, j);
        store(hi + j, hj + load(qg + i * 2 * hp + hp + j) * (n - hj));
      }
      std::memcpy((T*)a.y + (rows.row[i] * a.T + t) * H, hi, H * sizeof(T));
    }
  }
  for (int64_t i = 0; i < m0; i++) std::memcpy((T*)a.h1 + rows.row[i] * H, h + i * hp, H * sizeof(T));
}
