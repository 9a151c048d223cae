// A whole pass of a compiled cell over a batch: packing of rows, products, programs of the vector machine,
// sums and copies, in one call. kernels/cpu/cell_pass.py writes the code, a list of operations on buffers.
//
// A call only has addresses and lengths of the caller's tensors. Whatever an operation reads or writes is
// compared with the length of its buffer, in every call.
#pragma once
#include "cell_pass_args.h"
#include "input_product.hpp"
#include "machine.hpp"
#include "packing.hpp"

template <class T>
class CellPass {
  struct Broken {};
  enum Kind { SHARED, PACKED, STATES };  // rows of a buffer: one, N, or B + N
  enum Operation {
    LOAD,
    STORE,
    BEGIN,
    END,
    BEGIN_REVERSE,
    END_REVERSE,
    BEFORE,
    RUN,
    MULTIPLY,
    REDUCE,
    POINTWISE,
    COPY,
    FILL
  };
  static constexpr int64_t MOST = int64_t(1) << 40;
  static constexpr int64_t ALONE = int64_t(1) << 19;  // multiply-adds that one thread does
  static constexpr int64_t SLACK = 2 * N<T>;          // full vectors may reach so far past the last row

  struct Region {
    T* p;
    int64_t size, rows, length;  // elements per row; rows; elements
    bool has_slack, is_own;
  };
  struct View {
    T* p;
    int64_t rows, columns, by, along;
    bool has_slack;
  };

  const PassArgs& a;
  const uint64_t* const addresses;
  const int64_t* const lengths;
  const int threads;
  const int64_t *at, *const end;  // of the code
  int64_t B, longest = 0, packed = 0;
  std::vector<int64_t> steps;  // a copy of the lengths: another thread may change those of the caller
  Buffer<int64_t> numbers;     // what fill_packing writes
  const int64_t *count, *offset, *order, *place, *before, *last;
  std::vector<Region> regions;
  Buffer<T> memory;

  static void require(bool holds) {
    if (!holds) throw Broken();
  }
  static int64_t times(int64_t x, int64_t y) {
    require(::multiply(x, y, &x));
    return x;
  }
  static int64_t plus(int64_t x, int64_t y) {
    require(add(x, y, &x));
    return x;
  }

  int64_t next() {
    require(at < end);
    return *at++;
  }
  int64_t next(int64_t least, int64_t most) {
    const int64_t n = next();
    require(n >= least && n <= most);
    return n;
  }
  Region& next_region() { return regions[next(0, int64_t(regions.size()) - 1)]; }
  int64_t next_tensor() { return next(0, a.many - 1); }
  T* tensor(int64_t i) const { return (T*)addresses[i]; }

  // Elements of a matrix inside a region, from its `start` on.
  View next_view() {
    const Region& region = next_region();
    const int64_t start = next_start(region);
    View view{region.p + start, next(-1, MOST), next(-1, MOST),
              next(0, MOST),    next(0, MOST),  region.has_slack};
    if (view.rows < 0) view.rows = packed;
    if (view.columns < 0) view.columns = packed;
    if (view.rows && view.columns) {
      const int64_t reach = plus(times(view.rows - 1, view.by), times(view.columns - 1, view.along));
      require(plus(start, reach) < region.length);
    }
    return view;
  }
  int64_t next_start(const Region& region) {
    const int64_t skipped = next(0, 1) ? times(B, region.size) : 0;  // the first states
    const int64_t start = plus(skipped, next(0, MOST));
    require(region.p && start <= region.length);
    return start;
  }
  // A new matrix without gaps.
  View next_result() {
    Region& region = next_region();
    View view{region.p, next(-1, MOST), next(-1, MOST), 0, 1, region.has_slack};
    if (view.rows < 0) view.rows = packed;
    if (view.columns < 0) view.columns = packed;
    view.by = view.columns;
    require(region.p && times(view.rows, view.columns) <= region.length);
    return view;
  }

 public:
  CellPass(const PassArgs& a, int threads)
      : a(a), addresses((const uint64_t*)(&a + 1)), lengths((const int64_t*)addresses + a.many),
        threads(std::max(1, threads)), at(a.code), end(a.code + a.length), B(a.B), steps(a.B),
        numbers(count_numbers(), false), memory(read_buffers(), false) {
    fill_packing(RaggedBatch{steps.data(), B, a.steps}, a.time_first, longest, packed, numbers);
    count = numbers, offset = count + longest, order = offset + longest, place = order + B;
    before = place + 2 * packed, last = before + packed;
    T* own = memory;
    for (Region& region : regions)
      if (region.is_own) region.p = own, own += round_up(region.length + SLACK, 16);
  }

  void run() {
    const int64_t results = next(0, 62);
    int64_t wanted = 0;
    for (int64_t i = 0; i < results; i++)
      if (addresses[next_tensor()]) wanted |= int64_t(1) << i;
    while (at < end) {
      const int64_t needed_by = next(), length = next(0, end - at);
      const int64_t* const after = at + length;
      if (!results || needed_by & wanted) run_one();
      at = after;
    }
  }

 private:
  int64_t count_numbers() {
    require(B > 0 && a.steps >= 0);
    for (int64_t b = 0; b < B; b++)
      steps[b] = a.lengths ? std::min(std::max<int64_t>(a.lengths[b], 0), a.steps) : a.steps;
    const RaggedBatch batch{steps.data(), B, a.steps};
    longest = batch.longest(), packed = batch.sum();
    return 2 * longest + 3 * B + 3 * packed;
  }
  // The elements of all buffers that are not the caller's.
  int64_t read_buffers() {
    const int64_t many = next(0, end - at);
    int64_t all = 0;
    for (int64_t i = 0; i < many; i++) {
      const int64_t kind = next(SHARED, STATES), size = next(0, MOST), from = next(-1, a.many - 1),
                    first = next(0, MOST);
      const int64_t rows = kind == SHARED ? 1 : kind == PACKED ? packed : B + packed;
      Region region{nullptr, size, rows, times(rows, size), from < 0, from < 0};
      if (from >= 0 && addresses[from]) {
        region.p = tensor(from) + first;
        const int64_t rest = lengths[from] - plus(first, region.length);
        require(rest >= 0);
        region.has_slack = rest >= SLACK;
      }
      if (from < 0) all = plus(all, round_up(region.length + SLACK, 16));
      regions.push_back(region);
    }
    return all;
  }

  void run_one() {
    switch (next(LOAD, FILL)) {
      case LOAD:
        return load();
      case STORE:
        return store();
      case BEGIN:
        return put_rows(true);
      case BEGIN_REVERSE:
        return put_rows(false);
      case END:
        return take_rows(true);
      case END_REVERSE:
        return take_rows(false);
      case BEFORE:
        return find_before();
      case RUN:
        return run_program();
      case MULTIPLY:
        return multiply();
      case REDUCE:
        return reduce();
      case POINTWISE:
        return compute();
      case COPY:
        return copy();
      case FILL: {
        const View to = next_result();
        std::fill_n(to.p, to.rows * to.columns, T(0));
      }
    }
  }

  bool is_in_order() const { return !a.lengths && a.time_first; }

  // the rows of all steps, without padding; zeros if the caller's tensor is absent
  void load() {
    const Region& to = next_region();
    const int64_t from = next_tensor(), size = to.size;
    require(to.p && to.rows == packed);
    if (!addresses[from]) return (void)std::fill_n(to.p, to.length, T(0));
    require(times(times(B, a.steps), size) <= lengths[from]);
    if (is_in_order()) return (void)std::memcpy(to.p, tensor(from), to.length * sizeof(T));
    for (int64_t i = 0; i < packed; i++)
      std::memcpy(to.p + i * size, tensor(from) + place[i] * size, size * sizeof(T));
  }
  void store() {
    const int64_t to = next_tensor();
    const View from = next_view();
    const int64_t size = from.columns, all = times(times(B, a.steps), size);
    require(addresses[to] && from.rows == packed && from.along == 1 && all <= lengths[to]);
    if (packed < B * a.steps) std::fill_n(tensor(to), all, T(0));
    for (int64_t i = 0; i < packed; i++)
      std::memcpy(tensor(to) + place[i] * size, from.p + i * from.by, size * sizeof(T));
  }
  // the first states, or the gradients of the last ones
  void put_rows(bool are_first) {
    const Region& to = next_region();
    const int64_t from = next_tensor(), size = to.size;
    require(to.p && to.rows == B + packed);
    require(!addresses[from] || times(B, size) <= lengths[from]);
    for (int64_t r = 0; r < B; r++) {
      T* row = to.p + (are_first ? r : last[r]) * size;
      if (addresses[from])
        std::memcpy(row, tensor(from) + order[r] * size, size * sizeof(T));
      else
        std::fill_n(row, size, T(0));
    }
  }
  // the last states, or the gradients of the first ones
  void take_rows(bool are_last) {
    const int64_t to = next_tensor();
    const Region& from = next_region();
    const int64_t size = from.size;
    require(from.p && from.rows == B + packed && addresses[to] && times(B, size) <= lengths[to]);
    for (int64_t r = 0; r < B; r++)
      std::memcpy(tensor(to) + order[r] * size, from.p + (are_last ? last[r] : r) * size, size * sizeof(T));
  }
  void find_before() {
    Region& to = next_region();
    const Region& states = next_region();
    require(to.p && states.p && to.size == states.size && to.rows == packed && states.rows == B + packed);
    if (!a.lengths) return (void)(to.p = states.p);
    for (int64_t i = 0; i < packed; i++)
      std::memcpy(to.p + i * to.size, states.p + before[i] * to.size, to.size * sizeof(T));
  }

  void run_program() {
    const int64_t many = next(0, end - at);
    std::vector<void*> buffers(many, nullptr);
    std::vector<int64_t> sizes(many, 0);
    std::vector<char> transposed(many, 0);
    for (int64_t i = 0; i < many; i++) {
      const int64_t index = next(-1, int64_t(regions.size()) - 1);
      if (index < 0) continue;
      const int64_t start = next_start(regions[index]);
      buffers[i] = regions[index].p + start;
      sizes[i] = regions[index].length - start;
      transposed[i] = next(0, 1);
    }
    const int64_t first_constant = next(0, a.numbers);
    const MachineArgs args{B,
                           longest,
                           a.columns,
                           packed,
                           at,
                           a.constants + first_constant,
                           buffers.data(),
                           sizes.data(),
                           many,
                           transposed.data(),
                           offset,
                           count};
    require(rows_fit(args) && buffers_fit(args));
    run_machine<T>(args, threads);
  }

  void multiply() {
    const View to = next_result(), left = next_view(), right = next_view();
    require(left.columns == right.rows && to.rows == left.rows && to.columns == right.columns);
    const int64_t all = times(times(to.rows, to.columns), left.columns);
    const int most = all > ALONE ? threads : 1;
    if (!all) return (void)std::fill_n(to.p, to.rows * to.columns, T(0));
    if (left.along != 1) return add_outer(to, left, right, most);
    const bool transposed = right.along != 1;
    require(!transposed || right.by == 1);
    multiply_lines<T>({left.p, left.by}, left.rows, left.columns,
                      {right.p, transposed ? right.along : right.by}, transposed, to.columns, to.p, most);
  }
  // the product of the transpose of some rows and others
  void add_outer(const View& to, const View& left, const View& right, int most) const {
    const int64_t m = to.rows, n = to.columns, rows = left.columns, room = Outer<T>::room(rows, m);
    require(left.by == 1 && left.has_slack && right.along == 1);
    Buffer<T> rooms(room * most, false);
    if (n % PANEL<T> == 0)
      return run_threads(most, [&](const Team& team) {
        Outer<T>::put(to.p, n, team, m, n, rows, left.p, left.along, right.p, right.by,
                      rooms + team.member * room);
      });
    const int64_t wide = padded_size<T>(n);
    Buffer<T> padded(rows * wide);
    for (int64_t k = 0; k < rows; k++) std::memcpy(padded + k * wide, right.p + k * right.by, n * sizeof(T));
    Outer<T> products(m, wide);
    run_threads(most, [&](const Team& team) {
      products.add(team, rows, left.p, left.along, padded, wide, rooms + team.member * room, true);
      team.wait();
      products.write(team, to.p, n, 0, m, n, false);
    });
  }

  // the sum of some rows, or their largest or smallest values
  void reduce() {
    enum Kind { ADD, LARGEST, SMALLEST };
    const View to = next_result(), from = next_view();
    const int64_t kind = next(ADD, SMALLEST);
    require(to.rows == 1 && to.columns == from.columns && (kind == ADD || from.rows));
    if (kind == ADD) return add_rows(to.p, from);
    for (int64_t j = 0; j < to.columns; j++) {
      const T* p = from.p + j * from.along;
      T most = *p;
      for (int64_t i = 1; i < from.rows; i++) {
        const T x = p[i * from.by];
        if ((kind == LARGEST ? x > most : x < most) || x != x) most = x;
        if (most != most) break;
      }
      to.p[j] = most;
    }
  }
  void add_rows(T* to, const View& from) const {
    constexpr int64_t some = 128;  // rows that are added up one by one
    std::fill_n(to, from.columns, T(0));
    for (int64_t k = 0; k < from.rows; k += some) {
      const int64_t part = std::min(some, from.rows - k);
      int64_t j = 0;
      for (; from.along == 1 && j + N<T> <= from.columns; j += N<T>) {
        V<T> s{};
        for (int64_t i = k; i < k + part; i++) s += ::load(from.p + i * from.by + j);
        ::store(to + j, ::load(to + j) + s);
      }
      for (; j < from.columns; j++) {
        T s = 0;
        for (int64_t i = k; i < k + part; i++) s += from.p[i * from.by + j * from.along];
        to[j] += s;
      }
    }
  }

  void compute() {
    const View to = next_result();
    const Operator<T>& op = Operators<T>::table[next(0, Operators<T>::count - 1)];
    require(op.layout == Layout::POINTWISE);
    T* place[4] = {to.p};
    int64_t by[4] = {to.by};
    const int64_t along[4] = {};
    int scalars = 0;
    for (int k = 0; k < op.arity; k++) {
      const View from = next_view();
      require((from.rows == to.rows || from.rows == 1) && (from.columns == to.columns || from.columns == 1));
      require(from.along == 1 || from.columns == 1);
      place[1 + k] = from.p;
      by[1 + k] = from.rows == 1 ? 0 : from.by;
      if (from.columns == 1) scalars |= 1 << k;
    }
    const bool single = scalars == (1 << op.arity) - 1;
    const Run<T> run = op.choose(single ? 0 : scalars);
    require(run && (!single || to.columns == 1));
    const int64_t some = std::max<int64_t>(1, BLOCK<T> / std::max<int64_t>(to.columns, N<T>));
    for (int64_t r = 0; r < to.rows; r += some) {
      run({std::min(some, to.rows - r), to.columns, place, by, along}, {single, 0, {1, 2, 3}});
      for (int k = 0; k <= op.arity; k++) place[k] += some * by[k];
    }
  }

  void copy() {
    const View to = next_view(), from = next_view();
    require(to.rows == from.rows && to.columns == from.columns);
    for (int64_t i = 0; i < to.rows; i++) {
      T* row = to.p + i * to.by;
      const T* source = from.p + i * from.by;
      if (to.along == 1 && from.along == 1)
        std::memcpy(row, source, to.columns * sizeof(T));
      else
        for (int64_t j = 0; j < to.columns; j++) row[j * to.along] = source[j * from.along];
    }
  }

 public:
  // Returns what seqloom_cell_pass returns.
  static int run(const PassArgs& a, int threads) try {
    CellPass(a, threads).run();
    return 0;
  } catch (const Broken&) {
    return 3;
  }
};
