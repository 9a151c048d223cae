// Copies of many bytes to shared memory in the background, by one thread (Hopper and later). A barrier is 8
// bytes of shared memory; a phase of it ends when one thread has said how many bytes it expects, and all of
// them have come. The tests replace this file by a CPU emulation.
#pragma once
#include "runtime/grid.cuh"

DEV void make_barrier(u32 at) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory"); }
DEV void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Expect `bytes` bytes in this phase (mbarrier.arrive.expect_tx); call once. They may arrive before the call.
DEV void expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Wait until the phase of this parity is over; end the kernel with an error instead of waiting for ever.
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
// Copy bytes, which the barrier counts; addresses and their number are multiples of 16.
DEV void fetch_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// Order what this thread has written or read before copies in the background.
DEV void order_copies() { asm volatile("fence.proxy.async;" ::: "memory"); }
