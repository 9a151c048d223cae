// Linear recurrences with a matrix state of K x V numbers in every head:
//
//   S_t = diag(exp(decay_t)) S_(t-1) + k_t (v_t - S_(t-1)^T erase_t)^T,   y_t = S_t^T q_t
//
// Writes are processed CHUNK at a time. Everything that depends only on q, k, erase and decay is prepared
// once per chunk; the state is stored as panels [V / PANEL][K][PANEL], and each panel needs two products per
// chunk: of all q and erase with S, and the update of S with all keys. A chunk is so short that it adds only
// a tenth to the arithmetic of the recurrence itself. Nothing is divided by the decay of a step: products of
// decays underflow to 0, as they do step by step.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "functions.hpp"
#include "gemm.hpp"
#include "linear_args.h"

// A chunk has BLOCKS times as many writes as a micro-kernel has rows. Two blocks halve the reads and writes
// of a state, for 4 % more arithmetic.
constexpr int BLOCKS = BY_LANE ? 2 : 1, CHUNK = BLOCKS * ROWS;
template <class T>
constexpr int COLUMN = (ROWS + N<T> - 1) / N<T> * N<T>;  // stride between columns of a block's writes
template <class T>
constexpr bool HAS_DELTA = BY_LANE && COLUMN<T> == PANEL<T>;
constexpr int UNROLLED =
    BY_LANE ? 1 : 4;  // writes of an update; 4 takes 1 % longer on a Neoverse-N1, 16 takes 5 %
constexpr int UPDATED = VBYTES == 64 || BY_LANE ? 8 : 6;  // channels of a state that are updated at a time
// With one decay for all channels a state is a common factor times its panels; below this the panels are
// multiplied.
constexpr double SMALLEST_SCALE = 1e-3;
template <class T>
constexpr int64_t LINE = 64 / sizeof(T);  // elements per cache line
constexpr int64_t STATES_BYTES =
    1 << 19;                       // bytes of the states that a thread advances in turn: half of the L2 cache
constexpr int64_t FEW_WRITES = 3;  // fewer writes do not justify a copy of the state
constexpr int64_t PER_THREAD = 1 << 18;  // elements of all states in all writes that justify a thread

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

// The products of two rows x and y with some keys, four at a time; y may be null.
template <class T>
inline void dots(const T* x, const T* y, const T* keys, int64_t by, int64_t count, int64_t n, T* of_x,
                 T* of_y) {
  constexpr int w = N<T>;
  if (!y) y = x;
  for (int64_t s = 0; s < count; s += 4) {
    const T* key[4];
    for (int r = 0; r < 4; r++) key[r] = keys + std::min<int64_t>(s + r, count - 1) * by;
    V<T> xs[4] = {}, ys[4] = {};
    int64_t i = 0;
    for (; i + w <= n; i += w) {
      const V<T> a = load(x + i), b = load(y + i);
#pragma GCC unroll 4
      for (int r = 0; r < 4; r++) {
        const V<T> k = load(key[r] + i);
        xs[r] += a * k, ys[r] += b * k;
      }
    }
    for (int r = 0; r < 4 && s + r < count; r++) {
      T a = sum<T>(xs[r]), b = sum<T>(ys[r]);
      for (int64_t j = i; j < n; j++) a += x[j] * key[r][j], b += y[j] * key[r][j];
      of_x[s + r] = a, of_y[s + r] = b;
    }
  }
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
template <class T>
inline void multiply(T* to, const T* a, const T* b, int64_t n) {
  int64_t i = 0;
  for (; i + N<T> <= n; i += N<T>) store(to + i, load(a + i) * load(b + i));
  for (; i < n; i++) to[i] = a[i] * b[i];
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
  T beta(int64_t i) const { return a.beta ? *at(a.beta, i, a.T * a.writes, 1) : T(1); }
  bool erases() const { return a.erase || a.beta; }
  // the output after a write, or -1
  int64_t output(int64_t i) const { return a.writes == 1 ? i : (i + 1) % a.writes ? -1 : i / a.writes; }
  const T* s0() const { return (const T*)a.s0 + (b * a.H + h) * a.K * a.V; }
  T* s1() const { return (T*)a.s1 + (b * a.H + h) * a.K * a.V; }
  T* y(int64_t t) const { return (T*)a.y + ((b * a.T + t) * a.H + h) * a.V; }
};

// Data that a chunk's panels share. With one decay for all channels, products use the unscaled keys and
// queries, and their rows are scaled; a decay for each channel is multiplied into the keys and queries.
template <class T>
struct Chunk {
  const int64_t K, by, block;              // by, block: strides between keys, and between blocks of columns
  Buffer<T> keys;                          // rows, 0 past the chunk's end
  Buffer<T> erase_columns, read_columns;   // (BLOCKS, K, COLUMN): factors of the state before the chunk
  Buffer<T> erases, reads, kept, w, none;  // rows
  T L[CHUNK][CHUNK] = {}, M[CHUNK][CHUNK] = {};
  T minus_L_columns[CHUNK][CHUNK], M_columns[CHUNK][CHUNK];  // transposed, for a full chunk
  T erase_scale[CHUNK] = {}, minus_erase_scale[CHUNK], read_scale[CHUNK], write_scale[CHUNK];
  int64_t count = 0, outputs = 0;
  int64_t at[CHUNK];            // the write after which an output is read
  T scale = 1;                  // the state is `scale` times the panels
  const T* key_rows = nullptr;  // keys of the update: those of the head, or `keys`
  int64_t keys_by = 0;
  bool fades = false;  // whether the update multiplies the panels by `kept`

  explicit Chunk(int64_t K)
      : K(K), by(round_up(K, N<T>) + N<T>), block((K + N<T>)*COLUMN<T>), keys(CHUNK * by),
        erase_columns(BLOCKS * block), read_columns(BLOCKS * block), erases(CHUNK * by), reads(CHUNK * by),
        kept(by), w(by), none(by) {}

  void prepare(const Head<T>& head, int64_t first, int64_t some) {
    count = some, outputs = 0;
    const T *erase_rows[CHUNK], *read_rows[CHUNK];
    // the update reads full groups of keys in place
    const bool is_whole = count == CHUNK && K % UPDATED == 0;
    if (HAS_DELTA<T> && head.a.beta && head.a.channels < 2 && head.a.writes == 1 && is_whole) {
      if constexpr (HAS_DELTA<T>) prepare_delta(head, first, erase_rows, read_rows);
    } else {
      key_rows = keys, keys_by = by;
      for (int64_t i = 0; i < CHUNK; i++) {
        if (i < count)
          std::memcpy(keys + i * by, head.k(first + i), K * sizeof(T));
        else
          std::memset(keys + i * by, 0, K * sizeof(T));
      }
      head.a.channels > 1 ? prepare_channels(head, first, erase_rows, read_rows)
                          : prepare_uniform(head, first, erase_rows, read_rows);
      if (head.erases()) put_blocks(erase_columns, erase_rows, count);
      put_blocks(read_columns, read_rows, outputs);
    }
    if constexpr (BY_LANE)
      if (outputs == CHUNK) put_factors();
  }

 private:
  // The delta rule with an output for each write, and one decay or none: a micro-kernel multiplies columns
  // with keys; its panel is the columns of a block of keys.
  void prepare_delta(const Head<T>& head, int64_t first, const T** erase_rows, const T** read_rows) {
    key_rows = head.k(first), keys_by = head.a.H * K;
    T kept_of[CHUNK] = {};
    for (int64_t i = 0; i < CHUNK; i++) {
      erase_rows[i] = head.k(first + i), read_rows[i] = head.q(first + i), at[i] = i;
      if (head.a.decay) kept_of[i] = *head.decay(first + i);
    }
    for (int i = 0; i < CHUNK; i += N<T>) store(kept_of + i, exact_exp<T>(load(kept_of + i)));
    put_blocks(erase_columns, erase_rows, count);
    put_blocks(read_columns, read_rows, outputs = count);
    for (int i = 0; i < BLOCKS; i++)
      for (int s = 0; s <= i; s++) {
        const T* const panel = erase_columns + s * block;
        micro<T, ROWS, false>(erase_columns + i * block, COLUMN<T>, panel, &L[i * ROWS][s * ROWS], CHUNK, K,
                              nullptr, false, panel);
        micro<T, ROWS, false>(read_columns + i * block, COLUMN<T>, panel, &M[i * ROWS][s * ROWS], CHUNK, K,
                              nullptr, false, panel);
      }
    T kept_from[CHUNK] = {}, all_kept = scale;  // decay since each write, times its beta; since the first
    for (int64_t i = 0; i < CHUNK; i++) {
      all_kept *= kept_of[i];
      for (int64_t s = 0; s < CHUNK; s++) kept_from[s] *= kept_of[i];
      for (int64_t s = 0; s < CHUNK; s++) L[i][s] *= kept_from[s];
      kept_from[i] = head.beta(first + i);
      for (int64_t s = 0; s < CHUNK; s++) M[i][s] *= kept_from[s];
      erase_scale[i] = read_scale[i] = all_kept;
    }
    finish_scale(all_kept, kept_from);
  }

  // `total` times the panels is the state after the chunk; kept_from: the share of each write that is left
  // there
  void finish_scale(T total, const T* kept_from) {
    scale = total;
    fades = scale < SMALLEST_SCALE;
    if (fades) {
      std::fill(kept + 0, kept + K, scale);
      scale = 1;
    }
    for (int64_t s = 0; s < count; s++) write_scale[s] = kept_from[s] / scale;
  }

  void prepare_uniform(const Head<T>& head, int64_t first, const T** erase_rows, const T** read_rows) {
    T kept_from[CHUNK] = {}, all_kept = 1;  // decay since each write, times its beta; since the first
    T unused[CHUNK];
    for (int64_t i = 0; i < count; i++) {
      const T* decay = head.decay(first + i);
      const T f = decay ? exp_one(decay[0]) : T(1);
      const int64_t output = head.output(first + i);
      const T* e = head.a.beta ? keys + i * by : head.erase(first + i);
      const T* q = output < 0 ? nullptr : head.q(output);
      T* to = q ? M[outputs] : unused;
      if (e || q) dots<T>(e ? e : q, q, keys, by, i + 1, K, L[i], to);
      erase_rows[i] = e, erase_scale[i] = scale * all_kept;
      if (head.a.erase)  // the erased value is read before the decay of its own write
        for (int64_t s = 0; s < CHUNK; s++) L[i][s] *= kept_from[s];
      all_kept *= f;
      for (int64_t s = 0; s < CHUNK; s++) kept_from[s] *= f;
      if (head.a.beta) {
        erase_scale[i] *= f;
        for (int64_t s = 0; s < CHUNK; s++) L[i][s] *= kept_from[s];
      }
      kept_from[i] = head.beta(first + i);
      if (!q) continue;
      for (int64_t s = 0; s < CHUNK; s++) to[s] *= kept_from[s];
      read_scale[outputs] = scale * all_kept;
      read_rows[outputs] = q, at[outputs++] = i;
    }
    finish_scale(scale * all_kept, kept_from);
  }

  void prepare_channels(const Head<T>& head, int64_t first, const T** erase_rows, const T** read_rows) {
    std::fill(kept + 0, kept + K, T(1));
    fades = true;
    for (int64_t i = 0; i < count; i++) {
      const int64_t output = head.output(first + i);
      const T* e = head.erase(first + i);
      exp_all<T>(w, head.decay(first + i), K);
      T *erase = erases + i * by, *read = reads + outputs * by, of_q[CHUNK];
      if (head.a.beta) {
        multiply<T>(erase, w, keys + i * by, K);
        e = erase;
      }
      if (e) {
        dots<T>(e, nullptr, keys, by, i, K, L[i], of_q);
        multiply<T>(erase, e, kept, K);
      }
      for (int64_t s = 0; s < i; s++) {
        L[i][s] *= write_scale[s];
        multiply<T>(keys + s * by, keys + s * by, w, K);
      }
      multiply<T>(kept, kept, w, K);
      write_scale[i] = head.beta(first + i), erase_scale[i] = 1, erase_rows[i] = erase;
      if (output < 0) continue;
      const T* q = head.q(output);
      dots<T>(q, nullptr, keys, by, i + 1, K, M[outputs], of_q);
      for (int64_t s = 0; s <= i; s++) M[outputs][s] *= write_scale[s];
      multiply<T>(read, q, kept, K);
      read_scale[outputs] = 1, read_rows[outputs] = read, at[outputs++] = i;
    }
  }

  void put_factors() {
    for (int64_t i = 0; i < CHUNK; i++) minus_erase_scale[i] = -erase_scale[i];
    for (int s = 0; s < CHUNK; s += N<T>)
      for (int i = s; i < CHUNK; i += N<T>) {
        transpose_square(&L[i][s], &minus_L_columns[s][i], T(-1));
        transpose_square(&M[i][s], &M_columns[s][i], T(1));
      }
  }

  static void transpose_square(const T* from, T* to, T factor) {
    V<T> v[N<T>];
    for (int r = 0; r < N<T>; r++) v[r] = load(from + r * CHUNK);
    transpose<T>(v);
    for (int r = 0; r < N<T>; r++) store(to + r * CHUNK, factor * v[r]);
  }

  void put_blocks(T* to, const T* const* rows, int64_t count) {
    for (int b = 0; b < BLOCKS; b++)
      if (count > b * ROWS) put_columns(to + b * block, rows + b * ROWS, count - b * ROWS);
  }

  // Transpose rows of K values; those past `count` become 0.
  void put_columns(T* to, const T* const* rows, int64_t count) {
    constexpr int n = N<T>;
    for (int64_t i = 0; i < COLUMN<T>; i += n) {
      const T* from[n];
      for (int r = 0; r < n; r++) from[r] = i + r < count ? rows[i + r] : none;
      int64_t c = 0;
      for (; c + n <= K; c += n) {
        V<T> v[n];
        for (int r = 0; r < n; r++) v[r] = load(from[r] + c);
        transpose<T>(v);
        for (int r = 0; r < n; r++) store(to + (c + r) * COLUMN<T> + i, v[r]);
      }
      for (; c < K; c++)
        for (int r = 0; r < n; r++) to[c * COLUMN<T> + i + r] = from[r][c];
    }
  }
};

// M channels of a panel: S = kept S + keys^T w, with all the chunk's writes; those past its end are 0.
template <class T, int M, bool FADES>
INLINE void update_rows(T* S, const T* keys, int64_t by, const T* w, const T* kept) {
  constexpr int vectors = (M + N<T> - 1) / N<T>;
  V<T> sums[M][WIDE];
#pragma GCC unroll 16
  for (int r = 0; r < M; r++)
#pragma GCC unroll 4
    for (int j = 0; j < WIDE; j++) {
      sums[r][j] = load(S + r * PANEL<T> + j * N<T>);
      if (FADES) sums[r][j] *= all(kept[r]);
    }
#pragma GCC unroll UNROLLED
  for (int s = 0; s < CHUNK; s++) {
    V<T> key[vectors];
    if constexpr (BY_LANE)
      for (int i = 0; i < vectors; i++) key[i] = load(keys + s * by + i * N<T>);
#pragma GCC unroll 4
    for (int j = 0; j < WIDE; j++) {
      const V<T> ws = load(w + s * PANEL<T> + j * N<T>);
#pragma GCC unroll 16
      for (int r = 0; r < M; r++)
        sums[r][j] += all<T>(BY_LANE ? key[r / N<T>][r % N<T>] : keys[s * by + r]) * ws;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < M; r++)
#pragma GCC unroll 4
    for (int j = 0; j < WIDE; j++) store(S + r * PANEL<T> + j * N<T>, sums[r][j]);
}
template <class T, bool FADES>
void update_panel(T* S, const Chunk<T>& chunk, const T* w) {
  int64_t c = 0;
  for (; c + UPDATED <= chunk.K; c += UPDATED)
    update_rows<T, UPDATED, FADES>(S + c * PANEL<T>, chunk.key_rows + c, chunk.keys_by, w, chunk.kept + c);
  for (; c < chunk.K; c++)
    update_rows<T, 1, FADES>(S + c * PANEL<T>, chunk.key_rows + c, chunk.keys_by, w, chunk.kept + c);
}

// The values that a panel writes and reads in a chunk.
template <class T>
struct Block {
  alignas(64) T w[CHUNK * PANEL<T>], y[CHUNK * PANEL<T>];  // w: scaled for the update
  alignas(64) T as_is[CHUNK * PANEL<T>];                   // w before scaling
};

// w_i = v_i - e_i - sum L_is w_s, then y_o = y_o + sum M_os w_s; on entry, w and y hold the products of the
// state before the chunk with each erasure and query. w is scaled for the update, and 0 past the chunk's end.
template <class T>
inline void finish_panel(Block<T>& block, const Chunk<T>& chunk, const Head<T>& head, int64_t first,
                         int64_t column, int64_t some) {
  const auto at = [](T* rows, int64_t i, int j) { return rows + i * PANEL<T> + j * N<T>; };
  for (int64_t i = 0; i < CHUNK; i++) {
    T part[PANEL<T>] = {};
    if (i < chunk.count) std::memcpy(part, head.v(first + i) + column, some * sizeof(T));
    for (int j = 0; j < WIDE; j++) {
      T* const w = at(block.w, i, j);
      V<T> total = load(part + j * N<T>);
      if (head.erases() && i < chunk.count) {
        total -= all(chunk.erase_scale[i]) * load(w);
        for (int64_t s = 0; s < i; s++) total -= all(chunk.L[i][s]) * load(at(block.w, s, j));
      }
      store(w, total);
    }
  }
  for (int64_t o = 0; o < chunk.outputs; o++) {
    for (int j = 0; j < WIDE; j++) {
      V<T> total = all(chunk.read_scale[o]) * load(at(block.y, o, j));
      for (int64_t s = 0; s <= chunk.at[o]; s++) total += all(chunk.M[o][s]) * load(at(block.w, s, j));
      store(at(block.y, o, j), total);
    }
    std::memcpy(head.y(head.output(first + chunk.at[o])) + column, at(block.y, o, 0), some * sizeof(T));
  }
  for (int64_t i = 0; i < chunk.count; i++)
    for (int j = 0; j < WIDE; j++) store(at(block.w, i, j), load(at(block.w, i, j)) * chunk.write_scale[i]);
}

// Factors of the rows of a block: lanes of vectors, or values with a stride of `by` that are broadcast one at
// a time. For lanes the caller has changed the sign already (MINUS): there is no multiply-subtract with a
// lane of a vector.
template <class T, bool MINUS = false>
struct Factors {
  V<T> lanes[(ROWS + N<T> - 1) / N<T>];
  const T* const rows;
  const int64_t by;

  INLINE Factors(const T* lanes_from, const T* rows, int64_t by = 1) : rows(rows), by(by) {
    if constexpr (BY_LANE)
      for (int i = 0; i < ROWS; i += N<T>) lanes[i / N<T>] = load(lanes_from + i);
  }
  INLINE V<T> operator[](int i) const {
    if constexpr (BY_LANE) return all<T>(lanes[i / N<T>][i % N<T>]);
    return MINUS ? -all<T>(rows[i * by]) : all<T>(rows[i * by]);
  }
};

// The same for a full chunk with an output for each write, and a full panel. Each row of a block, once it is
// known, is added to all later ones: independent sums.
template <class T, bool ERASES>
inline void finish_full_panel(Block<T>& block, const Chunk<T>& chunk, const Head<T>& head, int64_t first,
                              int64_t column) {
  const T* const v = head.v(first) + column;
  T* const out = head.y(first) + column;
  const int64_t by = head.a.H * head.a.V;
  const auto at = [](T* rows, int i, int j) { return rows + i * PANEL<T> + j * N<T>; };
  for (int start = 0; start < CHUNK; start += ROWS) {
    const Factors<T, true> erased(chunk.minus_erase_scale + start, chunk.erase_scale + start);
    V<T> w[ROWS][WIDE];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
      for (int j = 0; j < WIDE; j++) {
        w[i][j] = load(v + (start + i) * by + j * N<T>);
        if (ERASES) w[i][j] += erased[i] * load(at(block.w, start + i, j));
      }
    for (int s = 0; s < start && ERASES; s++) {
      const Factors<T, true> l(chunk.minus_L_columns[s] + start, &chunk.L[start][s], CHUNK);
#pragma GCC unroll 4
      for (int j = 0; j < WIDE; j++) {
        const V<T> ws = load(at(block.as_is, s, j));
#pragma GCC unroll 16
        for (int i = 0; i < ROWS; i++) w[i][j] += l[i] * ws;
      }
    }
#pragma GCC unroll 16
    for (int s = 0; s < ROWS; s++) {
      const int done = start + s;
      const Factors<T, true> l(chunk.minus_L_columns[done] + start, &chunk.L[start][done], CHUNK);
#pragma GCC unroll 4
      for (int j = 0; j < WIDE; j++) {
#pragma GCC unroll 16
        for (int i = s + 1; i < ROWS && ERASES; i++) w[i][j] += l[i] * w[s][j];
        store(at(block.as_is, done, j), w[s][j]);
        store(at(block.w, done, j), w[s][j] * chunk.write_scale[done]);
      }
    }
  }
  for (int start = 0; start < CHUNK; start += ROWS) {
    const Factors<T> read(chunk.read_scale + start, chunk.read_scale + start);
    V<T> y[ROWS][WIDE];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
      for (int j = 0; j < WIDE; j++) y[i][j] = read[i] * load(at(block.y, start + i, j));
    const auto add = [&](int s, int from) __attribute__((always_inline)) {
      const Factors<T> m(chunk.M_columns[s] + start, &chunk.M[start][s], CHUNK);
#pragma GCC unroll 4
      for (int j = 0; j < WIDE; j++) {
        const V<T> ws = load(at(block.as_is, s, j));
#pragma GCC unroll 16
        for (int i = from; i < ROWS; i++) y[i][j] += m[i] * ws;
      }
    };
    for (int s = 0; s < start; s++) add(s, 0);
#pragma GCC unroll 16
    for (int s = 0; s < ROWS; s++) add(start + s, s);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
      for (int j = 0; j < WIDE; j++) store(out + (start + i) * by + j * N<T>, y[i][j]);
  }
}

// Rows of different steps are not contiguous, so a core would wait for each: prefetch the next chunk's keys
// and queries during the last panel of this one, and values one cache line ahead.
template <class T>
inline void fetch_rows(const Head<T>& head, int64_t first) {
  const LinearArgs& a = head.a;
  for (int64_t i = first; i < std::min<int64_t>(first + CHUNK, a.T * a.writes); i++)
    for (int64_t c = 0; c < a.K; c += LINE<T>) {
      __builtin_prefetch(head.k(i) + c);
      if (a.erase) __builtin_prefetch(head.erase(i) + c);
      if (head.output(i) >= 0) __builtin_prefetch(head.q(head.output(i)) + c);
    }
}
template <class T>
inline void fetch_values(const Head<T>& head, int64_t first, int64_t count, int64_t column) {
  const T* v = head.v(first) + column;
  if (column < head.a.V)
    for (int64_t i = 0; i < count; i++, v += head.a.H * head.a.V) __builtin_prefetch(v);
}

// Some columns of the state of one head, as panels.
template <class T>
struct Panels {
  const Head<T> head;
  const int64_t lo, hi;  // range of panels
  T* const S;
  T scale = 1;  // the state is `scale` times S

  T* at(int64_t p) const { return S + (p - lo) * head.a.K * PANEL<T>; }
  int64_t columns(int64_t p) const { return std::min<int64_t>(PANEL<T>, head.a.V - p * PANEL<T>); }

  void read() const {
    for (int64_t p = lo, some; p < hi; p++)
      for (int64_t c = 0; c < head.a.K; c++) {
        T* to = at(p) + c * PANEL<T>;
        std::memcpy(to, head.s0() + c * head.a.V + p * PANEL<T>, (some = columns(p)) * sizeof(T));
        for (int64_t j = some; j < PANEL<T>; j++) to[j] = 0;
      }
  }
  void write() const {
    for (int64_t p = lo; p < hi; p++)
      for (int64_t c = 0, some = columns(p); c < head.a.K; c++) {
        const T* from = at(p) + c * PANEL<T>;
        T* to = head.s1() + c * head.a.V + p * PANEL<T>;
        for (int64_t j = 0; j < some; j++) to[j] = scale * from[j];
      }
  }
  // columns of a chunk with a panel
  static void multiply_blocks(const Chunk<T>& chunk, int64_t rows, const T* columns, const T* panel, T* to) {
    for (int64_t b = 0; b < BLOCKS && b * ROWS < rows; b++)
      run_micro<T, false>(std::min<int64_t>(ROWS, rows - b * ROWS), columns + b * chunk.block, COLUMN<T>,
                          panel, to + b * ROWS * PANEL<T>, PANEL<T>, chunk.K, nullptr, false, panel);
  }
  // the writes of one chunk
  void advance(Chunk<T>& chunk, int64_t first) {
    const int64_t steps = head.a.T * head.a.writes;
    Block<T> block;
    chunk.scale = scale;
    chunk.prepare(head, first, std::min<int64_t>(CHUNK, steps - first));
    scale = chunk.scale;
    for (int64_t p = lo; p < hi; p++) {
      T* const panel = at(p);
      const int64_t some = columns(p), column = p * PANEL<T>;
      if (p + 1 == hi) fetch_rows<T>(head, first + CHUNK);
      fetch_values<T>(head, first, chunk.count, column + LINE<T>);
      if (head.erases()) multiply_blocks(chunk, chunk.count, chunk.erase_columns, panel, block.w);
      multiply_blocks(chunk, chunk.outputs, chunk.read_columns, panel, block.y);
      if (chunk.outputs < CHUNK || some < PANEL<T>)
        finish_panel<T>(block, chunk, head, first, column, some);
      else if (head.erases())
        finish_full_panel<T, true>(block, chunk, head, first, column);
      else
        finish_full_panel<T, false>(block, chunk, head, first, column);
      chunk.fades ? update_panel<T, true>(panel, chunk, block.w)
                  : update_panel<T, false>(panel, chunk, block.w);
    }
  }
};

// WIDTH vectors of columns of one write, from S to R, both in the caller's layout (K, V): first the products
// of S with erase and q, then R. f: the decays; qf: q times the decays, or null if nothing is read.
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
  return 4 * (round_up(a.K, N<T>) + N<T>);
}

// One write without a copy of the state. room: direct_room elements.
template <class T>
void write_directly(const Head<T>& head, int64_t i, const T* S, T* room) {
  const LinearArgs& a = head.a;
  const int64_t K = a.K, by = round_up(K, N<T>) + N<T>, output = head.output(i);
  const T *k = head.k(i), *v = head.v(i), *decay = head.decay(i), *erase = head.erase(i);
  T *f = room, *qf = f + by, *e = qf + by, *key = e + by;
  if (!decay)
    std::fill(f, f + K, T(1));
  else if (a.channels == 1)
    std::fill(f, f + K, exp_one(decay[0]));
  else
    exp_all<T>(f, decay, K);
  const T beta = head.beta(i);
  for (int64_t c = 0; c < K; c++) key[c] = beta * k[c];
  if (a.beta)
    multiply<T>(e, f, k, K);
  else if (erase)
    std::memcpy(e, erase, K * sizeof(T));
  else
    e = nullptr;
  T qk = 0, *y = nullptr;
  if (output >= 0) {
    const T* q = head.q(output);
    y = head.y(output);
    qk = dot<T>(q, key, K);
    multiply<T>(qf, q, f, K);
  } else {
    qf = nullptr;
  }
  T* const R = head.s1();
  constexpr int n = N<T>, many = 8;
  int64_t j = 0;
  for (; j + many * n <= a.V; j += many * n)
    write_columns<T, many>(K, a.V, S + j, R + j, key, v + j, e, f, qf, qk, y ? y + j : y);
  for (; j + n <= a.V; j += n)
    write_columns<T, 1>(K, a.V, S + j, R + j, key, v + j, e, f, qf, qk, y ? y + j : y);
  for (; j < a.V; j++) write_column<T>(K, a.V, S + j, R + j, key, v + j, e, f, qf, qk, y ? y + j : y);
}

// A thread's states and memory.
template <class T>
struct Worker {
  Chunk<T> chunk;
  Buffer<T> states;
  std::vector<Panels<T>> open;

  Worker(int64_t K, int64_t size, int64_t together) : chunk(K), states(size * together, false) {
    open.reserve(together);
  }
  // All open states process a chunk before the next one begins: the rows of the heads are contiguous.
  void run(int64_t steps) {
    for (const auto& panels : open) panels.read();
    for (int64_t first = 0; first < steps; first += CHUNK)
      for (auto& panels : open) panels.advance(chunk, first);
    for (const auto& panels : open) panels.write();
    open.clear();
  }
};

template <class T>
void run_linear(const LinearArgs& a, int threads) {
  const int64_t heads = a.B * a.H, steps = a.T * a.writes, panels = (a.V + PANEL<T> - 1) / PANEL<T>;
  if (!heads) return;
  threads = (int)std::min<int64_t>(threads, std::max<int64_t>(1, heads * steps * a.K * a.V / PER_THREAD));
  if (steps < FEW_WRITES) {
    const int64_t room = direct_room<T>(a);
    Buffer<T> rooms(threads * room, false);
    return run_threads(threads, [&](const Team& team) {
      const Span mine = team.share(heads);
      for (int64_t unit = mine.lo; unit < mine.hi; unit++) {
        const Head<T> head{a, unit / a.H, unit % a.H};
        const T* S = head.s0();
        for (int64_t i = 0; i < steps; i++, S = head.s1())
          write_directly<T>(head, i, S, rooms + team.member * room);
      }
    });
  }
  // heads are divided first; if there are fewer heads than threads, their columns are, too
  const int64_t groups = std::min<int64_t>(panels, (threads + heads - 1) / heads);
  const int64_t share = (panels + groups - 1) / groups, size = share * a.K * PANEL<T>;
  const int64_t together = std::clamp<int64_t>(STATES_BYTES / (size * (int64_t)sizeof(T)), 1, a.H);
  std::vector<std::unique_ptr<Worker<T>>> workers;
  for (int i = 0; i < threads; i++) workers.push_back(std::make_unique<Worker<T>>(a.K, size, together));
  run_threads(threads, [&](const Team& team) {
    Worker<T>& worker = *workers[team.member];
    const Span mine = team.share(heads * groups);
    for (int64_t unit = mine.lo; unit < mine.hi; unit++) {
      const int64_t head = unit / groups, lo = unit % groups * share, hi = std::min(panels, lo + share);
      T* const S = worker.states + (int64_t)worker.open.size() * size;
      worker.open.push_back({{a, head / a.H, head % a.H}, lo, hi, S});
      if ((int64_t)worker.open.size() == together || unit + 1 == mine.hi) worker.run(steps);
    }
  });
}

constexpr int64_t COLUMNS = 256;  // columns of a diagonal recurrence that a thread processes at a time

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
