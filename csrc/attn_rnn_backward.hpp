// AttnRNN back through time. A chunk of steps is computed again in batched products from the stored states, then walked
// backwards. The gradients of the weights are left to batched products outside: this returns what they need.
//   d[0]: (B, T, 2H) of q and of the gate before its sigmoid;  d[1]: (B, T, H) of what enters gelu
//   d[2]: (B, T, 2H) the inputs of W_o and of the second half of W_g: aC and o;  d[3]: (B, 2H) of the norm's scale and bias
#pragma once
#include "attn_rnn.hpp"

// One row, one step, before the products: from dh (all paths) to the gate, o and the part of dh that goes straight back.
template <class T>
void attn_rnn_gate(const Attn<T>& net, const T* h, const T* g, const T* o, const T* xhat, T r, const T* d, T* dag, T* dout, T* dh, T* dscale) {
  const int64_t hp = net.hp;
  V<T> s1{}, s2{};
  for (int64_t i = 0; i < hp; i += N<T>) {
    V<T> dv = load(d + i), gv = load(g + i), n = net.candidate(o, xhat, i), dn = dv * gv;
    store(dag + i, dv * (n - load(h + i)) * gv * (T(1) - gv));
    store(dh + i, dv - dn);
    if (net.a.norm) {
      V<T> x = load(xhat + i);
      store(dscale + i, load(dscale + i) + dn * x);
      store(dscale + hp + i, load(dscale + hp + i) + dn);
      dn *= load(net.gamma + i);
      s1 += dn, s2 += dn * x;
    }
    store(dout + i, dn);
  }
  if (!net.a.norm) return;
  T m1 = sum<T>(s1) / T(net.H), m2 = sum<T>(s2) / T(net.H);
  for (int64_t i = 0; i < hp; i += N<T>) {
    V<T> dz = r * (load(dout + i) - m1 - load(xhat + i) * m2);
    store(dout + i, dz);
    store(dh + i, load(dh + i) + dz);
  }
  for (int64_t i = net.H; i < hp; i++) dout[i] = dh[i] = 0;
}

// One row, one step, one head: v is the gradient of aC. Adds to dh, writes dq and du.
template <class T>
void attn_rnn_head(const Attn<T>& net, const T* q, const T* h, const T* u, const T* v, const T* p, T* dq, T* du, T* dh) {
  T dots[4], mean = 0;
  net.dots(v, h, u, dots[0], dots[1], dots[3]);
  dots[2] = dots[0] + dots[1];
  for (int k = 0; k < 4; k++) mean += p[k] * dots[k];
  for (int k = 0; k < 4; k++) dots[k] = p[k] * (dots[k] - mean) * net.scale;  // of the scores
  T wh = p[0] + p[2], wu = p[1] + p[2], zh = dots[0] + dots[2], zu = dots[1] + dots[2], wp = p[3], zp = dots[3];
  int64_t i = 0;
  for (; i + N<T> <= net.d; i += N<T>) {
    V<T> vi = load(v + i), qi = load(q + i), hi = load(h + i), ui = load(u + i), both = wp * vi + zp * qi;
    store(dh + i, load(dh + i) + wh * vi + zh * qi + both * ui);
    store(du + i, wu * vi + zu * qi + both * hi);
    store(dq + i, zh * hi + zu * ui + zp * (hi * ui));
  }
  for (; i < net.d; i++) {
    T both = wp * v[i] + zp * q[i];
    dh[i] += wh * v[i] + zh * q[i] + both * u[i];
    du[i] = wu * v[i] + zu * q[i] + both * h[i];
    dq[i] = zh * h[i] + zu * u[i] + zp * h[i] * u[i];
  }
}

template <class T>
void attn_rnn_backward(const Args& a, int part, int parts) {
  Attn<T> net(a);
  const int64_t H = a.H, hp = net.hp, d = net.d;
  Rows rows(a.B, a.T, a.lengths, part, parts);
  const int64_t m0 = rows.count(), chunk = chunk_of(m0), c = chunk * m0;
  Packed<T> Gt((const T*)a.w[2] + H, 1, H, H, 1, 2 * H), Ot((const T*)a.w[1], 1, H, H, 1, H), At(hp, 2 * hp);
  At.put(0, 0, (const T*)a.w[0], H, H, 1, H);
  At.put(0, hp, (const T*)a.w[2], H, H, 1, 2 * H);
  Buffer<T> h(c * hp), u(c * hp), qg(c * 2 * hp), p(c * a.heads * 4), aC(c * hp), s(c * hp), o(c * hp), xhat(c * hp), r(c);
  Buffer<T> dh(m0 * hp), next(m0 * hp), dqg(m0 * 2 * hp), dout(m0 * hp), ds(m0 * hp), v(m0 * hp), du(hp), dscale(m0 * 2 * hp);
  for (int64_t i = 0; i < m0; i++) spread<T>(dh + i * hp, (const T*)a.dh1 + rows.row[i] * H, 1, H);
  std::vector<int64_t> first;
  for (int64_t end = rows.T; end > 0;) {
    int64_t begin = std::max<int64_t>(0, end - chunk), many = history<T>(a, rows, begin, end, h, first);
    for (int64_t t = begin; t < end; t++)
      for (int64_t i = 0; i < rows.going(t); i++)
        spread<T>(u + (first[t - begin] + i) * hp, (const T*)a.x + (rows.row[i] * a.T + t) * H, 1, H);
    net.inside(many, h, u, qg, p, aC, s, o, xhat, r);
    for (int64_t t = end - 1; t >= begin; t--) {
      int64_t m = rows.going(t), k0 = first[t - begin];
      for (int64_t i = 0; i < m; i++) {
        int64_t k = k0 + i;
        accumulate<T>(dh + i * hp, (const T*)a.dy + (rows.row[i] * a.T + t) * H, H);
        attn_rnn_gate<T>(net, h + k * hp, qg + k * 2 * hp + hp, o + k * hp, xhat + k * hp, r[k], dh + i * hp,
                         dqg + i * 2 * hp + hp, dout + i * hp, next + i * hp, dscale + i * 2 * hp);
      }
      gemm<T>(dqg + hp, 2 * hp, Gt, dout, hp, m, nullptr, true);
      for (int64_t i = 0; i < m * hp; i += N<T>) {
        V<T> x = load(s + k0 * hp + i), cdf, pdf;
        normal(x, cdf, pdf);
        store(ds + i, load(dout + i) * (cdf + x * pdf));
      }
      gemm<T>(ds, hp, Ot, v, hp, m, nullptr);
      for (int64_t i = 0; i < m; i++) {
        int64_t k = k0 + i, at = rows.row[i] * a.T + t;
        for (int64_t e = 0; e < a.heads; e++)
          attn_rnn_head<T>(net, qg + k * 2 * hp + e * d, h + k * hp + e * d, u + k * hp + e * d, v + i * hp + e * d,
                           p + (k * a.heads + e) * 4, dqg + i * 2 * hp + e * d, du + e * d, next + i * hp + e * d);
        std::memcpy((T*)a.dx + at * H, du, H * sizeof(T));
        gather<T>((T*)a.d[0] + at * 2 * H, dqg + i * 2 * hp, 2, H);
        std::memcpy((T*)a.d[1] + at * H, ds + i * hp, H * sizeof(T));
        std::memcpy((T*)a.d[2] + at * 2 * H, aC + k * hp, H * sizeof(T));
        std::memcpy((T*)a.d[2] + at * 2 * H + H, o + k * hp, H * sizeof(T));
      }
      gemm<T>(dqg, 2 * hp, At, next, hp, m, nullptr, true);
      std::memcpy(dh, next, m * hp * sizeof(T));
    }
    end = begin;
  }
  for (int64_t i = 0; i < m0; i++) {
    std::memcpy((T*)a.dh0 + rows.row[i] * H, dh + i * hp, H * sizeof(T));
    gather<T>((T*)a.d[3] + rows.row[i] * 2 * H, dscale + i * 2 * hp, 2, H);
  }
}
