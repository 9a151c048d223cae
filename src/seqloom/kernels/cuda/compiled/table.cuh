// A program's table in global memory: it holds what changes from call to call, so that one captured CUDA
// graph serves all calls.
#pragma once
#include "runtime/device.cuh"

// Head of the table; the addresses of the program's buffers follow it.
struct Head {
  i64 base;           // first step of the captured chunk
  i64 T;              // steps of the longest row
  i64 B;              // rows of the batch
  const i64* count;   // (T,), number of rows that have a step; null if every row has every step
  const i64* offset;  // (T,), packed row at which a step begins; null if steps have B rows each
};
constexpr int HEAD = sizeof(Head) / 8;

struct StepArguments {
  i64* table;
  int k;         // the step within the chunk
  int has_next;  // whether the kernel also runs the first part of the next step
};

DEV Head read_head(const i64* table) {
  const i64 count = get_constant(table + 3), offset = get_constant(table + 4);
  return {get_constant(table), get_constant(table + 1), get_constant(table + 2), (const i64*)count,
          (const i64*)offset};
}
template <class Number>
DEV Number* read_address(const i64* table, int buffer) {
  return (Number*)get_constant(table + HEAD + buffer);
}
DEV bool has_step(const Head& h, i64 t, i64 row) {
  return t >= 0 && t < h.T && row < (h.count ? get_constant(h.count + t) : h.B);
}
DEV i64 find_offset(const Head& h, i64 t) { return h.offset ? get_constant(h.offset + t) : t * h.B; }

// Index of a row of a step in each kind of buffer: per row, per step, and states before and after the step.
struct Rows {
  i64 row, time, before, after;
};
DEV Rows find_rows(const Head& h, i64 t, i64 row) {
  const i64 time = find_offset(h, t) + row;
  return {row, time, t ? h.B + find_offset(h, t - 1) + row : row, h.B + time};
}
// Return the number of steps of a row, by bisection: counts never increase with time.
DEV i64 count_steps(const Head& h, i64 row) {
  if (!h.count) return h.T;
  i64 low = 0, high = h.T;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (get_constant(h.count + middle) > row)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}
