// Backward pass of AttnRNN. Slopes are the gradients of q, of the gate before its sigmoid, of s, and of n.
#pragma once
#include "attn_rnn.hpp"

// Values of a chunk of steps that the record does not hold: aC, o, the derivative of gelu, xhat.
template <class T>
void Attn<T>::prepare(int64_t count, const StepView<T>& at, Work& work) const {
  const Span row = at.team.share(count);
  for (int64_t i = row.lo; i < row.hi; i++) {
    const T *rec = at.rec + i * record_size(a), *h = at.s[0] + i * ld, *all = at.s[0] + first_slot(i) * ld,
            *p = rec + 3 * hp, *rest = rec + norm;
    for (int64_t e = 0; e < a.heads; e++)
      mix(work.aC + i * ld + e * d, all + e * d, at.x[i] + e * d, p + 4 * slots * e);
    for (int64_t j = 0; j < hp; j += N<T>) {
      V<T> s = load(rec + 2 * hp + j), cdf, pdf;
      normal(s, cdf, pdf);
      V<T> o = s * cdf;
      store(work.o + i * ld + j, o);
      store(work.slope + i * ld + j, cdf + s * pdf);
      if (a.kind) store(work.xhat + i * ld + j, (o + load(h + j) - rest[0]) * rest[1]);
    }
  }
}

// From d (all paths), compute the gradients of the gate and of o, and the part of d that bypasses them.
template <class T>
void Attn<T>::back_gate(const StepView<T>& at, Span row, int64_t at0, Work& work) const {
  for (int64_t i = row.lo; i < row.hi; i++) {
    const T *g = at.rec + i * record_size(a) + hp, *rest = g - hp + norm, *h = at.s[0] + i * ld;
    const T *o = work.o + (at0 + i) * ld, *xhat = work.xhat + (at0 + i) * ld;
    T *dh = at.d[0] + i * ld, *out = work.out + i * ld, *dg = at.slope + i * slope_size() + hp,
      *dn = dg + 2 * hp;
    for (int64_t j = 0; j < hp; j += N<T>) {
      V<T> dv = load(dh + j), gv = load(g + j),
           n = a.kind ? load(xhat + j) * load(gamma + j) + load(beta + j) : load(o + j);
      store(dg + j, dv * (n - load(h + j)) * gv * (T(1) - gv));
      store(dn + j, dv * gv);
      store(dh + j, dv - dv * gv);
    }
    if (!a.kind) {
      std::memcpy(out, dn, hp * sizeof(T));
      continue;
    }
    back_norm<T>(H, hp, xhat, rest[1], gamma, dn, out);
    for (int64_t j = 0; j < hp; j += N<T>) store(dh + j, load(dh + j) + load(out + j));
  }
}

// v is the gradient of aC. Adds to d, writes the slope of q and dx. A pair is a sequence and a head, whose
// slots all add to d.
template <class T>
void Attn<T>::back_heads(const StepView<T>& at, Span pair, Work& work) const {
  for (int64_t j = pair.lo; j < pair.hi; j++)
    for (int64_t slot = 0; slot < slots; slot++)
      back_head(at, j / a.heads * slots + slot, j % a.heads, work.score + 4 * slots * j, work);
}

// One row and head; s has room for 4 values per slot.
template <class T>
void Attn<T>::back_head(const StepView<T>& at, int64_t row, int64_t e, T* s, const Work& work) const {
  const T *rec = at.rec + row * record_size(a), *p = rec + 3 * hp + 4 * slots * e, *q = rec + e * d,
          *h = at.s[0] + first_slot(row) * ld + e * d;
  const T *u = at.x[row] + e * d, *v = work.v + row * ld + e * d;
  T *dq = at.slope + row * slope_size() + e * d, *du = at.dx[row] + e * d,
    *dh = at.d[0] + first_slot(row) * ld + e * d, mean = 0;
  for (int64_t k = 0; k < 4 * slots; k += 4) {
    compute_dots(v, h + k / 4 * ld, u, s[k], s[k + 1], s[k + 3]);
    s[k + 2] = s[k] + s[k + 1];
    for (int64_t i = k; i < k + 4; i++) mean += p[i] * s[i];
  }
  for (int64_t k = 0; k < 4 * slots; k++) s[k] = p[k] * (s[k] - mean) * scale;  // gradients of the scores
  back_one<false>(p, s, v, q, h, u, dh, du, dq);
  for (int64_t k = 1; k < slots; k++)
    back_one<true>(p + 4 * k, s + 4 * k, v, q, h + k * ld, u, dh + k * ld, du, dq);
}

// The contribution of one slot to a row's head.
template <class T>
template <bool ADD>
void Attn<T>::back_one(const T* p, const T* s, const T* v, const T* q, const T* h, const T* u, T* dh, T* du,
                       T* dq) const {
  const T wh = p[0] + p[2], wu = p[1] + p[2], zh = s[0] + s[2], zu = s[1] + s[2], wp = p[3], zp = s[3];
  int64_t i = 0;
  for (; i + N<T> <= d; i += N<T>) {
    V<T> vi = load(v + i), qi = load(q + i), hi = load(h + i), ui = load(u + i), both = wp * vi + zp * qi;
    store(dh + i, load(dh + i) + wh * vi + zh * qi + both * ui);
    put<ADD>(du + i, wu * vi + zu * qi + both * hi);
    put<ADD>(dq + i, zh * hi + zu * ui + zp * (hi * ui));
  }
  for (; i < d; i++) {
    const T both = wp * v[i] + zp * q[i], dui = wu * v[i] + zu * q[i] + both * h[i],
            dqi = zh * h[i] + zu * u[i] + zp * h[i] * u[i];
    dh[i] += wh * v[i] + zh * q[i] + both * u[i];
    du[i] = ADD ? du[i] + dui : dui;
    dq[i] = ADD ? dq[i] + dqi : dqi;
  }
}

template <class T>
void Attn<T>::backpropagate(int64_t m, const StepView<T>& at, int64_t at0, Work& work) const {
  const int64_t S = slope_size();
  at.team.wait();
  back_gate(at, at.team.share(m), at0, work);
  at.team.wait();
  gemm<T>(at.slope + hp, S, Gt, work.out, ld, m, nullptr, at.columns, true);
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = at.columns.lo; j < at.columns.hi; j += N<T>)
      store(at.slope + i * S + 2 * hp + j,
            load(work.out + i * ld + j) * load(work.slope + (at0 + i) * ld + j));
  at.team.wait();
  gemm<T>(at.slope + 2 * hp, S, Ot, work.v, ld, m, nullptr, at.columns);
  at.team.wait();
  back_heads(at, at.team.share(m / slots * a.heads), work);
  at.team.wait();
  pull_back<T>(at.slope, S, At_, ld, m, at);
}

template <class T>
void Attn<T>::add_weight_gradients(int64_t count, const StepView<T>& at, Work& work) const {
  const int64_t S = slope_size();
  T* room = work.room + at.team.member * work.share;
  if (work.is_direct) {
    const auto put = [&](T* to, int64_t by, const T* slope, const T* x) {
      Outer<T>::put(to, by, at.team, H, H, count, slope, S, x, ld, room);
    };
    put((T*)a.dw[0], H, at.slope, at.seen);
    put((T*)a.dw[4], 2 * H, at.slope + hp, at.seen);
    put((T*)a.dw[4] + H, 2 * H, at.slope + hp, work.o);
    put((T*)a.dw[2], H, at.slope + 2 * hp, work.aC);
  } else {
    work.A.add(at.team, count, at.slope, S, at.seen, ld, room, at.is_first);
    work.O.add(at.team, count, at.slope + 2 * hp, S, work.aC, ld, room, at.is_first);
    work.G.add(at.team, count, at.slope + hp, S, work.o, ld, room, at.is_first);
  }
  sum_rows<T>(at.team, count, at.slope, S, 3 * hp, work.b);
  if (!a.kind) return;
  sum_products<T>(at.team, count, at.slope + 3 * hp, S, work.xhat, ld, hp, work.dscale);
  sum_rows<T>(at.team, count, at.slope + 3 * hp, S, hp, work.dscale + hp);
}

template <class T>
void Attn<T>::write_gradients(const Team& team, const Work& work, bool add) const {
  T* dWg = (T*)a.dw[4];
  if (!work.is_direct) {
    work.A.write(team, (T*)a.dw[0], H, 0, H, H, add);
    work.A.write(team, dWg, 2 * H, hp, H, H, add);
    work.G.write(team, dWg + H, 2 * H, 0, H, H, add);
    work.O.write(team, (T*)a.dw[2], H, 0, H, H, add);
  }
  if (team.member) return;
  write_row<T>((T*)a.dw[1], work.b, H, add);
  write_row<T>((T*)a.dw[5], work.b + hp, H, add);
  write_row<T>((T*)a.dw[3], work.b + 2 * hp, H, add);
  if (!a.kind) return;
  write_row<T>((T*)a.dw[6], work.dscale, H, add);
  write_row<T>((T*)a.dw[7], work.dscale + hp, H, add);
}
