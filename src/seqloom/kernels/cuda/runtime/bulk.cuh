// Asynchronous bulk copies to shared memory, issued by one thread (cp.async.bulk, Hopper and later). A
// barrier is an mbarrier, 8 bytes of shared memory; its phase ends when one thread has set the expected
// number of bytes and all of them have arrived. The tests replace this file with a CPU emulation.
#pragma once
#include "runtime/grid.cuh"

DEV void make_barrier(u32 at) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory"); }
DEV void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Expect `bytes` bytes in this phase; call once per phase, from one thread. Bytes may arrive before the call.
DEV void expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Wait until the phase of this parity ends; trap instead of waiting forever.
DEV void await(u32 barrier, u32 parity) {
  u32 done = 0;
  for (int i = 0; !done; i++) {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    if (i == MOST_POLLS) give_up();
  }
}
// Copy bytes asynchronously; the barrier counts them. Addresses and `bytes` must be multiples of 16.
DEV void cp_async_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// Order this thread's earlier memory accesses before later bulk copies (async proxy).
DEV void order_copies() { asm volatile("fence.proxy.async;" ::: "memory"); }
