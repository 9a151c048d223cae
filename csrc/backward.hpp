// Backward pass of a cell, in chunks of steps: load what the forward pass saved (or recompute it at once),
// run the steps in reverse, then compute the weight gradients.
#pragma once
#include "scan.hpp"

// Rows per product of the backward pass: enough to be efficient, few enough to stay in the cache.
inline int64_t count_chunk_steps(int64_t rows, int64_t H) {
  return std::max<int64_t>(1, (H < 512 ? 128 : 256) / std::max<int64_t>(1, rows));
}

// Some rows, and the data shared by the team that runs them.
template <class T, class Net>
struct Backward {
  const Net& net;
  const Args& a;
  const Rows rows;
  const Walk<T> walk;
  const int64_t m0, H, hp, ld, n, R, S, chunk, c;
  const bool zero;
  Buffer<T> h, memory, seen, slope, recomputed, room, dh, dc, dseen, dkept, dstart;
  struct Local {
    std::vector<const T*> x;
    std::vector<T*> dx;
    std::vector<int64_t> first;  // index of the first row of each step
  };
  std::vector<Local> members;
  typename Net::Work work;

  Backward(const Net& net, int part, int parts, int team)
      : net(net), a(net.a), rows(a, part, parts), walk(a, rows), m0(rows.count()), H(a.H), hp(walk.hp),
        ld(walk.ld), n(net.gates()), R(Net::record_size(a)), S(net.slope_size()),
        chunk(std::min(count_chunk_steps(m0, H), std::max<int64_t>(1, rows.T))), c(chunk * m0), zero(hp != H),
        h(c * ld, zero), memory(Net::STATES > 1 ? c * ld : 0, zero), seen(a.mask ? c * ld : 0, zero),
        slope(c * S, zero), recomputed(a.saved && !a.lengths ? 0 : c * R, false), room(zero ? c * n * hp : 0),
        dh(m0 * ld), dc(Net::STATES > 1 ? m0 * ld : 0), dseen(a.mask ? m0 * ld : 0),
        dkept(a.keep[0] ? 2 * m0 * ld : 0), dstart(a.reset ? 2 * m0 * ld : 0),
        members(team, Local{std::vector<const T*>(c), std::vector<T*>(m0), std::vector<int64_t>(chunk)}),
        work(net, c, team, true, parts == 1 && !zero && 0 < rows.T && rows.T <= chunk) {
    T* d[] = {dh, dc};
    for (int k = 0; k < Net::STATES; k++)
      for (int64_t i = 0; i < m0 && a.ds1[k]; i++)
        std::memcpy(d[k] + i * ld, (const T*)a.ds1[k] + rows.row[i] * H, H * sizeof(T));
  }

  void run(const Team& team) {
    Local& local = members[team.member];
    if (!rows.T) work.clear(team);
    const Span cols = team.share(hp, PANEL<T>), own{cols.lo, std::min(H, cols.hi)};
    for (int64_t end = rows.T; end > 0;) {
      const int64_t begin = std::max<int64_t>(0, end - chunk), count = load_chunk(begin, end, team, local);
      T* rec = a.saved && !a.lengths ? (T*)a.saved + (rows.before * a.T + begin * m0) * R : recomputed;
      StepView<T> whole{team, cols, {h, memory}, a.mask ? seen : h, local.x.data(), rec, slope};
      whole.is_first = end == rows.T;  // the last chunk in time runs first; its steps have rows
      if (!a.saved) {
        team.wait();
        net.compute_inside(count, whole, work);
      }
      team.wait();
      net.prepare(count, whole, work);
      team.wait();
      for (int64_t t = end - 1; t >= begin; t--) step(t, local.first[t - begin], whole, own, local);
      team.wait();
      net.add_weight_gradients(count, whole, work);
      team.wait();
      end = begin;
    }
    T* d[] = {dh, dc};
    for (int k = 0; k < Net::STATES; k++)
      for (int64_t i = 0; i < m0; i++)
        for (int64_t j = own.lo; j < own.hi; j++) {
          if (a.ds0[k]) ((T*)a.ds0[k])[rows.row[i] * H + j] = d[k][i * ld + j];
          if (a.reset) ((T*)a.dstart[k])[rows.row[i] * H + j] = dstart[(k * m0 + i) * ld + j];
        }
  }

  // Gather the states before each step, the input and the saved values, step by step in consecutive rows;
  // each step by one thread.
  int64_t load_chunk(int64_t begin, int64_t end, const Team& team, Local& local) {
    const Span own = team.share(end - begin);
    T* s[] = {h, memory};
    int64_t count = 0;
    for (int64_t t = begin; t < end; t++) {
      const int64_t m = rows.count_active(t);
      const bool is_own = own.lo <= t - begin && t - begin < own.hi;
      local.first[t - begin] = count;
      if (is_own && a.saved && a.lengths)
        std::memcpy(recomputed + count * R, (const T*)a.saved + (rows.before * a.T + t * m0) * R,
                    m * R * sizeof(T));
      for (int64_t i = 0; i < m; i++, count++) {
        local.x[count] = walk.input(i, t, n, room + count * n * hp, is_own);
        if (!is_own) continue;
        for (int k = 0; k < Net::STATES; k++) {
          const T* before = walk.before(k, i, t);
          before ? std::memcpy(s[k] + count * ld, before, H * sizeof(T))
                 : std::memset(s[k] + count * ld, 0, H * sizeof(T));
        }
        if (a.mask) walk.apply_mask(i, h + count * ld, seen + count * ld);
      }
    }
    return count;
  }

  void step(int64_t t, int64_t at0, const StepView<T>& whole, Span own, Local& local) {
    const int64_t m = rows.count_active(t);
    T* d[] = {dh, dc};
    StepView<T> at = whole;
    at.s[0] = h + at0 * ld, at.s[1] = memory + at0 * ld, at.seen += at0 * ld, at.x += at0, at.rec += at0 * R,
    at.slope += at0 * S;
    at.d[0] = dh, at.d[1] = dc, at.dseen = a.mask ? dseen : dh, at.dx = local.dx.data(), at.add = !a.mask;
    at.is_wanted = is_state_wanted(a, t);
    for (int64_t i = 0; i < m; i++) {
      local.dx[i] = (T*)a.dx + walk.place(i, t) * n * H;
      const T* dy = (const T*)a.dy + walk.place(i, t) * H;
      T* di = dh + i * ld;
      for (int64_t j = own.lo; j < own.hi && a.dy; j++) di[j] += dy[j];
      if (a.keep[0])
        for (int k = 0; k < Net::STATES; k++) {
          const T* keep = (const T*)a.keep[k] + walk.place(i, t) * H;
          T *current = d[k] + i * ld, *rest = dkept + (k * m0 + i) * ld;
          for (int64_t j = own.lo; j < own.hi; j++)
            rest[j] = current[j] * keep[j], current[j] *= T(1) - keep[j];
        }
    }
    net.backpropagate(m, at, at0, work);
    for (int64_t i = 0; i < m; i++) {
      if (a.mask) {
        const T* mask = (const T*)a.mask + rows.row[i] * H;
        for (int64_t j = own.lo; j < own.hi; j++) dh[i * ld + j] += dseen[i * ld + j] * mask[j];
      }
      for (int k = 0; k < Net::STATES; k++) {
        T* current = d[k] + i * ld;
        if (a.keep[0])
          for (int64_t j = own.lo; j < own.hi; j++) current[j] += dkept[(k * m0 + i) * ld + j];
        if (walk.is_reset(i, t))
          for (int64_t j = own.lo; j < own.hi; j++)
            dstart[(k * m0 + i) * ld + j] += current[j], current[j] = 0;
      }
    }
  }
};

template <class T, class Net>
void run_backward(const Args& a, int threads) {
  Net net(a, true);
  const Pieces<Net, Backward<T, Net>> pieces(net, threads);
  run_threads(threads, [&](const Team& team) {
    net.pack(team);
    team.wait();
    pieces.run(team);
    team.wait();
    for (size_t part = 0; part < pieces.all.size(); part++)
      net.write_gradients(team, pieces.all[part]->work, part > 0);
  });
}
