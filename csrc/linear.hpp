// Linear recurrences with a matrix state of K x V numbers in every head:
//
//   S_t = diag(exp(decay_t)) S_(t-1) + k_t (v_t - S_(t-1)^T erase_t)^T,   y_t = S_t^T q_t
//
// Writes are taken CHUNK at a time. What depends on q, k, erase and decay alone is prepared once for a chunk;
// the state lies as panels [V / PANEL][K][PANEL], and each panel takes two products for the whole chunk: of
// all q and erase with S, and the update of S with all keys. A chunk is short, so that all it adds to the
// arithmetic of the recurrence itself is a tenth, and no decay is ever divided by: products of decays
// underflow to 0, as they do step by step.
#pragma once
#include <algorithm>

#include "functions.hpp"
#include "gemm.hpp"
#include "linear_args.h"

constexpr int CHUNK = ROWS;              // writes of a chunk: as many rows as a micro-kernel takes
constexpr int64_t FEW_WRITES = 3;        // fewer than this many do not repay a copy of the state
constexpr int64_t PER_THREAD = 1 << 18;  // numbers of all states in all writes that repay a thread

template <class T>
inline T dot(const T* a, const T* b, int64_t n) {
  constexpr int w = N<T>;
  V<T> s[4] = {};
  int64_t i = 0;
  for (; i + 4 * w <= n; i += 4 * w)
    for (int j = 0; j < 4; j++) s[j] += load(a + i + j * w) * load(b + i + j * w);
  for (; i + w <= n; i += w) s[0] += load(a + i) * load(b + i);
  T total = sum<T>((s[0] + s[1]) + (s[2] + s[3]));
  for (; i < n; i++) total += a[i] * b[i];
  return total;
}

// The products of x with some keys, four at a time.
template <class T>
inline void dots(const T* x, const T* keys, int64_t by, int64_t count, int64_t n, T* out) {
  constexpr int w = N<T>;
  int64_t s = 0;
  for (; s + 4 <= count; s += 4) {
    const T* key = keys + s * by;
    V<T> sums[4] = {}, more[4] = {};
    int64_t i = 0;
    for (; i + 2 * w <= n; i += 2 * w) {
      const V<T> a = load(x + i), b = load(x + i + w);
      for (int r = 0; r < 4; r++)
        sums[r] += a * load(key + r * by + i), more[r] += b * load(key + r * by + i + w);
    }
    for (int r = 0; r < 4; r++) {
      T total = sum<T>(sums[r] + more[r]);
      for (int64_t j = i; j < n; j++) total += x[j] * key[r * by + j];
      out[s + r] = total;
    }
  }
  for (; s < count; s++) out[s] = dot<T>(x, keys + s * by, n);
}

template <class T>
inline T exp_one(T x) {
  return exact_exp<T>(all(x))[0];
}
template <class T>
inline void exp_all(T* to, const T* from, int64_t n) {
  int64_t i = 0;
  for (; i + N<T> <= n; i += N<T>) store(to + i, exact_exp<T>(load(from + i)));
  for (; i < n; i++) to[i] = exp_one(from[i]);
}

// One row and head of a job.
template <class T>
struct Head {
  const LinearArgs& a;
  const int64_t b, h;

  const T* at(const void* p, int64_t t, int64_t steps, int64_t width) const {
    return p ? (const T*)p + ((b * steps + t) * a.H + h) * width : nullptr;
  }
  const T* q(int64_t t) const { return at(a.q, t, a.T, a.K); }
  const T* k(int64_t i) const { return at(a.k, i, a.T * a.writes, a.K); }
  const T* v(int64_t i) const { return at(a.v, i, a.T * a.writes, a.V); }
  const T* decay(int64_t i) const { return at(a.decay, i, a.T * a.writes, a.channels); }
  const T* erase(int64_t i) const { return at(a.erase, i, a.T * a.writes, a.K); }
  T beta(int64_t i) const { return *at(a.beta, i, a.T * a.writes, 1); }
  bool erases() const { return a.erase || a.beta; }
  const T* s0() const { return (const T*)a.s0 + (b * a.H + h) * a.K * a.V; }
  T* s1() const { return (T*)a.s1 + (b * a.H + h) * a.K * a.V; }
  T* y(int64_t t) const { return (T*)a.y + ((b * a.T + t) * a.H + h) * a.V; }
};

// What a chunk's panels share. Keys are decayed to the last write; `kept` are the products of all decays.
template <class T>
struct Chunk {
  const int64_t K, by;  // by: from one key to the next
  Buffer<T> keys, erases, reads, kept, w, delta;
  T L[CHUNK][CHUNK], M[CHUNK][CHUNK];
  int64_t count = 0, outputs = 0;
  int64_t at[CHUNK];  // the write after which an output is read

  explicit Chunk(int64_t K)
      : K(K), by(round_up(K, N<T>)), keys(CHUNK * by), erases(CHUNK * (K + 1) + N<T>),
        reads(CHUNK * (K + 1) + N<T>), kept(by), w(by), delta(by) {}

  void prepare(const Head<T>& head, int64_t first, int64_t some) {
    const LinearArgs& a = head.a;
    const bool by_channel = a.channels > 1;
    count = some, outputs = 0;
    T scale[CHUNK], all_kept = 1;  // with one decay for all channels: of each key, and of the state
    for (int64_t c = 0; c < by; c++) kept[c] = c < K ? T(1) : T(0);
    for (int64_t i = 0; i < count; i++) {
      const T *k = head.k(first + i), *decay = head.decay(first + i), *e = head.erase(first + i);
      T f = 1;
      if (decay && by_channel)
        exp_all<T>(w, decay, K);
      else if (decay)
        f = exp_one(decay[0]);
      if (a.beta) {
        for (int64_t c = 0; c < K; c++) delta[c] = (by_channel ? w[c] : f) * k[c];
        e = delta;
      }
      if (e) {
        put_column(erases + i, e, by_channel, all_kept);
        dots<T>(e, keys, by, i, K, L[i]);
        for (int64_t s = 0; s < i && !by_channel; s++) L[i][s] *= scale[s];
      }
      if (decay && by_channel) fade(i);
      all_kept *= f;
      for (int64_t s = 0; s < i; s++) scale[s] *= f;
      scale[i] = 1;
      T* key = keys + i * by;
      std::memcpy(key, k, K * sizeof(T));
      if (a.beta) {
        const T beta = head.beta(first + i);
        for (int64_t c = 0; c < by; c += N<T>) store(key + c, load(key + c) * beta);
      }
      if (a.writes > 1 && (first + i + 1) % a.writes) continue;
      const T* q = head.q(a.writes > 1 ? (first + i) / a.writes : first + i);
      put_column(reads + outputs, q, by_channel, all_kept);
      dots<T>(q, keys, by, i + 1, K, M[outputs]);
      for (int64_t s = 0; s <= i && !by_channel; s++) M[outputs][s] *= scale[s];
      at[outputs++] = i;
    }
    if (!a.decay || by_channel) return;
    for (int64_t c = 0; c < K; c++) kept[c] = all_kept;
    for (int64_t i = 0; i + 1 < count; i++)
      for (int64_t c = 0; c < by; c += N<T>) store(keys + i * by + c, load(keys + i * by + c) * scale[i]);
  }

 private:
  // what multiplies the state before the chunk, as a column
  void put_column(T* to, const T* from, bool by_channel, T all_kept) {
    if (by_channel)
      for (int64_t c = 0; c < K; c++) to[c * CHUNK] = from[c] * kept[c];
    else
      for (int64_t c = 0; c < K; c++) to[c * CHUNK] = from[c] * all_kept;
  }
  // all earlier keys, and what is kept of the state, by the decays w of one write
  void fade(int64_t i) {
    for (int64_t c = 0; c < by; c += N<T>) {
      const V<T> f = load(w + c);
      store(kept + c, load(kept + c) * f);
      for (int64_t s = 0; s < i; s++) store(keys + s * by + c, load(keys + s * by + c) * f);
    }
  }
};

// S = kept S + keys^T w for a panel, with all the chunk's writes at once; those past its end are 0.
template <class T, bool FADES>
inline void update_panel(T* S, const Chunk<T>& chunk, const T* w) {
  const int64_t K = chunk.K, by = chunk.by;
  const T *keys = chunk.keys, *kept = chunk.kept;
  int64_t c = 0;
  for (; c + N<T> <= K; c += N<T>, S += N<T> * PANEL<T>) {
    V<T> sums[N<T>][WIDE], f = load(kept + c);
#pragma GCC unroll 16
    for (int r = 0; r < N<T>; r++)
      for (int j = 0; j < WIDE; j++) {
        sums[r][j] = load(S + r * PANEL<T> + j * N<T>);
        if (FADES) sums[r][j] *= all<T>(f[r]);
      }
#pragma GCC unroll 16
    for (int s = 0; s < CHUNK; s++) {
      const V<T> key = load(keys + s * by + c);
#pragma GCC unroll 4
      for (int j = 0; j < WIDE; j++) {
        const V<T> ws = load(w + s * PANEL<T> + j * N<T>);
#pragma GCC unroll 16
        for (int r = 0; r < N<T>; r++) sums[r][j] += all<T>(key[r]) * ws;
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < N<T>; r++)
      for (int j = 0; j < WIDE; j++) store(S + r * PANEL<T> + j * N<T>, sums[r][j]);
  }
  for (; c < K; c++, S += PANEL<T>)
    for (int j = 0; j < WIDE; j++) {
      V<T> total = load(S + j * N<T>) * all(kept[c]);
      for (int s = 0; s < CHUNK; s++) total += all(keys[s * by + c]) * load(w + s * PANEL<T> + j * N<T>);
      store(S + j * N<T>, total);
    }
}

// What is written: w_i = v_i - e_i - sum L_is w_s; w holds e. A chunk's rows past its end become 0.
template <class T>
inline void solve_panel(T* w, const Chunk<T>& chunk, const Head<T>& head, int64_t first, int64_t column,
                        int64_t some) {
  const bool erases = head.erases();
  for (int64_t i = 0; i < CHUNK; i++) {
    T* to = w + i * PANEL<T>;
    if (i >= chunk.count) {
      for (int j = 0; j < WIDE; j++) store(to + j * N<T>, V<T>{});
      continue;
    }
    const T* v = head.v(first + i) + column;
    T part[PANEL<T>] = {};
    if (some < PANEL<T>) {
      for (int64_t j = 0; j < some; j++) part[j] = v[j];
      v = part;
    }
    for (int j = 0; j < WIDE; j++)
      store(to + j * N<T>, erases ? load(v + j * N<T>) - load(to + j * N<T>) : load(v + j * N<T>));
  }
  if (!erases) return;
  if (chunk.count < CHUNK) {
    for (int64_t i = 1; i < chunk.count; i++)
      for (int64_t s = 0; s < i; s++)
        for (int j = 0; j < WIDE; j++) {
          T* to = w + i * PANEL<T> + j * N<T>;
          store(to, load(to) - all(chunk.L[i][s]) * load(w + s * PANEL<T> + j * N<T>));
        }
    return;
  }
  // each row, once it is known, goes into all later ones: sums that do not wait for each other
  for (int j = 0; j < WIDE; j++) {
    V<T> rows[CHUNK];
#pragma GCC unroll 16
    for (int i = 0; i < CHUNK; i++) rows[i] = load(w + i * PANEL<T> + j * N<T>);
#pragma GCC unroll 16
    for (int s = 0; s < CHUNK; s++)
#pragma GCC unroll 16
      for (int i = s + 1; i < CHUNK; i++) rows[i] -= all(chunk.L[i][s]) * rows[s];
#pragma GCC unroll 16
    for (int i = 0; i < CHUNK; i++) store(w + i * PANEL<T> + j * N<T>, rows[i]);
  }
}

// The outputs: y_o = y_o + sum M_os w_s, to the caller's memory.
template <class T>
inline void read_panel(const T* y, const T* w, const Chunk<T>& chunk, const Head<T>& head, int64_t first,
                       int64_t column, int64_t some) {
  for (int64_t o = 0; o < chunk.outputs; o++) {
    const int64_t last = chunk.at[o], writes = head.a.writes;
    T* to = head.y(writes > 1 ? (first + last) / writes : first + last) + column;
    V<T> total[WIDE];
    for (int j = 0; j < WIDE; j++) {
      total[j] = load(y + o * PANEL<T> + j * N<T>);
      for (int64_t s = 0; s <= last; s++) total[j] += all(chunk.M[o][s]) * load(w + s * PANEL<T> + j * N<T>);
    }
    if (some == PANEL<T>) {
      for (int j = 0; j < WIDE; j++) store(to + j * N<T>, total[j]);
    } else {
      T part[PANEL<T>];
      for (int j = 0; j < WIDE; j++) store(part + j * N<T>, total[j]);
      for (int64_t j = 0; j < some; j++) to[j] = part[j];
    }
  }
}

// All writes of one head for the panels [lo, hi) of its columns.
template <class T>
void run_head(const Head<T>& head, Span panels, Chunk<T>& chunk, T* S) {
  const LinearArgs& a = head.a;
  const int64_t K = a.K, steps = a.T * a.writes;
  const auto columns = [&](int64_t p) { return std::min<int64_t>(PANEL<T>, a.V - p * PANEL<T>); };
  for (int64_t p = panels.lo; p < panels.hi; p++)
    for (int64_t c = 0; c < K; c++) {
      T* to = S + ((p - panels.lo) * K + c) * PANEL<T>;
      const int64_t some = columns(p);
      for (int64_t j = some; j < PANEL<T>; j++) to[j] = 0;
      std::memcpy(to, head.s0() + c * a.V + p * PANEL<T>, some * sizeof(T));
    }
  alignas(64) T w[CHUNK * PANEL<T>], y[CHUNK * PANEL<T>];
  for (int64_t first = 0; first < steps; first += CHUNK) {
    const int64_t count = std::min<int64_t>(CHUNK, steps - first);
    if (count < CHUNK) std::memset(chunk.keys, 0, CHUNK * chunk.by * sizeof(T));
    chunk.prepare(head, first, count);
    for (int64_t p = panels.lo; p < panels.hi; p++) {
      T* state = S + (p - panels.lo) * K * PANEL<T>;
      const int64_t some = columns(p);
      if (head.erases())
        run_micro<T, false>(count, chunk.erases, CHUNK, state, w, PANEL<T>, K, nullptr, false, state);
      if (chunk.outputs)
        run_micro<T, false>(chunk.outputs, chunk.reads, CHUNK, state, y, PANEL<T>, K, nullptr, false, state);
      solve_panel<T>(w, chunk, head, first, p * PANEL<T>, some);
      read_panel<T>(y, w, chunk, head, first, p * PANEL<T>, some);
      a.decay ? update_panel<T, true>(state, chunk, w) : update_panel<T, false>(state, chunk, w);
    }
  }
  for (int64_t p = panels.lo; p < panels.hi; p++)
    for (int64_t c = 0; c < K; c++)
      std::memcpy(head.s1() + c * a.V + p * PANEL<T>, S + ((p - panels.lo) * K + c) * PANEL<T>,
                  columns(p) * sizeof(T));
}

// WIDTH vectors of columns of one write, from S to R, both as the caller has them, (K, V): what is erased and
// the answer of S, and then R. f: the decays; qf: q times the decays, or null where nothing is read.
template <class T, int WIDTH>
inline void write_columns(int64_t K, int64_t by, const T* S, T* R, const T* k, const T* v, const T* e,
                          const T* f, const T* qf, T qk, T* y) {
  constexpr int n = N<T>;
  V<T> w[WIDTH] = {}, answer[WIDTH] = {};
  if (e && qf) {
    for (int64_t c = 0; c < K; c++) {
      const V<T> ec = all(e[c]), qc = all(qf[c]);
#pragma GCC unroll 8
      for (int j = 0; j < WIDTH; j++) {
        const V<T> s = load(S + c * by + j * n);
        w[j] += ec * s, answer[j] += qc * s;
      }
    }
  } else if (e || qf) {
    for (int64_t c = 0; c < K; c++) {
      const V<T> one = all(e ? e[c] : qf[c]);
#pragma GCC unroll 8
      for (int j = 0; j < WIDTH; j++) (e ? w : answer)[j] += one * load(S + c * by + j * n);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < WIDTH; j++) {
    w[j] = load(v + j * n) - w[j];
    if (qf) store(y + j * n, answer[j] + all(qk) * w[j]);
  }
  for (int64_t c = 0; c < K; c++) {
    const V<T> kc = all(k[c]), fc = all(f[c]);
#pragma GCC unroll 8
    for (int j = 0; j < WIDTH; j++) store(R + c * by + j * n, fc * load(S + c * by + j * n) + kc * w[j]);
  }
}
template <class T>
inline void write_column(int64_t K, int64_t by, const T* S, T* R, const T* k, const T* v, const T* e,
                         const T* f, const T* qf, T qk, T* y) {
  T w = 0, answer = 0;
  for (int64_t c = 0; c < K; c++) {
    w += e ? e[c] * S[c * by] : T(0);
    answer += qf ? qf[c] * S[c * by] : T(0);
  }
  w = v[0] - w;
  if (qf) y[0] = answer + qk * w;
  for (int64_t c = 0; c < K; c++) R[c * by] = f[c] * S[c * by] + k[c] * w;
}

template <class T>
int64_t direct_room(const LinearArgs& a) {
  return 4 * round_up(a.K, N<T>);
}

// One write without a copy of the state. room: direct_room numbers.
template <class T>
void write_directly(const Head<T>& head, int64_t i, const T* S, T* room) {
  const LinearArgs& a = head.a;
  const int64_t K = a.K, by = round_up(K, N<T>);
  const T *k = head.k(i), *v = head.v(i), *e = head.erase(i), *decay = head.decay(i);
  const bool reads = (i + 1) % a.writes == 0;
  T *f = room, *qf = f + by, *delta = qf + by, *key = delta + by;
  if (!decay)
    std::fill(f, f + K, T(1));
  else if (a.channels == 1)
    std::fill(f, f + K, exp_one(decay[0]));
  else
    exp_all<T>(f, decay, K);
  if (a.beta) {
    const T beta = head.beta(i);
    for (int64_t c = 0; c < K; c++) delta[c] = f[c] * k[c], key[c] = beta * k[c];
    e = delta, k = key;
  }
  T qk = 0, *y = nullptr;
  if (reads) {
    const T* q = head.q(i / a.writes);
    y = head.y(i / a.writes);
    qk = dot<T>(q, k, K);
    for (int64_t c = 0; c < K; c++) qf[c] = q[c] * f[c];
  }
  T* const query = reads ? qf : nullptr;
  T* const R = head.s1();
  constexpr int n = N<T>, many = 8;
  int64_t j = 0;
  for (; j + many * n <= a.V; j += many * n)
    write_columns<T, many>(K, a.V, S + j, R + j, k, v + j, e, f, query, qk, y ? y + j : y);
  for (; j + n <= a.V; j += n)
    write_columns<T, 1>(K, a.V, S + j, R + j, k, v + j, e, f, query, qk, y ? y + j : y);
  for (; j < a.V; j++) write_column<T>(K, a.V, S + j, R + j, k, v + j, e, f, query, qk, y ? y + j : y);
}

template <class T>
void run_linear(const LinearArgs& a, int threads) {
  const int64_t heads = a.B * a.H, steps = a.T * a.writes, panels = (a.V + PANEL<T> - 1) / PANEL<T>;
  if (!heads) return;
  threads = (int)std::min<int64_t>(threads, std::max<int64_t>(1, heads * steps * a.K * a.V / PER_THREAD));
  const bool direct = steps < FEW_WRITES;
  // heads are divided first; where there are fewer than threads, the columns of each are too
  const int64_t groups = direct ? 1 : std::min<int64_t>(panels, (threads + heads - 1) / heads);
  const int64_t share = (panels + groups - 1) / groups;
  const int64_t room = direct_room<T>(a);
  std::vector<Chunk<T>*> chunks;
  Buffer<T> states(direct ? 0 : threads * share * a.K * PANEL<T>, false),
      rooms(direct ? threads * room : 0, false);
  struct Free {
    std::vector<Chunk<T>*>& all;
    ~Free() {
      for (auto* c : all) delete c;
    }
  } guard{chunks};
  if (!direct)
    for (int i = 0; i < threads; i++) chunks.push_back(new Chunk<T>(a.K));
  run_threads(threads, [&](const Team& team) {
    const Span mine = team.share(heads * groups);
    for (int64_t unit = mine.lo; unit < mine.hi; unit++) {
      const int64_t b = unit / groups / a.H, h = unit / groups % a.H, part = unit % groups;
      const Head<T> head{a, b, h};
      if (direct) {
        const T* S = head.s0();
        for (int64_t i = 0; i < steps; i++, S = head.s1())
          write_directly<T>(head, i, S, rooms + team.member * room);
        continue;
      }
      const Span columns{part * share, std::min(panels, (part + 1) * share)};
      run_head<T>(head, columns, *chunks[team.member], states + team.member * share * a.K * PANEL<T>);
    }
  });
}

constexpr int64_t COLUMNS = 256;  // of a diagonal recurrence that a thread takes at a time

template <class T>
void run_diagonal(const DiagonalArgs& d, int threads) {
  const int64_t width = d.N * (d.complex ? 2 : 1), blocks = (width + COLUMNS - 1) / COLUMNS;
  threads = (int)std::min<int64_t>(threads, std::max<int64_t>(1, d.B * d.T * width / (PER_THREAD / 4)));
  run_threads(threads, [&](const Team& team) {
    const Span mine = team.share(d.B * blocks);
    for (int64_t unit = mine.lo; unit < mine.hi; unit++) {
      const int64_t row = unit / blocks, lo = unit % blocks * COLUMNS;
      const int64_t n = std::min(COLUMNS, width - lo);
      const T* h = (const T*)d.h0 + row * width + lo;
      for (int64_t t = 0; t < d.T; t++) {
        const int64_t at = (row * d.T + t) * width + lo;
        const T *a = (const T*)d.a + at, *b = (const T*)d.b + at;
        T* y = (T*)d.y + at;
        if (d.complex)
          for (int64_t i = 0; i < n; i += 2) {
            const T re = h[i], im = h[i + 1];
            y[i] = a[i] * re - a[i + 1] * im + b[i];
            y[i + 1] = a[i] * im + a[i + 1] * re + b[i + 1];
          }
        else
          for (int64_t i = 0; i < n; i++) y[i] = a[i] * h[i] + b[i];
        h = y;
      }
    }
  });
}
