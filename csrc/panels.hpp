// Products of rows in the caller's layout with a weight (heads, K, columns) that is packed once.
#pragma once
#include "gemm.hpp"

// One product of a program. A row of the batch has `rows` rows of size (heads, K) in the source, and of size
// (heads, columns) in the result.
template <class T>
struct Product {
  static constexpr int64_t STEP = BY_LANE ? N<T> : 2;  // the micro-kernels' K is a multiple of this
  static constexpr int64_t MOST = 8 * ROWS;            // rows that are multiplied with all columns together
  const int64_t source, offset, weight, out, heads, K, columns, rows;
  const int64_t depth, panels;  // K padded; panels of one head
  Buffer<T> w;                  // [head][panel][k][PANEL]

  template <class Reader>
  explicit Product(Reader& code)
      : source(code.next()), offset(code.next()), weight(code.next()), out(code.next()), heads(code.next()),
        K(code.next()), columns(code.next()), rows(code.next()), depth(round_up(K, STEP)),
        panels(padded_size<T>(columns) / PANEL<T>),
        w(heads * panels * depth * PANEL<T>, depth != K || columns % PANEL<T>) {}

  // scratch memory of a thread: copies of rows, and a block of results
  int64_t room() const { return MOST * (row_stride<T>(K) + PANEL<T>); }

  // from: (heads, K, columns), or (heads, columns, K) if transposed
  void pack(const Team& team, const T* from, bool transposed) {
    pack(team, from, transposed, transposed ? K : columns);
  }
  // the same with a stride of `by` between rows
  void pack(const Team& team, const T* from, bool transposed, int64_t by) {
    const Span mine = team.share(heads * panels);
    for (int64_t i = mine.lo; i < mine.hi; i++) {
      const int64_t head = i / panels, n = i % panels * PANEL<T>;
      const int64_t some = std::min<int64_t>(PANEL<T>, columns - n);
      T* to = w + i * depth * PANEL<T>;
      if (transposed) {
        pack_transposed(to, from + (head * columns + n) * by, by, some, K);
        continue;
      }
      for (int64_t k = 0; k < K; k++)
        std::memcpy(to + k * PANEL<T>, from + (head * K + k) * by + n, some * sizeof(T));
    }
  }

  // A thread's share of the columns for `count` rows of the batch, with strides by_a and by_c.
  void run(const Team& team, const T* A, int64_t by_a, T* C, int64_t by_c, int64_t count, T* room) const {
    const Span mine = team.share(heads * panels);
    const int64_t M = count * rows;
    int64_t blocks = (M + MOST - 1) / MOST;
    for (int64_t m = 0; blocks; blocks--) {
      const int64_t some = split(M - m, blocks);
      for (int64_t head = 0; head < heads; head++) {
        const Span part{std::max<int64_t>(0, mine.lo - head * panels),
                        std::min(panels, mine.hi - head * panels)};
        if (part.lo < part.hi) run_head(head, part, A + offset, by_a, C, by_c, m, some, room);
      }
      m += some;
    }
  }

 private:
  // the first of n items in one of several nearly equal parts; a division takes as long as many products
  static int64_t split(int64_t n, int64_t parts) { return parts == 1 ? n : (n + parts - 1) / parts; }

  // row m of the product in the source, with by = by_a and size = K, or in the result
  template <class P>
  P row_of(P p, int64_t by, int64_t size, int64_t head, int64_t m) const {
    if (rows == 1) return p + m * by + head * size;
    return p + m / rows * by + (m % rows * heads + head) * size;
  }

  // Multiply M rows, from row m on, with some panels of a head.
  void run_head(int64_t head, Span part, const T* A, int64_t by_a, T* C, int64_t by_c, int64_t m, int64_t M,
                T* room) const {
    const bool even =
        rows == 1 || by_c == rows * heads * columns;  // rows of the result have a constant stride
    const int64_t ldc = rows == 1 ? by_c : heads * columns;
    T *copies = room, *tail = room + MOST * row_stride<T>(K);
    const T* a = row_of(A, by_a, K, head, m);
    int64_t lda = rows == 1 ? by_a : heads * K;
    if (depth != K || (rows > 1 && by_a != rows * heads * K)) {
      lda = row_stride<T>(K);
      for (int64_t i = 0; i < M; i++) {
        T* to = copies + i * lda;
        std::memcpy(to, row_of(A, by_a, K, head, m + i), K * sizeof(T));
        for (int64_t k = K; k < depth; k++) to[k] = 0;
      }
      a = copies;
    }
    const T* W = w + head * panels * depth * PANEL<T>;
    T* c = row_of(C, by_c, columns, head, m);
    int64_t n = part.lo;
    if (M == 1)
      for (; n + PANELS <= part.hi && (n + PANELS) * PANEL<T> <= columns; n += PANELS)
        micro_one<T>(a, W + n * depth * PANEL<T>, depth * PANEL<T>, c + n * PANEL<T>, depth, nullptr, false);
    for (; n < part.hi; n++) {
      const int64_t some = std::min<int64_t>(PANEL<T>, columns - n * PANEL<T>);
      if (even && some == PANEL<T>) {
        run_panel(a, lda, W + n * depth * PANEL<T>, c + n * PANEL<T>, ldc, M);
        continue;
      }
      run_panel(a, lda, W + n * depth * PANEL<T>, tail, PANEL<T>, M);
      for (int64_t i = 0; i < M; i++)
        std::memcpy(row_of(C, by_c, columns, head, m + i) + n * PANEL<T>, tail + i * PANEL<T>,
                    some * sizeof(T));
    }
  }
  void run_panel(const T* a, int64_t lda, const T* W, T* c, int64_t ldc, int64_t M) const {
    const int64_t blocks = (M + ROWS - 1) / ROWS, deep = M > 3 ? DEEP : depth;
    for (int64_t k = 0; k < depth; k += deep) {
      const int64_t some = std::min<int64_t>(deep, depth - k);
      const T* panel = W + k * PANEL<T>;
      for (int64_t i = 0, m = 0; i < blocks; i++) {
        const int64_t count = split(M - m, blocks - i);
        // each of the first two blocks prefetches half of the next panel
        const T* ahead = i < 2 ? panel + some * PANEL<T> + i * some * (PANEL<T> / 2) : panel;
        run_micro<T, true>(count, a + m * lda + k, lda, panel, c + m * ldc, ldc, some, nullptr, k > 0, ahead);
        m += count;
      }
    }
  }
};
