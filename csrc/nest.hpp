// A nest of loops of a program: every instruction runs over a block of elements, which amortises the cost of
// the call while registers stay in the L1 cache.
//
// Dimensions are the rows of the batch (0) and the loops (1, 2, ...). One of them is the vector: instructions
// run along it, in chunks. Another one is the block: an instruction runs over several of its iterations. The
// rest, and chunks and blocks, are counted one by one. Reductions are over inner loops. If the vector is one
// of those, each row of a block has a vector of partial results, which are folded in the end ("across");
// otherwise it has one result for each element of the chunk ("down"). No result depends on the choice of the
// block.
#pragma once
#include <vector>

#include "memory.hpp"
#include "operators.hpp"
#include "threads.hpp"

constexpr int DIMENSIONS = 8;

// Reads a code that was checked from front to back.
struct Reader {
  const int64_t* at;
  int64_t next() { return *at++; }
};

template <class T>
struct Instruction {
  Run<T> run;
  Operands at;
};

struct Access {
  int64_t buffer, offset, strides[DIMENSIONS];  // strides[0]: to be multiplied by the stride between rows
};

template <class T>
struct Nest {
  int dimensions, inner, vector;  // inner: the first of the inner loops
  int64_t sizes[DIMENSIONS];
  int64_t registers, singles, sums;  // slots: registers, singles and sums, then accesses, then constants
  std::vector<Access> accesses;
  std::vector<T> constants;
  std::vector<Instruction<T>> start, body, finish;

  Nest(Reader& code, const std::vector<int64_t>& row_sizes, const double* numbers) {
    dimensions = 1 + code.next();
    sizes[0] = 0;
    for (int d = 1; d < dimensions; d++) sizes[d] = code.next();
    inner = dimensions - code.next();
    vector = code.next();
    registers = code.next(), singles = code.next(), sums = code.next();
    accesses.resize(code.next());
    constants.resize(code.next());
    for (Access& a : accesses) {
      a.buffer = code.next(), a.offset = code.next();
      a.strides[0] = row_sizes[a.buffer];
      for (int d = 1; d < dimensions; d++) a.strides[d] = code.next();
    }
    for (T& c : constants) c = numbers[code.next()];
    for (auto* list : {&start, &body, &finish}) {
      list->resize(code.next());
      for (Instruction<T>& i : *list) {
        const int64_t operation = code.next();
        i.run = Operators<T>::table[operation].choose(code.next());
        i.at.single = code.next();
        i.at.out = code.next();
        for (int64_t& a : i.at.a) a = code.next();
      }
    }
  }
  bool across() const { return vector >= inner; }
  int64_t slots() const { return registers + singles + sums + accesses.size() + constants.size(); }
  int64_t first_access() const { return registers + singles + sums; }
  int64_t room() const { return (registers + singles + sums) * BLOCK<T>; }
};

// Iterates over some dimensions, the last one fastest.
struct Counter {
  struct Digit {
    int dimension;
    int64_t lo, hi, step;
  };
  Digit digits[DIMENSIONS];
  int count = 0;

  void add(int dimension, Span span, int64_t step = 1) {
    if (span.lo + step < span.hi) digits[count++] = {dimension, span.lo, span.hi, step};
  }
  bool has(int dimension) const {
    return std::any_of(digits, digits + count, [&](const Digit& d) { return d.dimension == dimension; });
  }
  bool next(int64_t* at) const {
    for (int i = count; i-- > 0;) {
      const Digit& d = digits[i];
      if ((at[d.dimension] += d.step) < d.hi) return true;
      at[d.dimension] = d.lo;
    }
    return false;
  }
};

// A nest as one thread runs it.
template <class T>
class NestRun {
  const Nest<T>& nest;
  T* const room;
  std::vector<T*> place;
  std::vector<int64_t> by, along, ways;   // ways: strides of accesses, dimension by dimension
  std::vector<int64_t> buffers, offsets;  // buffers and offsets of accesses
  Counter outer, inner;
  Span span[DIMENSIONS];
  bool empty = false;
  int block = 0, moving = 0, moves[DIMENSIONS];  // moves: dimensions whose iterations are counted
  int64_t chunk = 0, rows_of_block = 0, prepared = -1;

 public:
  NestRun(const Nest<T>& nest, T* room)
      : nest(nest), room(room), place(nest.slots()), by(nest.slots()), along(nest.slots()),
        ways(DIMENSIONS * nest.accesses.size()) {
    for (const Access& a : nest.accesses) {
      buffers.push_back(a.buffer);
      offsets.push_back(a.offset);
    }
    for (size_t c = 0; c < nest.constants.size(); c++)
      place[place.size() - nest.constants.size() + c] = (T*)&nest.constants[c];
  }

  // base: position of this thread's first row of the step in every buffer; row: stride to its next row
  void run(const Team& team, T* const* base, int64_t rows, int64_t row) {
    if (rows != prepared) prepare(team, rows, row);
    if (empty) return;
    int64_t at[DIMENSIONS];
    for (int d = 0; d < DIMENSIONS; d++) at[d] = span[d].lo;
    do {
      if (nest.start.size()) execute(nest.start, locate(base, at));
      do execute(nest.body, locate(base, at));
      while (inner.next(at));
      if (nest.finish.size()) execute(nest.finish, locate(base, at));
    } while (outer.next(at));
  }

 private:
  // Choose the block. The choice depends only on the number of rows.
  void prepare(const Team& team, int64_t rows, int64_t row) {
    constexpr int64_t n = N<T>;
    prepared = rows;
    int longest = 0;
    for (int d = 0; d < DIMENSIONS; d++) {
      span[d] = {0, d >= nest.dimensions ? 1 : d ? nest.sizes[d] : rows};
      if (d < nest.inner && span[d].hi > span[longest].hi) longest = d;
    }
    span[longest] = team.share(span[longest].hi, longest == nest.vector ? n : 1);
    empty = size(longest) <= 0;
    const int v = nest.vector;
    block = DIMENSIONS - 1;  // no loop: a single iteration
    for (int d = nest.inner - 1; d >= 0; d--)
      if (d != v && size(d) >= size(block)) block = d;
    const int64_t chunks = std::max<int64_t>(1, (size(v) + BLOCK<T> - 1) / BLOCK<T>);
    chunk = round_up((size(v) + chunks - 1) / chunks, n);
    rows_of_block = std::max<int64_t>(1, std::min<int64_t>(size(block), BLOCK<T> / std::max(chunk, n)));
    outer.count = inner.count = 0;
    for (int d = 0; d < nest.dimensions; d++)
      if (d != v && d != block) (d < nest.inner ? outer : inner).add(d, span[d]);
    outer.add(block, span[block], rows_of_block);
    (v < nest.inner ? outer : inner).add(v, span[v], chunk);

    for (int64_t i = 0; i < nest.first_access(); i++) {
      const bool single = i >= nest.registers && i < nest.registers + nest.singles;
      const bool sum = i >= nest.registers + nest.singles;
      place[i] = room + i * BLOCK<T>;
      by[i] = single ? 1 : sum && nest.across() ? n : chunk;
      along[i] = 1;
    }
    const int64_t many = nest.accesses.size();
    moving = 0;
    for (int d = 0; d < nest.dimensions; d++)
      if (span[d].lo || outer.has(d) || inner.has(d)) moves[moving++] = d;
    for (int64_t i = 0; i < many; i++) {
      const Access& a = nest.accesses[i];
      for (int d = 0; d < DIMENSIONS; d++)
        ways[d * many + i] = d >= nest.dimensions ? 0 : a.strides[d] * (d ? 1 : row);
      by[nest.first_access() + i] = ways[block * many + i];
      along[nest.first_access() + i] = ways[v * many + i];
    }
  }
  int64_t size(int d) const { return span[d].hi - span[d].lo; }

  // Set the addresses of accesses for one block.
  INLINE Frame<T> locate(T* const* base, const int64_t* at) {
    const int64_t many = nest.accesses.size(), *buffer = buffers.data(), *offset = offsets.data();
    T** to = place.data() + nest.first_access();
    for (int64_t i = 0; i < many; i++) to[i] = base[buffer[i]] + offset[i];
    for (int k = 0; k < moving; k++) {
      const int64_t *way = ways.data() + moves[k] * many, steps = at[moves[k]];
      for (int64_t i = 0; i < many; i++) to[i] += steps * way[i];
    }
    return {std::min(rows_of_block, span[block].hi - at[block]),
            std::min(chunk, span[nest.vector].hi - at[nest.vector]), place.data(), by.data(), along.data()};
  }
  static INLINE void execute(const std::vector<Instruction<T>>& list, const Frame<T>& frame) {
    for (const Instruction<T>& i : list) i.run(frame, i.at);
  }
};
