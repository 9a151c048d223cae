// Checks whether a program may run: every number of its code is checked once, before it first runs. A plan
// may come from a file, and the machine reads and writes memory by address.
#pragma once
#include "machine_args.h"
#include "nest.hpp"

enum Place { WEIGHT, ROW, TIME, BEFORE, AFTER };  // as in seqloom/compiler/ir.py

// a + b and a * b of numbers from files: false if the result does not fit.
inline bool add(int64_t a, int64_t b, int64_t* sum) { return !__builtin_add_overflow(a, b, sum); }
inline bool multiply(int64_t a, int64_t b, int64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}

class ProgramCheck {
  static constexpr int64_t MOST = int64_t(1) << 40;  // maximum number of elements in a buffer
  // maximum iterations of a nest for one row: one second
  static constexpr int64_t ITERATIONS = int64_t(1) << 30;
  struct Broken {};
  // reads a code from front to back, and stops at its end
  struct Numbers {
    const int64_t *at, *end;
    int64_t next() {
      require(at < end);
      return *at++;
    }
    int64_t next(int64_t least, int64_t most) {
      const int64_t n = next();
      require(n >= least && n <= most);
      return n;
    }
    int64_t left() const { return end - at; }
  };
  struct Rows {
    int64_t place, size;
  };
  Numbers code;
  const int64_t constants;
  std::vector<Rows> buffers;

  static void require(bool holds) {
    if (!holds) throw Broken();
  }
  static int64_t product(std::initializer_list<int64_t> factors) {
    int64_t all = 1;
    for (int64_t f : factors) require(multiply(all, f, &all) && all <= MOST);
    return all;
  }
  const Rows& next_buffer() { return buffers[code.next(0, int64_t(buffers.size()) - 1)]; }

 public:
  ProgramCheck(const int64_t* at, int64_t length, int64_t constants)
      : code{at, at + length}, constants(constants) {}

  bool passes() try {
    const int64_t many = code.next(0, code.left());
    for (int64_t i = 0; i < many; i++) {
      const int64_t place = code.next(WEIGHT, AFTER);
      buffers.push_back({place, code.next(0, MOST)});
    }
    code.next(0, 1);  // reverse
    const int64_t parts = code.next(0, code.left());
    for (int64_t p = 0; p < parts; p++) code.next(0, 1) ? check_nest() : check_product();
    return !code.left();
  } catch (const Broken&) {
    return false;
  }

 private:
  void check_product() {
    const Rows& source = next_buffer();
    const int64_t offset = code.next(0, MOST);
    const Rows &weight = next_buffer(), &out = next_buffer();
    const int64_t heads = code.next(1, MOST), K = code.next(1, MOST), N = code.next(1, MOST),
                  rows = code.next(1, MOST);
    require(weight.place == WEIGHT && weight.size == product({heads, K, N}));
    require(offset + product({rows, heads, K}) <= source.size);
    require(out.place != WEIGHT && &out != &source && out.size == product({rows, heads, N}));
  }

  struct Reach {
    const Rows* buffer;
    std::vector<int64_t> strides;  // strides of the loops
  };

  void check_nest() {
    const int64_t loops = code.next(0, DIMENSIONS - 1);
    std::vector<int64_t> sizes;
    int64_t all = 1;
    for (int64_t d = 0; d < loops; d++) {
      sizes.push_back(code.next(1, MOST));
      all = product({all, sizes.back()});
      require(all <= ITERATIONS);
    }
    code.next(0, loops);  // inner
    const int64_t vector = code.next(0, loops);
    const int64_t registers = code.next(0, code.left()), singles = code.next(0, code.left()),
                  sums = code.next(0, code.left());
    std::vector<Reach> reaches(code.next(0, code.left()));
    const int64_t numbers = code.next(0, code.left());
    for (Reach& r : reaches) {
      r.buffer = &next_buffer();
      int64_t low = code.next(0, MOST), high = low;
      for (int64_t size : sizes) {
        const int64_t stride = code.next(-MOST, MOST);
        int64_t end;
        require(multiply(stride, size - 1, &end) && add(end < 0 ? low : high, end, end < 0 ? &low : &high));
        r.strides.push_back(stride);
      }
      require(low >= 0 && high < r.buffer->size);
    }
    for (int64_t i = 0; i < numbers; i++) code.next(0, constants - 1);
    const int64_t first_sum = registers + singles, first_access = first_sum + sums,
                  first_number = first_access + int64_t(reaches.size()), slots = first_number + numbers;

    // checks of a slot: along the vector, registers hold full vectors and an access has a stride
    const auto is_access = [&](int64_t slot) { return slot >= first_access && slot < first_number; };
    const auto is_row = [&](int64_t slot) {  // consecutive numbers
      if (!is_access(slot)) return slot < registers;
      return vector && reaches[slot - first_access].strides[vector - 1] == 1;
    };
    const auto is_sum = [&](int64_t slot) { return slot >= first_sum && slot < first_access; };
    for (int list = 0; list < 3; list++) {
      const int64_t instructions = code.next(0, code.left());
      for (int64_t i = 0; i < instructions; i++) {
        const int64_t operation = code.next(0, Operators<float>::count - 1), scalars = code.next(0, 6);
        const bool single = code.next(0, 1);
        const int64_t out = code.next(0, first_number - 1);
        int64_t a[3];
        for (int64_t& slot : a) slot = code.next(0, std::max<int64_t>(slots - 1, 0));
        require(!is_access(out) || reaches[out - first_access].buffer->place != WEIGHT);
        const Operator<float>& op = Operators<float>::table[operation];
        switch (op.layout) {
          case Layout::POINTWISE:
            require(op.choose(scalars) && (single || is_row(out) || is_sum(out)));
            for (int k = 0; k < op.arity; k++)
              require(single || scalars >> k & 1 || is_row(a[k]) || is_sum(a[k]));
            break;
          case Layout::GATHER:
            require(out < registers && is_access(a[0]));
            break;
          case Layout::SCATTER:
            require(is_access(out) && (is_row(a[0]) || is_sum(a[0])));
            break;
          case Layout::START:
            require(is_sum(out));
            break;
          case Layout::ACROSS:
            require(is_sum(out) && (single ? a[0] < registers : is_row(a[0])));
            break;
          case Layout::FOLD:
            require(is_access(out) && is_sum(a[0]));
            break;
          case Layout::DOWN:
            require(is_sum(out) && is_row(a[0]));
            break;
        }
      }
    }
  }
};

// Whether the steps' rows match those of the buffers.
inline bool rows_fit(const MachineArgs& a) {
  for (int64_t t = 0; t < a.T; t++) {
    const int64_t most = t ? a.count[t - 1] : a.B;
    if (a.count[t] < 0 || a.count[t] > most || a.offset[t] < 0 || a.offset[t] > a.packed - a.count[t])
      return false;
  }
  return true;
}

// Whether every buffer is as long as the program requires. The machine allocates values of rows itself.
inline bool buffers_fit(const MachineArgs& a) {
  const int64_t* code = a.code;
  int64_t steps;
  if (a.B < 0 || a.packed < 0 || a.many != *code++ || !add(a.B, a.packed, &steps)) return false;
  const int64_t rows[] = {1, a.B, a.packed, steps, steps};  // rows by place
  for (int64_t i = 0; i < a.many; i++) {
    const int64_t place = *code++, size = *code++;
    int64_t least;
    if (!multiply(rows[place], size, &least) || least > INT64_MAX / 16) return false;
    if (a.buffers[i] ? a.lengths[i] < least : place != ROW && least) return false;
  }
  return true;
}
