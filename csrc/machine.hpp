// The vector machine: runs a program of the cell compiler (seqloom/compiler/ir.py) over all time steps.
//
// Threads divide the rows of the batch: thread p of P has the rows p, p + P, ..., and never waits. Or they
// divide the columns of products and the iterations of nests, with a barrier after each.
#pragma once
#include <memory>

#include "machine_check.hpp"
#include "panels.hpp"

template <class T>
class Machine {
  struct Part {
    std::unique_ptr<Product<T>> product;
    std::unique_ptr<Nest<T>> nest;
  };
  // what one thread writes
  struct Thread {
    Buffer<T> room;
    std::vector<std::unique_ptr<NestRun<T>>> nests;  // one for every part; null for products
    std::vector<T*> base;
    explicit Thread(int64_t room) : room(room, false) {}
  };
  const MachineArgs& a;
  std::vector<int64_t> places, sizes, row_sizes;  // of buffers; row_sizes: 0 for weights
  std::vector<T*> memory;                         // addresses of buffers
  std::vector<std::unique_ptr<Buffer<T>>> own;    // memory of buffers that the caller did not pass
  bool reverse;
  std::vector<Part> parts;
  std::vector<std::unique_ptr<Thread>> threads;

 public:
  Machine(const MachineArgs& a, int many) : a(a) {
    Reader code{a.code};
    const int64_t buffers = code.next();
    for (int64_t i = 0; i < buffers; i++) {
      places.push_back(code.next());
      sizes.push_back(code.next());
      row_sizes.push_back(places[i] == WEIGHT ? 0 : sizes[i]);
    }
    for (int64_t i = 0; i < buffers; i++) {
      if (!a.buffers[i] && places[i] == ROW) own.emplace_back(new Buffer<T>(a.B * sizes[i], false));
      memory.push_back(a.buffers[i] || places[i] != ROW ? (T*)a.buffers[i] : own.back()->p);
    }
    reverse = code.next();
    parts.resize(code.next());
    int64_t room = 0;
    for (Part& part : parts)
      if (code.next()) {
        part.nest.reset(new Nest<T>(code, row_sizes, a.constants));
        room = std::max(room, part.nest->room());
      } else {
        part.product.reset(new Product<T>(code));
        room = std::max(room, part.product->room());
      }
    for (int i = 0; i < many; i++) {
      threads.emplace_back(new Thread(room));
      Thread& thread = *threads.back();
      thread.base.resize(buffers);
      for (Part& part : parts)
        thread.nests.emplace_back(part.nest ? new NestRun<T>(*part.nest, thread.room) : nullptr);
    }
  }

  void run(const Team& team) {
    for (Part& part : parts)
      if (part.product) {
        const int64_t weight = part.product->weight;
        part.product->pack(team, (const T*)a.buffers[weight], a.transposed[weight]);
      }
    team.wait();
    if (a.columns) return run_rows(team, *threads[team.member], 0, 1);
    // As many shares as threads were requested, even if fewer run: a product's rounding depends on the number
    // of rows that it processes at a time.
    const int64_t shares = threads.size();
    for (int64_t share = team.member; share < shares; share += team.size)
      run_rows(Team(), *threads[team.member], share, shares);
  }

 private:
  // Run the rows first, first + way, ... of every step.
  void run_rows(const Team& team, Thread& thread, int64_t first, int64_t way) {
    for (int64_t i = 0; i < a.T; i++) {
      const int64_t t = reverse ? a.T - 1 - i : i;
      const int64_t rows = way == 1 ? a.count[t] : (a.count[t] - first + way - 1) / way;
      if (rows <= 0) continue;
      find_rows(t, first, thread.base.data());
      for (size_t p = 0; p < parts.size(); p++) {
        if (parts[p].nest)
          thread.nests[p]->run(team, thread.base.data(), rows, way);
        else
          multiply(*parts[p].product, team, thread, rows, way);
        team.wait();
      }
    }
  }
  // position of row r of step t in every buffer
  INLINE void find_rows(int64_t t, int64_t r, T** base) const {
    const int64_t now = a.offset[t] + r, before = t ? a.B + a.offset[t - 1] + r : r;
    const int64_t rows[] = {0, r, now, before, a.B + now};  // row by place
    const int64_t *place = places.data(), *size = row_sizes.data(), many = places.size();
    for (int64_t b = 0; b < many; b++) base[b] = memory[b] + rows[place[b]] * size[b];
  }
  void multiply(const Product<T>& p, const Team& team, Thread& thread, int64_t rows, int64_t way) const {
    p.run(team, thread.base[p.source], row_sizes[p.source] * way, thread.base[p.out], row_sizes[p.out] * way,
          rows, thread.room);
  }
};

template <class T>
void run_machine(const MachineArgs& a, int threads) {
  Machine<T> machine(a, std::max(1, threads));
  run_threads(threads, [&](const Team& team) { machine.run(team); });
}
