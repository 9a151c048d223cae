// A step of each cell for one row of a batch: h and c, padded to full vectors, are changed in place.
//   rnn, gru, lstm: w = W, U;  b = b_ih, b_hh;  norm: scales of W x, U h and c in w[2..4], the shift of c in
//                   b[4]
//   attn_rnn:       w = W_u or null, W_q, W_o, W_g, scale of the norm;  b likewise
#pragma once
#include "step.hpp"

// Scratch memory of a step: `count` arrays of full vectors; kept by each thread.
template <class T>
inline T* reserve_step_room(int64_t count) {
  static thread_local std::vector<T> room;
  if ((int64_t)room.size() < count) room.assign(count, T(0));
  poison(room.data(), count * sizeof(T));
  return room.data();
}

// A row of a batch: its input, its state and the scratch memory of a step.
template <class T>
struct Row {
  const T* x;
  T *h, *c, *room;
};

// Both products of a cell for M rows, in the scratch memory of each: W x + b_ih + U h + b_hh gate by gate,
// or, if the last gate needs them separately (gru), its W x + b_ih and then its U h + b_hh.
template <class T, int M>
inline void compute_products(const Step& a, int64_t gates, bool apart, bool norm, int64_t hp,
                             const Row<T>* rows) {
  const int64_t H = a.H, sums = apart ? gates - 1 : gates;
  const auto find_factor = [&](int side, int64_t g) {
    const T *w = (const T*)a.w[side], *b = (const T*)a.b[side];
    const int64_t K = side ? H : a.D;
    return Factor<T>{w + g * H * K, K, K, side ? rows->h : rows->x, b ? b + g * H : nullptr};
  };
  int64_t first = 0;
  if constexpr (M == 1 && ONE_SUM)
    for (; !norm && first < sums; first++) {
      const Factor<T> both[] = {find_factor(0, first), find_factor(1, first)};
      multiply_row(both, H, rows->room + first * hp);
    }
  for (int side = 0; side < 2; side++)
    for (int64_t g = first; g < gates; g++) {
      const Factor<T> f = find_factor(side, g);
      const bool is_sum = side && g < sums;
      const int64_t place = side && (norm || !is_sum) ? gates : g;
      const T *in[M], *b = norm ? nullptr : f.b;
      T* out[M];
      for (int m = 0; m < M; m++) {
        in[m] = side ? rows[m].h : rows[m].x;
        out[m] = rows[m].room + place * hp;
      }
      if constexpr (M == 1)
        multiply_row<T>(f.W, f.by, H, f.K, in[0], b, out[0], is_sum && !norm);
      else
        multiply_rows<T, M>(f.W, f.by, H, f.K, in, b, out, is_sum && !norm);
      for (int m = 0; m < M && norm; m++) {
        apply_norm<T>(out[m], H, (const T*)a.w[2 + side] + g * H, f.b);
        T* sum = rows[m].room + g * hp;
        for (int64_t i = 0; is_sum && i < hp; i += N<T>) store(sum + i, load(sum + i) + load(out[m] + i));
      }
    }
}

template <class T>
void finish_rnn(const Step& a, int64_t hp, const Row<T>& row) {  // norm = 0: tanh, 1: relu
  for (int64_t i = 0; i < hp; i += N<T>) {
    V<T> s = load(row.room + i);
    store(row.h + i, a.norm ? pick<T>(s > T(0), s, V<T>{}) : vtanh(s));
  }
}

template <class T>
void finish_gru(const Step&, int64_t hp, const Row<T>& row) {
  const T* sums = row.room;  // sums of r, z and n, and U h of n
  T* h = row.h;
  for (int64_t i = 0; i < hp; i += N<T>) {
    V<T> r = sigmoid<T>(load(sums + i)), z = sigmoid<T>(load(sums + hp + i));
    V<T> n = vtanh(load(sums + 2 * hp + i) + r * load(sums + 3 * hp + i));
    store(h + i, n + z * (load(h + i) - n));
  }
}

template <class T>
void finish_lstm(const Step& a, int64_t hp, const Row<T>& row) {
  T *sums = row.room, *o = sums, *seen = sums + hp, *h = row.h, *c = row.c;
  for (int64_t k = 0; k < hp; k += N<T>) {
    V<T> i = sigmoid<T>(load(sums + k)), f = sigmoid<T>(load(sums + hp + k));
    V<T> g = vtanh(load(sums + 2 * hp + k));
    store(o + k, sigmoid<T>(load(sums + 3 * hp + k)));
    store(c + k, f * load(c + k) + i * g);
    store(seen + k, load(c + k));
  }
  if (a.norm) apply_norm<T>(seen, a.H, (const T*)a.w[4], (const T*)a.b[4]);
  for (int64_t k = 0; k < hp; k += N<T>) store(h + k, load(o + k) * vtanh(load(seen + k)));
}

// A step of M rows of rnn (0), gru (1) or lstm (2).
template <class T, int M>
void step_gated(const Step& a, int64_t hp, const Row<T>* rows) {
  typedef void (*Finish)(const Step&, int64_t, const Row<T>&);
  static const Finish finish[] = {finish_rnn<T>, finish_gru<T>, finish_lstm<T>};
  static const int64_t gates[] = {1, 3, 4};
  constexpr int GRU = 1;
  compute_products<T, M>(a, gates[a.cell], a.cell == GRU, a.norm && a.cell, hp, rows);
  for (int m = 0; m < M; m++) finish[a.cell](a, hp, rows[m]);
}

// The attention of one head of d units: out = a C, of the rows h, u, h + u and h * u of every slot that
// `parts` names. `p` has room for 4 values per slot.
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
void step_attn_rnn(const Step& a, int64_t hp, const Row<T>& row) {
  const T* x = row.x;
  T *h = row.h, *room = row.room;
  const int64_t H = a.H, d = H / a.heads;
  const T *Wu = (const T*)a.w[0], *Wg = (const T*)a.w[3];
  T *q = room, *g = room + hp, *o = room + 2 * hp, *n = room + 3 * hp, *aC = n, *u = room + 4 * hp,
    *p = room + 5 * hp;
  T* after = a.slots == 1 ? h : p + round_up(4 * a.slots, N<T>);  // until all slots have read the old states
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

// One time step of a stack of layers. y carries the output of a layer to the next one.
template <class T>
void step_layers(const Call& call) {
  const Step* layers = call.stack->layers;
  const int64_t B = call.stack->B, count = call.stack->count, H = layers->H, slots = layers->slots,
                hp = round_up(H, N<T>), each = (9 + 2 * slots) * hp + round_up(4 * slots, N<T>);
  constexpr int ATTN_RNN = 3;
  T* memory = reserve_step_room<T>((B < TOGETHER ? 1 : TOGETHER) * each);
  for (int64_t l = 0; l < count; l++) {
    const Step& a = layers[l];
    for (int64_t b = 0, done; b < B; b += done) {
      done = a.cell != ATTN_RNN && B - b >= TOGETHER ? TOGETHER : 1;
      Row<T> rows[TOGETHER];
      for (int64_t m = 0; m < done; m++) {
        const int64_t at = (l * B + b + m) * slots * H;
        T* h = memory + m * each;
        rows[m] = {l ? (T*)call.y + (b + m) * H : (const T*)call.x + (b + m) * a.D, h, h + slots * hp,
                   h + (slots + 1) * hp};
        for (int64_t i = 0; i < slots; i++)
          std::memcpy(h + i * hp, (const T*)call.h0 + at + i * H, H * sizeof(T));
        if (call.c0) std::memcpy(rows[m].c, (const T*)call.c0 + at, H * sizeof(T));
      }
      if (a.cell == ATTN_RNN)
        step_attn_rnn<T>(a, hp, rows[0]);
      else if (done > 1)
        step_gated<T, TOGETHER>(a, hp, rows);
      else
        step_gated<T, 1>(a, hp, rows);
      for (int64_t m = 0; m < done; m++) {
        const int64_t at = (l * B + b + m) * slots * H;
        T* h = rows[m].h;
        for (int64_t i = 0; i < slots; i++) std::memcpy((T*)call.h1 + at + i * H, h + i * hp, H * sizeof(T));
        if (call.c0) std::memcpy((T*)call.c1 + at, rows[m].c, H * sizeof(T));
        for (int64_t i = 1; i < slots; i++)
          for (int64_t j = 0; j < hp; j += N<T>) store(h + j, load(h + j) + load(h + i * hp + j));
        std::memcpy((T*)call.y + (b + m) * H, h, H * sizeof(T));
      }
    }
  }
}
