// A cell over time, forwards and backwards: all that is not the equations of the cell. seqloom/job.py says what a step is:
// a state that may start anew, the cell, a share of the old state that stays, rows that have ended.
//
// A Net is a cell: its weights, packed, and what follows. Rows lie below each other, hp numbers each, `ld` apart.
//   STATES, gates()   states (h, or h and c); blocks of H numbers that the input gives
//   record, slopes    numbers that a row keeps of a step for the backward; that its gradients inside a step take
//   inside(m, at)     everything a step computes, into at.rec;  finish(m, at): the new states, in place of the old
//   back(m, at)       d: gradients of the new states -> of the old, as far as they go past the product with what is seen of h,
//                     whose gradient is put to or added to at.dseen; at.slope and at.dx
//   weigh(many, at)   gradients of the weights from at.slope;  give(parts): all of them, to the caller
#pragma once
#include <atomic>
#include <memory>
#include <thread>

#include "rows.hpp"

template <class T>
struct At {  // some rows at one step, or at several steps one below the other
  T* s[2];                   // states before the step
  const T* seen;             // h as products see it
  const T* const* x;         // rows of the input, padded
  T *rec, *slope;
  T *d[2], *dseen;           // gradients of the states; of what is seen
  T* const* dx;              // rows of the gradient of the input, tight
  bool add;                  // dseen is d[0]
};

// f(part) on every thread; the first failure for want of memory is passed on.
template <class F>
void each(int threads, F f) {
  std::atomic<bool> failed{false};
  auto safe = [&](int part) {
    try {
      f(part);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
  };
  std::vector<std::thread> others;
  for (int part = 1; part < threads; part++) others.emplace_back(safe, part);
  safe(0);
  for (auto& thread : others) thread.join();
  if (failed) throw std::bad_alloc();
}

// What a thread holds of the job beside the cell.
template <class T>
struct Walk {
  const Args& a;
  const Rows& rows;
  int64_t H, hp, ld;

  Walk(const Args& a, const Rows& rows) : a(a), rows(rows), H(a.H), hp(padded<T>(a.H)), ld(apart<T>(a.H)) {}
  int64_t place(int64_t i, int64_t t) const { return rows.row[i] * a.T + t; }
  bool anew(int64_t i, int64_t t) const { return a.reset && a.reset[place(i, t)]; }
  const T* first(int k, int64_t i) const { return (const T*)a.s0[k] + rows.row[i] * H; }
  const T* start(int k, int64_t i) const { return (const T*)a.start[k] + rows.row[i] * H; }
  const T* after(int k, int64_t i, int64_t t) const { return (const T*)(k ? a.c : a.y) + place(i, t) * H; }

  // the state k of row i before step t, from what the forward left
  const T* before(int k, int64_t i, int64_t t) const { return anew(i, t) ? start(k, i) : t ? after(k, i, t - 1) : first(k, i); }

  // a row of the input as it lies there, or padded
  const T* input(int64_t i, int64_t t, int64_t gates, T* room) const {
    const T* x = (const T*)a.x + place(i, t) * gates * H;
    if (H == hp) return x;
    spread<T>(room, x, gates, H);
    return room;
  }
  // seen = h * mask
  void see(int64_t i, const T* h, T* seen) const {
    const T* mask = (const T*)a.mask + rows.row[i] * H;
    for (int64_t j = 0; j < H; j++) seen[j] = h[j] * mask[j];
  }
};

// As torch.lerp has it: exact at both ends.
template <class T>
inline void zoneout(T* now, const T* old, const T* keep, int64_t H) {
  for (int64_t j = 0; j < H; j++) {
    const T w = keep[j], gap = old[j] - now[j];
    now[j] = w < T(0.5) ? now[j] + w * gap : old[j] - gap * (T(1) - w);
  }
}

template <class T, class Net>
void run_forward(const Args& a, int threads) {
  const Net net(a, false);
  const int64_t n = net.gates(), R = Net::record(a);
  each(threads, [&](int part) {
    const Rows rows(a, part, threads);
    const Walk<T> walk(a, rows);
    const int64_t m0 = rows.count(), H = a.H, ld = walk.ld;
    Buffer<T> h(m0 * ld), c(Net::STATES > 1 ? m0 * ld : 0), seen(a.mask ? m0 * ld : 0), old(a.keep[0] ? 2 * m0 * ld : 0);
    Buffer<T> room(walk.hp == H ? 0 : m0 * n * walk.hp), rec(a.saved ? 0 : m0 * R, false);
    std::vector<const T*> x(m0);
    typename Net::Work work(net, m0, false);
    At<T> at{{h, c}, a.mask ? seen : h, x.data()};
    for (int k = 0; k < Net::STATES; k++)
      for (int64_t i = 0; i < m0; i++) std::memcpy(at.s[k] + i * ld, walk.first(k, i), H * sizeof(T));
    for (int64_t t = 0; t < rows.T; t++) {
      const int64_t m = rows.going(t);
      for (int64_t i = 0; i < m; i++) {
        x[i] = walk.input(i, t, n, room + i * n * walk.hp);
        if (walk.anew(i, t))
          for (int k = 0; k < Net::STATES; k++) std::memcpy(at.s[k] + i * ld, walk.start(k, i), H * sizeof(T));
        if (a.mask) walk.see(i, h + i * ld, seen + i * ld);
      }
      if (a.keep[0])
        for (int k = 0; k < Net::STATES; k++) std::memcpy(old + k * m0 * ld, at.s[k], m * ld * sizeof(T));
      at.rec = a.saved ? (T*)a.saved + (rows.before * a.T + t * m0) * R : rec;
      net.inside(m, at, work);
      net.finish(m, at, work);
      for (int k = 0; k < Net::STATES; k++) {
        T* out = (T*)(k ? a.c : a.y);
        for (int64_t i = 0; i < m; i++) {
          T* s = at.s[k] + i * ld;
          if (a.keep[0]) zoneout<T>(s, old + (k * m0 + i) * ld, (const T*)a.keep[k] + walk.place(i, t) * H, H);
          if (out) std::memcpy(out + walk.place(i, t) * H, s, H * sizeof(T));
        }
      }
    }
    for (int k = 0; k < Net::STATES; k++)
      for (int64_t i = 0; i < m0; i++) std::memcpy((T*)a.s1[k] + rows.row[i] * H, at.s[k] + i * ld, H * sizeof(T));
  });
}

// Rows that one product of the backward takes at once: enough to be efficient, few enough to stay in the cache.
inline int64_t chunk_of(int64_t rows, int64_t H) { return std::max<int64_t>(1, (H < 512 ? 128 : 256) / std::max<int64_t>(1, rows)); }

// Back through time, a chunk of steps at a time: what the forward left of it (or the same, computed again in one piece),
// then step by step, then the weights.
template <class T, class Net>
void run_backward(const Args& a, int threads) {
  const Net net(a, true);
  const int64_t n = net.gates(), R = Net::record(a), S = net.slopes();
  std::vector<std::unique_ptr<typename Net::Work>> parts(threads);
  each(threads, [&](int part) {
    const Rows rows(a, part, threads);
    const Walk<T> walk(a, rows);
    const int64_t m0 = rows.count(), H = a.H, ld = walk.ld, chunk = std::min(chunk_of(m0, H), std::max<int64_t>(1, rows.T)), c = chunk * m0;
    parts[part].reset(new typename Net::Work(net, c, true));
    typename Net::Work& work = *parts[part];
    const bool zero = walk.hp != H;
    Buffer<T> h(c * ld, zero), memory(Net::STATES > 1 ? c * ld : 0, zero), seen(a.mask ? c * ld : 0, zero), slope(c * S, zero);
    Buffer<T> again(a.saved && !a.lengths ? 0 : c * R, false);
    Buffer<T> room(walk.hp == H ? 0 : c * n * walk.hp), dh(m0 * ld), dc(Net::STATES > 1 ? m0 * ld : 0), dseen(a.mask ? m0 * ld : 0);
    Buffer<T> stay(a.keep[0] ? 2 * m0 * ld : 0), begun(a.reset ? 2 * m0 * ld : 0);
    std::vector<const T*> x(c);
    std::vector<T*> dx(m0);
    std::vector<int64_t> first(chunk);
    T *states[2] = {h, memory}, *d[2] = {dh, dc};
    for (int k = 0; k < Net::STATES; k++)
      for (int64_t i = 0; i < m0; i++) std::memcpy(d[k] + i * ld, (const T*)a.ds1[k] + rows.row[i] * H, H * sizeof(T));
    for (int64_t end = rows.T; end > 0;) {
      const int64_t begin = std::max<int64_t>(0, end - chunk);
      int64_t many = 0;
      for (int64_t t = begin; t < end; t++) {
        const int64_t m = rows.going(t);
        first[t - begin] = many;
        for (int64_t i = 0; i < m; i++, many++) {
          for (int k = 0; k < Net::STATES; k++) std::memcpy(states[k] + many * ld, walk.before(k, i, t), H * sizeof(T));
          if (a.mask) walk.see(i, h + many * ld, seen + many * ld);
          x[many] = walk.input(i, t, n, room + many * n * walk.hp);
        }
        if (a.saved && a.lengths) std::memcpy(again + first[t - begin] * R, (const T*)a.saved + (rows.before * a.T + t * m0) * R, m * R * sizeof(T));
      }
      T* rec = a.saved && !a.lengths ? (T*)a.saved + (rows.before * a.T + begin * m0) * R : again;
      At<T> whole{{h, memory}, a.mask ? seen : h, x.data(), rec, slope};
      if (!a.saved) net.inside(many, whole, work);
      net.prepare(many, whole, work);
      for (int64_t t = end - 1; t >= begin; t--) {
        const int64_t m = rows.going(t), at0 = first[t - begin];
        At<T> at{{h + at0 * ld, memory + at0 * ld}, whole.seen + at0 * ld, x.data() + at0, rec + at0 * R, slope + at0 * S};
        at.d[0] = dh, at.d[1] = dc, at.dseen = a.mask ? dseen : dh, at.dx = dx.data(), at.add = !a.mask;
        for (int64_t i = 0; i < m; i++) {
          dx[i] = (T*)a.dx + walk.place(i, t) * n * H;
          const T* dy = (const T*)a.dy + walk.place(i, t) * H;
          T* di = dh + i * ld;
          for (int64_t j = 0; j < H; j++) di[j] += dy[j];
          if (a.keep[0])
            for (int k = 0; k < Net::STATES; k++) {
              const T* keep = (const T*)a.keep[k] + walk.place(i, t) * H;
              T *now = d[k] + i * ld, *left = stay + (k * m0 + i) * ld;
              for (int64_t j = 0; j < H; j++) left[j] = now[j] * keep[j], now[j] *= T(1) - keep[j];
            }
        }
        net.back(m, at, at0, work);
        for (int64_t i = 0; i < m; i++) {
          if (a.mask) {
            const T* mask = (const T*)a.mask + rows.row[i] * H;
            for (int64_t j = 0; j < H; j++) dh[i * ld + j] += dseen[i * ld + j] * mask[j];
          }
          for (int k = 0; k < Net::STATES; k++) {
            T* now = d[k] + i * ld;
            if (a.keep[0])
              for (int64_t j = 0; j < H; j++) now[j] += stay[(k * m0 + i) * ld + j];
            if (walk.anew(i, t))
              for (int64_t j = 0; j < H; j++) begun[(k * m0 + i) * ld + j] += now[j], now[j] = 0;
          }
        }
      }
      net.weigh(many, whole, work);
      end = begin;
    }
    for (int k = 0; k < Net::STATES; k++)
      for (int64_t i = 0; i < m0; i++) {
        std::memcpy((T*)a.ds0[k] + rows.row[i] * H, d[k] + i * ld, H * sizeof(T));
        if (a.reset) std::memcpy((T*)a.dstart[k] + rows.row[i] * H, begun + (k * m0 + i) * ld, H * sizeof(T));
      }
  });
  for (int part = 0; part < threads; part++) net.give(*parts[part], part > 0);
}
