// Memory that is reused from call to call: new memory costs a page fault per 4 kB, a tenth of a short call.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#ifdef _WIN32
#include <malloc.h>
inline void* take_aligned(size_t bytes) { return _aligned_malloc(bytes, 64); }
inline void free_aligned(void* p) { _aligned_free(p); }
#else
inline void* take_aligned(size_t bytes) { return std::aligned_alloc(64, bytes); }
inline void free_aligned(void* p) { std::free(p); }
#endif

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Whether uninitialised memory is filled with NaN, or -1: an option for tests (core/memory.py).
inline bool is_poisoned() {
  static const char* const value = std::getenv("SEQLOOM_POISON");
  static const bool poisoned = value && !std::strcmp(value, "1");
  return poisoned;
}
inline void poison(void* p, size_t bytes) {
  if (is_poisoned()) std::memset(p, 0xff, bytes);
}

class Pool {
  struct Block {
    void* p;
    size_t bytes;
  };
  static constexpr size_t LIMIT = size_t(1) << 26;  // maximum number of bytes to keep
  std::mutex mutex;
  std::vector<Block> idle;
  size_t idle_bytes = 0;

 public:
  static Pool& shared() {
    static Pool* pool = new Pool;  // never destroyed: threads may outlive static objects
    return *pool;
  }
  // The smallest idle block that fits and is not far too large, or a new one; bytes becomes its size.
  void* take(size_t& bytes) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      size_t best = idle.size();
      for (size_t i = 0; i < idle.size(); i++)
        if (idle[i].bytes >= bytes && idle[i].bytes <= 2 * bytes &&
            (best == idle.size() || idle[i].bytes < idle[best].bytes))
          best = i;
      if (best < idle.size()) {
        Block block = idle[best];
        idle[best] = idle.back();
        idle.pop_back();
        idle_bytes -= block.bytes;
        bytes = block.bytes;
        return block.p;
      }
    }
    void* p = take_aligned(bytes);
    if (!p) throw std::bad_alloc();
    return p;
  }
  void give_back(void* p, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex);
    if (idle_bytes + bytes > LIMIT) return free_aligned(p);
    idle.push_back({p, bytes});
    idle_bytes += bytes;
  }
};

// Aligned memory of a scope, zeroed unless all of it will be written.
template <class T>
struct Buffer {
  T* p = nullptr;
  size_t bytes = 0;
  explicit Buffer(int64_t n, bool zero = true) {
    if (n <= 0) return;
    bytes = round_up(n * sizeof(T), 64);
    p = (T*)Pool::shared().take(bytes);
    if (zero)
      std::memset(p, 0, n * sizeof(T));
    else
      poison(p, bytes);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (p) Pool::shared().give_back(p, bytes);
  }
  operator T*() const { return p; }
};
