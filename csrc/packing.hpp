// The order in which programs of the vector machine see a batch: longest row first, one step after the other,
// without padding. kernels/compiled/packing.py describes the numbers.
#pragma once
#include <stdint.h>

#include <algorithm>

// Lengths (B) of rows in a batch padded to `length` steps.
struct RaggedBatch {
  const int64_t* lengths;
  int64_t B, length;

  int64_t steps(int64_t b) const { return std::min(std::max<int64_t>(lengths[b], 0), length); }
  int64_t longest() const {
    int64_t most = 0;
    for (int64_t b = 0; b < B; b++) most = std::max(most, steps(b));
    return most;
  }
  int64_t sum() const {
    int64_t all = 0;
    for (int64_t b = 0; b < B; b++) all += steps(b);
    return all;
  }
};

// Fills, one after the other: count (T), offset (T), order (B), place (N), row (N), before (N), last (B) and
// ends (B), where T is the longest length and N the sum of the lengths.
inline void fill_packing(const RaggedBatch& batch, bool time_first, int64_t T, int64_t N, int64_t* to) {
  const int64_t B = batch.B;
  int64_t *count = to, *offset = count + T, *order = offset + T, *place = order + B, *row = place + N;
  int64_t *before = row + N, *last = before + N, *ends = last + B;
  for (int64_t b = 0; b < B; b++) order[b] = b;
  std::stable_sort(order, order + B, [&](int64_t i, int64_t j) { return batch.steps(i) > batch.steps(j); });
  for (int64_t t = 0, n = B, packed = 0; t < T; t++) {
    while (n && batch.steps(order[n - 1]) <= t) n--;
    count[t] = n;
    offset[t] = packed;
    for (int64_t r = 0; r < n; r++, packed++) {
      place[packed] = time_first ? t * B + order[r] : order[r] * batch.length + t;
      row[packed] = r;
      before[packed] = t ? B + offset[t - 1] + r : r;
    }
  }
  for (int64_t r = 0; r < B; r++) {
    const int64_t steps = batch.steps(order[r]);
    last[r] = steps ? B + offset[steps - 1] + r : r;
    ends[order[r]] = last[r];
  }
}
