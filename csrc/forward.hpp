// Forward pass of a cell.
#pragma once
#include "scan.hpp"

// Some rows, and the data shared by the team that runs them.
template <class T, class Net>
struct Forward {
  const Net& net;
  const Args& a;
  const Rows rows;
  const Walk<T> walk;
  const int64_t m0, H, hp, ld, n, R;
  Buffer<T> h, c, seen, previous, room, rec;
  std::vector<const T*> x;
  typename Net::Work work;

  Forward(const Net& net, int part, int parts, int team)
      : net(net), a(net.a), rows(a, part, parts), walk(a, rows), m0(rows.count()), H(a.H), hp(walk.hp),
        ld(walk.ld), n(net.gates()), R(Net::record_size(a)), h(m0 * ld), c(Net::STATES > 1 ? m0 * ld : 0),
        seen(a.mask ? m0 * ld : 0), previous(a.keep[0] ? 2 * m0 * ld : 0), room(hp == H ? 0 : m0 * n * hp),
        rec(a.saved ? 0 : m0 * R, false), x(team * m0), work(net, m0, team, false) {
    T* s[] = {h, c};
    for (int k = 0; k < Net::STATES; k++)
      for (int64_t i = 0; i < m0 && a.s0[k]; i++) std::memcpy(s[k] + i * ld, walk.first(k, i), H * sizeof(T));
  }

  void run(const Team& team) {
    const T** x = this->x.data() + team.member * m0;
    StepView<T> at{team, team.share(hp, PANEL<T>), {h, c}, a.mask ? seen : h, x};
    const Span own{at.columns.lo, std::min(H, at.columns.hi)};
    for (int64_t t = 0; t < rows.T; t++) {
      const int64_t m = rows.count_active(t);
      begin(m, t, team, x);
      at.rec = a.saved ? (T*)a.saved + (rows.before * a.T + t * m0) * R : rec;
      net.compute_inside(m, at, work);
      team.wait();
      net.finish(m, at, work);
      for (int k = 0; k < Net::STATES; k++) {
        T* out = (T*)(k ? a.c : a.y);
        for (int64_t i = 0; i < m; i++) {
          T* s = at.s[k] + i * ld;
          if (a.keep[0])
            zoneout<T>(s, previous + (k * m0 + i) * ld, (const T*)a.keep[k] + walk.place(i, t) * H, own);
          if (out) copy(out + walk.place(i, t) * H, s, own);
        }
      }
      team.wait();
    }
    for (int k = 0; k < Net::STATES; k++)
      for (int64_t i = 0; i < m0; i++) copy((T*)a.s1[k] + rows.row[i] * H, at.s[k] + i * ld, own);
  }

  // Prepare the inputs of a step; each row by one thread.
  void begin(int64_t m, int64_t t, const Team& team, const T** x) {
    const Span own = team.share(m);
    T* s[] = {h, c};
    for (int64_t i = 0; i < m; i++) x[i] = walk.input(i, t, n, room + i * n * hp, own.lo <= i && i < own.hi);
    for (int64_t i = own.lo; i < own.hi; i++) {
      if (walk.is_reset(i, t))
        for (int k = 0; k < Net::STATES; k++) std::memcpy(s[k] + i * ld, walk.start(k, i), H * sizeof(T));
      if (a.mask) walk.apply_mask(i, h + i * ld, seen + i * ld);
      if (a.keep[0])
        for (int k = 0; k < Net::STATES; k++)
          std::memcpy(previous + (k * m0 + i) * ld, s[k] + i * ld, ld * sizeof(T));
    }
    if (hp != H || a.reset || a.mask || a.keep[0]) team.wait();
  }

  static void copy(T* to, const T* from, Span own) {
    if (own.lo < own.hi) std::memcpy(to + own.lo, from + own.lo, (own.hi - own.lo) * sizeof(T));
  }
};

template <class T, class Net>
void run_forward(const Args& a, int threads) {
  Net net(a, false);
  const Pieces<Net, Forward<T, Net>> pieces(net, threads);
  run_threads(threads, [&](const Team& team) {
    net.pack(team);
    team.wait();
    pieces.run(team);
  });
}
