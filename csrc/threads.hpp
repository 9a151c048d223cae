// The threads of a call, and how they share its work.
#pragma once
#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

inline int64_t nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A barrier that threads reach many times per step, so they spin; after a while each yields its core.
class Barrier {
  static constexpr int SPINS = 2000;
  alignas(64) std::atomic<int> arrivals{0};
  alignas(64) std::atomic<int> round{0};

  static void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

 public:
  std::atomic<int64_t> lost{0};  // nanoseconds of waiting for a thread that had no core

  void wait(int size) {
    const int now = round.load(std::memory_order_relaxed);
    if (arrivals.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
      arrivals.store(0, std::memory_order_relaxed);
      round.store(now + 1, std::memory_order_release);
      return;
    }
    const auto open = [&] { return round.load(std::memory_order_acquire) != now; };
    for (int spins = 0; spins < SPINS; spins++, pause())
      if (open()) return;
    const int64_t started = nanoseconds();
    while (!open()) std::this_thread::yield();
    lost += nanoseconds() - started;
  }
};

// If other processes use the cores, threads mostly wait for each other, and one thread is faster. A call that
// lost half of its time in this way is followed by calls on one thread, twice as many after each failed
// retry. Results do not depend on it.
class Trial {
  static constexpr int MOST = 64;
  std::atomic<int> solo_calls{0}, next_solo_calls{1};

 public:
  bool should_skip() { return solo_calls > 0 && solo_calls-- > 0; }
  void record_end(int64_t lost, int64_t elapsed) {
    const bool failed = 2 * lost > elapsed;
    if (failed) solo_calls = next_solo_calls.load();
    next_solo_calls = failed ? std::min(MOST, 2 * next_solo_calls) : 1;
  }
};

struct Span {
  int64_t lo, hi;
};

// One of the threads that share some work.
struct Team {
  int member = 0, size = 1;
  Barrier* barrier = nullptr;

  void wait() const {
    if (size > 1) barrier->wait(size);
  }
  // its share of n items, in multiples of a unit
  Span share(int64_t n, int64_t unit = 1) const {
    if (size == 1) return {0, n};  // without divisions
    const int64_t units = (n + unit - 1) / unit;
    return {std::min(n, units * member / size * unit), std::min(n, units * (member + 1) / size * unit)};
  }
};

// torch's OpenMP threads, if they are loaded. They keep spinning for milliseconds after each of torch's
// products, and additional threads would get only half of a core each.
//
// ThreadSanitizer cannot track how they are started and joined, so under it each call starts its own.
#if defined(__linux__) && !defined(__SANITIZE_THREAD__)
extern "C" {
void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned) __attribute__((weak));
int omp_get_thread_num() __attribute__((weak));
int omp_get_num_threads() __attribute__((weak));
int omp_get_max_threads() __attribute__((weak));
}
inline bool has_torch_threads() {
  return GOMP_parallel && omp_get_thread_num && omp_get_num_threads && omp_get_max_threads;
}
#else
inline void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned) {}
inline int omp_get_thread_num() { return 0; }
inline int omp_get_num_threads() { return 1; }
inline int omp_get_max_threads() { return 1; }
inline bool has_torch_threads() { return false; }
#endif

// Run f(team) on up to this many threads, with the caller's rounding mode. f must not allocate memory: a
// thread that failed would leave the others waiting.
template <class F>
void run_threads(int threads, F f) {
  static Trial trial;
  if (threads < 2 || trial.should_skip()) return f(Team());
  const int64_t started = nanoseconds();
  struct Job {
    F& f;
    int threads;
    fenv_t rounding;
    Barrier barrier;

    Job(F& f, int threads) : f(f), threads(threads) { fegetenv(&rounding); }
    void run(int member, int size) {
      fenv_t previous;
      fegetenv(&previous);
      fesetenv(&rounding);
      f(Team{member, size, &barrier});
      // wait here, where a contended core is yielded: OpenMP would hold it for milliseconds
      barrier.wait(size);
      fesetenv(&previous);
    }
  } job(f, threads);
  if (has_torch_threads()) {
    auto part = [](void* data) {
      Job& job = *(Job*)data;
      const int member = omp_get_thread_num(), size = std::min(job.threads, omp_get_num_threads());
      if (member < size) job.run(member, size);
    };
    // as many as torch uses: a pool that is asked for fewer threads terminates the others
    GOMP_parallel(part, &job, std::max(threads, omp_get_max_threads()), 0);
  } else {
    std::vector<std::thread> others;
    for (int member = 1; member < threads; member++)
      others.emplace_back([&, member] { job.run(member, threads); });
    job.run(0, threads);
    for (auto& thread : others) thread.join();
  }
  trial.record_end(job.barrier.lost, nanoseconds() - started);
}
