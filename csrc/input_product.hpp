// The product of the input with its weight, x = input W^T + b, and its gradients. For short calls: torch's
// operators take longer to start than these products take.
#pragma once
#include "nest.hpp"
#include "panels.hpp"
#include "rows.hpp"

// Rows of K values, or a matrix: its first element, and the stride between rows.
template <class T>
struct Lines {
  const T* p;
  int64_t by;
};

// Multiply `count` rows of K values with a matrix of (columns, K) if transposed, else of (K, columns).
template <class T>
inline void multiply_lines(Lines<T> rows, int64_t count, int64_t K, Lines<T> weight, bool transposed,
                           int64_t columns, T* out, int threads = 1) {
  const int64_t code[] = {0, 0, 0, 0, 1, K, columns, 1};
  Reader reader{code};
  Product<T> product(reader);
  const int64_t room = product.room();
  Buffer<T> rooms(room * threads, false);
  run_threads(threads, [&](const Team& team) {
    product.pack(team, weight.p, transposed, weight.by);
    team.wait();
    product.run(team, rows.p, rows.by, out, columns, count, rooms + team.member * room);
  });
}

template <class T>
void project_input(const Args& a) {
  const int64_t rows = a.B * a.T;
  const T* bias = (const T*)a.input_w[1];
  T* x = (T*)a.x;
  const Lines<T> input{(const T*)a.input, a.inputs}, weight{(const T*)a.input_w[0], a.inputs};
  multiply_lines(input, rows, a.inputs, weight, true, a.width, x);
  for (int64_t i = 0; bias && i < rows; i++)
    for (int64_t j = 0; j < a.width; j++) x[i * a.width + j] += bias[j];
}

// The input after the end of a row may be NaN, so such steps are left out.
template <class T>
void differentiate_input(const Args& a) {
  const int64_t rows = a.B * a.T, K = a.inputs, width = a.width, stride = padded_size<T>(K);
  if (a.dinput) {
    const Lines<T> dx{(const T*)a.dx, width}, weight{(const T*)a.input_w[0], K};
    multiply_lines(dx, rows, width, weight, false, K, (T*)a.dinput);
  }
  if (!a.dinput_w[0] && !a.dinput_w[1]) return;
  Buffer<T> d(rows * width + N<T>), x(rows * stride, stride != K), sum(round_up(width, N<T>));
  int64_t count = 0;
  for (int64_t i = 0; i < rows; i++) {
    const int64_t b = a.time_first ? i % a.B : i / a.T, t = a.time_first ? i / a.B : i % a.T;
    if (a.lengths && t >= a.lengths[b]) continue;
    std::memcpy(d + count * width, (const T*)a.dx + i * width, width * sizeof(T));
    std::memcpy(x + count * stride, (const T*)a.input + i * K, K * sizeof(T));
    count++;
  }
  if (a.dinput_w[0]) {
    Outer<T> products(width, stride);
    Buffer<T> room(Outer<T>::room(std::max<int64_t>(count, 1), width), false);
    if (!count) products.clear(Team());
    products.add(Team(), count, d, width, x, stride, room, true);
    products.write(Team(), (T*)a.dinput_w[0], K, 0, width, K, false);
  }
  if (a.dinput_w[1]) {
    sum_rows<T>(Team(), count, d, width, width, sum);
    std::memcpy(a.dinput_w[1], sum, width * sizeof(T));
  }
}
