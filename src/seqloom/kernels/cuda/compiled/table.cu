// Write to a program's table. The values are kernel arguments, which avoids a copy that would wait for the
// host.
#include "compiled/table.cuh"
constexpr int COMPILED_FILL_BYTES = 0, COMPILED_ADVANCE_BYTES = 0;

struct Entries {
  i64* table;
  int at, n;
  i64 values[64];
};
KERNEL(compiled_fill, Entries, 64) {
  if (thread() < a.n) a.table[a.at + thread()] = a.values[thread()];
}

struct Advance {
  i64* table;
  i64 steps;
};
KERNEL(compiled_advance, Advance, 32) {
  if (thread() == 0) a.table[0] += a.steps;
}
