// Instructions of thread block clusters (Hopper and later), whose blocks write to each other's shared memory.
// The tests replace this file with a CPU emulation. A barrier is an mbarrier, 8 bytes of shared memory, that
// counts arriving bytes; its phase ends when all expected bytes have arrived.
#pragma once
#include "runtime/device.cuh"

#define CLUSTER_KERNEL(name, Args, threads, size)                                       \
  extern "C" __global__ void __cluster_dims__(size, 1, 1) __launch_bounds__(threads, 1) \
      name(const __grid_constant__ Args a)

DEV void wait_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
DEV void make_barrier(u32 at) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory"); }
DEV void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Return the shared memory address in another block of the cluster that corresponds to `at`.
DEV u32 map_to_block(u32 at, int block) {
  u32 r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at), "r"(block));
  return r;
}
// Store asynchronously to another block's shared memory; its barrier counts the bytes when they arrive.
DEV void send(u32 to, u32 barrier, float v) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
               "r"(__float_as_uint(v)), "r"(barrier)
               : "memory");
}
DEV void send(u32 to, u32 barrier, const float (&v)[4]) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to),
      "r"(__float_as_uint(v[0])), "r"(__float_as_uint(v[1])), "r"(__float_as_uint(v[2])),
      "r"(__float_as_uint(v[3])), "r"(barrier)
      : "memory");
}
// Expect `bytes` bytes in this phase; call once per phase, from one thread. Bytes may arrive before the call.
DEV void expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Call expect if `is_true`, with a predicate instead of a branch.
DEV void expect_if(bool is_true, u32 barrier, u32 bytes) {
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p, %2, 0; @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;}" ::"r"(
          barrier),
      "r"(bytes), "r"((u32)is_true)
      : "memory");
}
// Return whether the phase of this parity has ended.
DEV bool has_arrived(u32 barrier, u32 parity) {
  u32 done;
  asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done;
}
constexpr int MOST_WAITS = 1 << 22;  // far more than any step takes
// Wait until the phase of this parity ends. A step of another block takes microseconds: trap after MOST_WAITS
// tries instead of waiting forever.
DEV void await(u32 barrier, u32 parity) {
  u32 done = 0;
  for (int i = 0; !done; i++) {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    if (i == MOST_WAITS) asm volatile("trap;");
  }
  __syncwarp();
}
