// The rows of a batch that one thread runs, longest first, so that those still going are always the first ones.
#pragma once
#include <algorithm>
#include <vector>

#include "args.h"
#include "gemm.hpp"

struct Rows {
  std::vector<int64_t> row, length;  // places in the batch, and their real steps
  int64_t T = 0;

  Rows(int64_t B, int64_t T, const int64_t* lengths, int part, int parts) {
    std::vector<int64_t> order(B);
    for (int64_t b = 0; b < B; b++) order[b] = b;
    if (lengths) std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });
    for (int64_t i = part; i < B; i += parts) {
      row.push_back(order[i]);
      length.push_back(lengths ? std::min(std::max<int64_t>(lengths[order[i]], 0), T) : T);
      this->T = std::max(this->T, length.back());
    }
  }
  int64_t count() const { return row.size(); }
  int64_t going(int64_t t) const {  // rows that have a step t
    return std::partition_point(length.begin(), length.end(), [&](int64_t l) { return l > t; }) - length.begin();
  }
};

// One row of `gates` blocks of `hidden` numbers, between tight and padded.
template <class T>
inline void spread(T* to, const T* from, int64_t gates, int64_t hidden) {
  for (int64_t g = 0; g < gates; g++) std::memcpy(to + g * padded<T>(hidden), from + g * hidden, hidden * sizeof(T));
}
template <class T>
inline void gather(T* to, const T* from, int64_t gates, int64_t hidden) {
  for (int64_t g = 0; g < gates; g++) std::memcpy(to + g * hidden, from + g * padded<T>(hidden), hidden * sizeof(T));
}
template <class T>
inline void accumulate(T* to, const T* from, int64_t hidden) {
  for (int64_t i = 0; i < hidden; i++) to[i] += from[i];
}
template <class T>
struct Spread : Buffer<T> {  // a bias, padded; zeros where there is none
  Spread(const T* from, int64_t gates, int64_t hidden) : Buffer<T>(gates * padded<T>(hidden)) {
    if (from) spread<T>(*this, from, gates, hidden);
  }
};

// h before step t of a batch row: an output of the forward, or the first state.
template <class T>
inline const T* before(const Args& a, int64_t row, int64_t t) {
  return t ? (const T*)a.y + (row * a.T + t - 1) * a.H : (const T*)a.h0 + row * a.H;
}

// The states before steps begin .. end - 1 of every row that is going, one below the other; where each step begins in first.
template <class T>
inline int64_t history(const Args& a, const Rows& rows, int64_t begin, int64_t end, T* h, std::vector<int64_t>& first) {
  const int64_t hp = padded<T>(a.H);
  int64_t many = 0;
  first.resize(end - begin);
  for (int64_t t = begin; t < end; t++) {
    first[t - begin] = many;
    for (int64_t i = 0; i < rows.going(t); i++, many++) spread<T>(h + many * hp, before<T>(a, rows.row[i], t), 1, a.H);
  }
  return many;
}

// Steps whose gates are computed again in one product: enough rows to be efficient, few enough to stay in the cache.
inline int64_t chunk_of(int64_t rows) { return std::max<int64_t>(1, 96 / std::max<int64_t>(1, rows)); }
