// A step of each cell for one row of a batch: h and c, padded to whole vectors, are changed in place.
//   rnn, gru, lstm: w = W, U;  b = b_ih, b_hh;  norm: scales of W x, U h and c in w[2..4], the shift of c in
//                   b[4]
//   attn_rnn:       w = W_u or null, W_q, W_o, W_g, scale of the norm;  b likewise
#pragma once
#include "step.hpp"

// What a step needs beside the state, `count` pieces of whole vectors; kept by each thread.
template <class T>
inline T* reserve_step_room(int64_t count) {
  static thread_local std::vector<T> room;
  if ((int64_t)room.size() < count) room.assign(count, T(0));
  return room.data();
}

// Both products of a cell with `gates` gates: gx = W x + b_ih, gh = U h + b_hh.
template <class T>
inline void compute_products(const Step& a, int64_t gates, int64_t hp, const T* x, const T* h, T* gx, T* gh) {
  const int64_t H = a.H;
  for (int side = 0; side < 2; side++) {
    const int64_t K = side ? H : a.D;
    const T *w = (const T*)a.w[side], *b = (const T*)a.b[side], *scale = (const T*)a.w[2 + side];
    T* out = side ? gh : gx;
    for (int64_t g = 0; g < gates; g++, w += H * K, out += hp) {
      multiply_row<T>(w, K, H, K, side ? h : x, b && !a.norm ? b + g * H : nullptr, out);
      if (a.norm) apply_norm<T>(out, H, scale + g * H, b + g * H);
    }
  }
}

template <class T>
void step_rnn(const Step& a, int64_t hp, const T* x, T* h, T*, T* room) {  // norm = 0: tanh, 1: relu
  Step plain = a;
  plain.norm = 0;
  T *gx = room, *gh = room + hp;
  compute_products<T>(plain, 1, hp, x, h, gx, gh);
  for (int64_t i = 0; i < hp; i += N<T>) {
    V<T> s = load(gx + i) + load(gh + i);
    store(h + i, a.norm ? pick<T>(s > T(0), s, V<T>{}) : vtanh(s));
  }
}

template <class T>
void step_gru(const Step& a, int64_t hp, const T* x, T* h, T*, T* room) {
  T *gx = room, *gh = room + 3 * hp;
  compute_products<T>(a, 3, hp, x, h, gx, gh);
  for (int64_t i = 0; i < hp; i += N<T>) {
    V<T> r = sigmoid<T>(load(gx + i) + load(gh + i)), z = sigmoid<T>(load(gx + hp + i) + load(gh + hp + i));
    V<T> n = vtanh(load(gx + 2 * hp + i) + r * load(gh + 2 * hp + i));
    store(h + i, n + z * (load(h + i) - n));
  }
}

template <class T>
void step_lstm(const Step& a, int64_t hp, const T* x, T* h, T* c, T* room) {
  T *gx = room, *gh = room + 4 * hp, *o = gx, *seen = gh;
  compute_products<T>(a, 4, hp, x, h, gx, gh);
  for (int64_t k = 0; k < hp; k += N<T>) {
    V<T> i = sigmoid<T>(load(gx + k) + load(gh + k)), f = sigmoid<T>(load(gx + hp + k) + load(gh + hp + k));
    V<T> g = vtanh(load(gx + 2 * hp + k) + load(gh + 2 * hp + k));
    store(o + k, sigmoid<T>(load(gx + 3 * hp + k) + load(gh + 3 * hp + k)));
    store(c + k, f * load(c + k) + i * g);
    store(seen + k, load(c + k));
  }
  if (a.norm) apply_norm<T>(seen, a.H, (const T*)a.w[4], (const T*)a.b[4]);
  for (int64_t k = 0; k < hp; k += N<T>) store(h + k, load(o + k) * vtanh(load(seen + k)));
}

// The attention of one head of d units: out = a C, of the rows h, u, h + u and h * u of every slot that
// `parts` names. `p` has room for 4 numbers a slot.
template <class T>
inline void compute_attention(const Step& a, int64_t hp, const T* q, const T* h, const T* u, T* p, T* out) {
  const int64_t d = a.H / a.heads, slots = a.slots;
  const T by = T(1) / std::sqrt(T(d));
  T top = -INFINITY, total = 0;
  // u counts once
  const auto is_used = [&](int64_t k) { return a.parts >> k % 4 & 1 && (k < 4 || k % 4 != 1); };
  for (int64_t slot = 0; slot < slots; slot++) {
    const T* hs = h + slot * hp;
    V<T> s0{}, s1{}, s2{};
    int64_t i = 0;
    for (; i + N<T> <= d; i += N<T>) {
      V<T> v = load(q + i), vh = v * load(hs + i), ui = load(u + i);
      s0 += vh, s1 += v * ui, s2 += vh * ui;
    }
    T sh = sum<T>(s0), su = sum<T>(s1), sp = sum<T>(s2);
    for (; i < d; i++) sh += q[i] * hs[i], su += q[i] * u[i], sp += q[i] * hs[i] * u[i];
    const T s[4] = {sh * by, su * by, (sh + su) * by, sp * by};
    for (int k = 0; k < 4; k++) {
      p[4 * slot + k] = s[k];
      if (is_used(4 * slot + k)) top = std::max(top, s[k]);
    }
  }
  for (int64_t k = 0; k < 4 * slots; k++) total += p[k] = is_used(k) ? std::exp(p[k] - top) : T(0);
  for (int64_t slot = 0; slot < slots; slot++, p += 4, h += hp) {
    const T wh = (p[0] + p[2]) / total, wu = (p[1] + p[2]) / total, wp = p[3] / total;
    int64_t i = 0;
    for (; i + N<T> <= d; i += N<T>) {
      V<T> hi = load(h + i), ui = load(u + i), value = wh * hi + wu * ui + wp * (hi * ui);
      store(out + i, slot ? load(out + i) + value : value);
    }
    for (; i < d; i++) out[i] = (slot ? out[i] : T(0)) + wh * h[i] + wu * u[i] + wp * h[i] * u[i];
  }
}

template <class T>
void step_attn_rnn(const Step& a, int64_t hp, const T* x, T* h, T*, T* room) {
  const int64_t H = a.H, d = H / a.heads;
  const T *Wu = (const T*)a.w[0], *Wg = (const T*)a.w[3];
  T *q = room, *g = room + hp, *o = room + 2 * hp, *n = room + 3 * hp, *aC = n, *u = room + 4 * hp,
    *p = room + 5 * hp;
  T* after = a.slots == 1 ? h : p + round_up(4 * a.slots, N<T>);  // until all slots have seen what was before
  if (Wu) multiply_row<T>(Wu, a.D, H, a.D, x, (const T*)a.b[0], u);
  const T* input = Wu ? u : x;
  for (int64_t slot = 0; slot < a.slots; slot++) {
    const T* own = h + slot * hp;
    multiply_row<T>((const T*)a.w[1], H, H, H, own, (const T*)a.b[1], q);
    multiply_row<T>(Wg, 2 * H, H, H, own, (const T*)a.b[3], g);
    for (int64_t k = 0; k < a.heads; k++)
      compute_attention<T>(a, hp, q + k * d, h + k * d, input + k * d, p, aC + k * d);
    multiply_row<T>((const T*)a.w[2], H, H, H, aC, (const T*)a.b[2], o);
    for (int64_t i = 0; i < hp; i += N<T>) {
      store(o + i, gelu<T>(load(o + i)));
      store(n + i, a.norm ? load(o + i) + load(own + i) : load(o + i));
    }
    multiply_row<T>(Wg + H, 2 * H, H, H, o, nullptr, g, true);
    if (a.norm) apply_norm<T>(n, H, (const T*)a.w[4], (const T*)a.b[4]);
    for (int64_t i = 0; i < hp; i += N<T>) {
      V<T> hi = load(own + i);
      store(after + slot * hp + i, hi + sigmoid<T>(load(g + i)) * (load(n + i) - hi));
    }
  }
  if (after != h) std::memcpy(h, after, a.slots * hp * sizeof(T));
}

// One time step of a stack of layers. y carries what a layer gives to the next.
template <class T>
void step_layers(const Call& call) {
  typedef void (*One)(const Step&, int64_t, const T*, T*, T*, T*);
  static const One cells[] = {step_rnn<T>, step_gru<T>, step_lstm<T>, step_attn_rnn<T>};
  const Step* layers = call.stack->layers;
  const int64_t B = call.stack->B, count = call.stack->count, H = layers->H, slots = layers->slots,
                hp = round_up(H, N<T>);
  T *h = reserve_step_room<T>((9 + 2 * slots) * hp + round_up(4 * slots, N<T>)), *c = h + slots * hp,
    *room = c + hp;
  for (int64_t l = 0; l < count; l++) {
    const Step& a = layers[l];
    for (int64_t b = 0; b < B; b++) {
      const int64_t at = (l * B + b) * slots * H;
      const T* x = l ? (T*)call.y + b * H : (const T*)call.x + b * a.D;
      for (int64_t i = 0; i < slots; i++)
        std::memcpy(h + i * hp, (const T*)call.h0 + at + i * H, H * sizeof(T));
      if (call.c0) std::memcpy(c, (const T*)call.c0 + at, H * sizeof(T));
      cells[a.cell](a, hp, x, h, c, room);
      for (int64_t i = 0; i < slots; i++) std::memcpy((T*)call.h1 + at + i * H, h + i * hp, H * sizeof(T));
      if (call.c0) std::memcpy((T*)call.c1 + at, c, H * sizeof(T));
      for (int64_t i = 1; i < slots; i++)
        for (int64_t j = 0; j < hp; j += N<T>) store(h + j, load(h + j) + load(h + i * hp + j));
      std::memcpy((T*)call.y + b * H, h, H * sizeof(T));
    }
  }
}
