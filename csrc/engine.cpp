// The plain C interface of the engine. Compiled once for each instruction set into a library of its own, so that no two
// builds of one template can meet. A thread runs its rows through all of time; threads meet once, at the end.
#include <atomic>
#include <new>
#include <thread>
#include <vector>

#include "attn_rnn_backward.hpp"
#include "gru.hpp"
#include "lstm.hpp"
#include "rnn.hpp"

typedef void (*Run)(const Args&, int part, int parts);
#define BOTH(name) {name<float>, name<double>}

static const Run functions[][2] = {
    BOTH(rnn_forward),  BOTH(rnn_backward),  BOTH(gru_forward),      BOTH(gru_backward),
    BOTH(lstm_forward), BOTH(lstm_backward), BOTH(attn_rnn_forward), BOTH(attn_rnn_backward),
};

// Runs function number `function` for float (0) or double (1); returns 0, or 1 where there was no memory.
extern "C" int seqloom_run(int function, int dtype, int threads, const Args* args) {
  Run run = functions[function][dtype];
  std::atomic<int> failed{0};
  auto one = [&](int part) {
    try {
      run(*args, part, threads);
    } catch (const std::bad_alloc&) {
      failed = 1;
    }
  };
  std::vector<std::thread> others;
  for (int part = 1; part < threads; part++) others.emplace_back(one, part);
  one(0);
  for (auto& thread : others) thread.join();
  return failed;
}

// The size of the record, so that a caller with another idea of it finds out.
extern "C" int64_t seqloom_args_size() { return sizeof(Args); }
