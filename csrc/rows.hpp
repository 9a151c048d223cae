// The rows of a batch that one thread runs, longest first, so that the active rows are always the first ones.
#pragma once
#include <algorithm>
#include <vector>

#include "args.h"
#include "gemm.hpp"

struct Rows {
  std::vector<int64_t> row, length;  // indices in the batch, and their lengths
  int64_t T = 0, before = 0;         // length of the longest row; number of rows of the preceding threads

  Rows(const Args& a, int part, int parts) {
    std::vector<int64_t> order(a.B);
    for (int64_t b = 0; b < a.B; b++) order[b] = b;
    if (a.lengths)
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t i, int64_t j) { return a.lengths[i] > a.lengths[j]; });
    const int64_t sequences = a.B / a.slots;  // the slots of one sequence stay together
    for (int64_t sequence = part; sequence < sequences; sequence += parts)
      for (int64_t i = sequence * a.slots; i < (sequence + 1) * a.slots; i++) {
        row.push_back(order[i]);
        length.push_back(a.lengths ? std::min(std::max<int64_t>(a.lengths[order[i]], 0), a.T) : a.T);
        this->T = std::max(this->T, length.back());
      }
    for (int p = 0; p < part; p++) before += (sequences - p + parts - 1) / parts * a.slots;
  }
  int64_t count() const { return row.size(); }
  int64_t count_active(int64_t t) const {  // rows that have a step t
    return std::partition_point(length.begin(), length.end(), [&](int64_t l) { return l > t; }) -
           length.begin();
  }
};

// Copy a row of `gates` blocks of `hidden` values between tight and padded layouts.
template <class T>
inline void pad(T* to, const T* from, int64_t gates, int64_t hidden) {
  for (int64_t g = 0; g < gates; g++)
    std::memcpy(to + g * padded_size<T>(hidden), from + g * hidden, hidden * sizeof(T));
}
template <class T>
inline void unpad(T* to, const T* from, int64_t gates, int64_t hidden, Span columns) {
  columns.hi = std::min(columns.hi, hidden);
  for (int64_t g = 0; g < gates && columns.lo < columns.hi; g++)
    std::memcpy(to + g * hidden + columns.lo, from + g * padded_size<T>(hidden) + columns.lo,
                (columns.hi - columns.lo) * sizeof(T));
}
template <class T>
struct PaddedRow : Buffer<T> {  // a bias, padded; zeros where there is none
  PaddedRow(const void* from, int64_t gates, int64_t hidden) : Buffer<T>(gates * padded_size<T>(hidden)) {
    if (from) pad<T>(*this, (const T*)from, gates, hidden);
  }
};

// to += the sum of some rows, for a thread's share of the columns; short partial sums first.
template <class T>
inline void sum_rows(const Team& team, int64_t rows, const T* from, int64_t by, int64_t n, T* to) {
  const Span columns = team.share(n, N<T>);
  for (int64_t i = columns.lo; i < columns.hi; i += N<T>) {
    V<T> s{};
    for (int64_t k = 0; k < rows; k++) s += load(from + k * by + i);
    store(to + i, load(to + i) + s);
  }
}
