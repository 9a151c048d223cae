// A step of each cell for one row of a batch: h and c, padded to whole vectors, are changed in place.
//   rnn, gru, lstm: w = W, U;  b = b_ih, b_hh;  norm: scales of W x, U h and c in w[2..4], the shift of c in b[4]
//   attn_rnn:       w = W_u or null, W_q, W_o, W_g, scale of the norm;  b likewise
#pragma once
#include "step.hpp"

// What a step needs beside the state, `count` pieces of whole vectors; kept by each thread.
template <class T>
inline T* step_room(int64_t count) {
  static thread_local std::vector<T> room;
  if ((int64_t)room.size() < count) room.assign(count, T(0));
  return room.data();
}

// Both products of a cell with `gates` gates: gx = W x + b_ih, gh = U h + b_hh.
template <class T>
inline void step_products(const Step& a, int64_t gates, int64_t hp, const T* x, const T* h, T* gx, T* gh) {
  const int64_t H = a.H;
  for (int side = 0; side < 2; side++) {
    const int64_t K = side ? H : a.D;
    const T *w = (const T*)a.w[side], *b = (const T*)a.b[side], *scale = (const T*)a.w[2 + side];
    T* out = side ? gh : gx;
    for (int64_t g = 0; g < gates; g++, w += H * K, out += hp) {
      product<T>(w, K, H, K, side ? h : x, b && !a.norm ? b + g * H : nullptr, out);
      if (a.norm) normalised<T>(out, H, scale + g * H, b + g * H);
    }
  }
}

template <class T>
void rnn_step(const Step& a, int64_t hp, const T* x, T* h, T*, T* room) {  // norm = 0: tanh, 1: relu
  Step plain = a;
  plain.norm = 0;
  T *gx = room, *gh = room + hp;
  step_products<T>(plain, 1, hp, x, h, gx, gh);
  for (int64_t i = 0; i < hp; i += N<T>) {
    V<T> s = load(gx + i) + load(gh + i);
    store(h + i, a.norm ? pick<T>(s > T(0), s, V<T>{}) : vtanh(s));
  }
}

template <class T>
void gru_step(const Step& a, int64_t hp, const T* x, T* h, T*, T* room) {
  T *gx = room, *gh = room + 3 * hp;
  step_products<T>(a, 3, hp, x, h, gx, gh);
  for (int64_t i = 0; i < hp; i += N<T>) {
    V<T> r = sigmoid<T>(load(gx + i) + load(gh + i)), z = sigmoid<T>(load(gx + hp + i) + load(gh + hp + i));
    V<T> n = vtanh(load(gx + 2 * hp + i) + r * load(gh + 2 * hp + i));
    store(h + i, n + z * (load(h + i) - n));
  }
}

template <class T>
void lstm_step(const Step& a, int64_t hp, const T* x, T* h, T* c, T* room) {
  T *gx = room, *gh = room + 4 * hp, *o = gx, *seen = gh;
  step_products<T>(a, 4, hp, x, h, gx, gh);
  for (int64_t k = 0; k < hp; k += N<T>) {
    V<T> i = sigmoid<T>(load(gx + k) + load(gh + k)), f = sigmoid<T>(load(gx + hp + k) + load(gh + hp + k));
    V<T> g = vtanh(load(gx + 2 * hp + k) + load(gh + 2 * hp + k));
    store(o + k, sigmoid<T>(load(gx + 3 * hp + k) + load(gh + 3 * hp + k)));
    store(c + k, f * load(c + k) + i * g);
    store(seen + k, load(c + k));
  }
  if (a.norm) normalised<T>(seen, a.H, (const T*)a.w[4], (const T*)a.b[4]);
  for (int64_t k = 0; k < hp; k += N<T>) store(h + k, load(o + k) * vtanh(load(seen + k)));
}

// The attention of one head of d units: out = a C, of the rows h, u, h + u and h * u that `parts` names.
template <class T>
inline void step_attention(int64_t parts, int64_t d, const T* q, const T* h, const T* u, T* out) {
  V<T> s0{}, s1{}, s2{};
  int64_t i = 0;
  for (; i + N<T> <= d; i += N<T>) {
    V<T> v = load(q + i), vh = v * load(h + i), ui = load(u + i);
    s0 += vh, s1 += v * ui, s2 += vh * ui;
  }
  T sh = sum<T>(s0), su = sum<T>(s1), sp = sum<T>(s2);
  for (; i < d; i++) sh += q[i] * h[i], su += q[i] * u[i], sp += q[i] * h[i] * u[i];
  const T by = T(1) / std::sqrt(T(d)), s[4] = {sh * by, su * by, (sh + su) * by, sp * by};
  T p[4], top = -INFINITY, total = 0;
  for (int k = 0; k < 4; k++)
    if (parts >> k & 1) top = std::max(top, s[k]);
  for (int k = 0; k < 4; k++) total += p[k] = parts >> k & 1 ? std::exp(s[k] - top) : T(0);
  const T wh = (p[0] + p[2]) / total, wu = (p[1] + p[2]) / total, wp = p[3] / total;
  for (i = 0; i + N<T> <= d; i += N<T>) {
    V<T> hi = load(h + i), ui = load(u + i);
    store(out + i, wh * hi + wu * ui + wp * (hi * ui));
  }
  for (; i < d; i++) out[i] = wh * h[i] + wu * u[i] + wp * h[i] * u[i];
}

template <class T>
void attn_rnn_step(const Step& a, int64_t hp, const T* x, T* h, T*, T* room) {
  const int64_t H = a.H, d = H / a.heads;
  const T *Wu = (const T*)a.w[0], *Wg = (const T*)a.w[3];
  T *q = room, *g = room + hp, *o = room + 2 * hp, *n = room + 3 * hp, *aC = n, *u = room + 4 * hp;
  if (Wu) product<T>(Wu, a.D, H, a.D, x, (const T*)a.b[0], u);
  const T* in = Wu ? u : x;
  product<T>((const T*)a.w[1], H, H, H, h, (const T*)a.b[1], q);
  product<T>(Wg, 2 * H, H, H, h, (const T*)a.b[3], g);
  for (int64_t k = 0; k < a.heads; k++) step_attention<T>(a.parts, d, q + k * d, h + k * d, in + k * d, aC + k * d);
  product<T>((const T*)a.w[2], H, H, H, aC, (const T*)a.b[2], o);
  for (int64_t i = 0; i < hp; i += N<T>) {
    store(o + i, gelu<T>(load(o + i)));
    store(n + i, a.norm ? load(o + i) + load(h + i) : load(o + i));
  }
  product<T>(Wg + H, 2 * H, H, H, o, nullptr, g, true);
  if (a.norm) normalised<T>(n, H, (const T*)a.w[4], (const T*)a.b[4]);
  for (int64_t i = 0; i < hp; i += N<T>) {
    V<T> hi = load(h + i);
    store(h + i, hi + sigmoid<T>(load(g + i)) * (load(n + i) - hi));
  }
}

// One time step of a stack of layers.
template <class T>
void step_layers(const Call& call) {
  typedef void (*One)(const Step&, int64_t, const T*, T*, T*, T*);
  static const One cells[] = {rnn_step<T>, gru_step<T>, lstm_step<T>, attn_rnn_step<T>};
  const Step* layers = call.stack->layers;
  const int64_t B = call.stack->B, count = call.stack->count, H = layers->H, hp = (H + N<T> - 1) / N<T> * N<T>;
  T *h1 = (T*)call.h1, *h = step_room<T>(10 * hp), *c = h + hp, *room = c + hp;
  for (int64_t l = 0; l < count; l++) {
    const Step& a = layers[l];
    const T* x = l ? h1 + (l - 1) * B * H : (const T*)call.x;
    for (int64_t b = 0; b < B; b++) {
      const int64_t at = (l * B + b) * H;
      std::memcpy(h, (const T*)call.h0 + at, H * sizeof(T));
      if (call.c0) std::memcpy(c, (const T*)call.c0 + at, H * sizeof(T));
      cells[a.cell](a, hp, x + b * a.D, h, c, room);
      std::memcpy(h1 + at, h, H * sizeof(T));
      if (call.c0) std::memcpy((T*)call.c1 + at, c, H * sizeof(T));
    }
  }
  std::memcpy(call.y, h1 + (count - 1) * B * H, B * H * sizeof(T));
}
