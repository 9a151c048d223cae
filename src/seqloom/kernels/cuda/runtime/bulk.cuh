// Copies to the shared memory of one block, or of some that follow each other and run as a cluster (Hopper
// and later), in the background. A barrier is 8 bytes of shared memory; a phase of it ends when it was
// arrived at so many times as it was made for, and all expected bytes have come. The tests replace this file
// by a CPU emulation.
#pragma once
#include "runtime/counter.cuh"

#undef CLUSTER_KERNEL
#define CLUSTER_KERNEL(name, Args, threads, size)                                       \
  extern "C" __global__ void __cluster_dims__(size, 1, 1) __launch_bounds__(threads, 1) \
      name(const __grid_constant__ GroupArguments<Args> a)

DEV void wait_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
DEV void make_barrier(u32 at, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
DEV void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Arrive once, and expect so many bytes in this phase.
DEV void expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Arrive once at the barrier of a block of the cluster, at the same place as this one.
DEV void arrive_at(u32 barrier, int block) {
  asm volatile(
      "{.reg .u32 r; mapa.shared::cluster.u32 r, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [r];}" ::"r"(
          barrier),
      "r"(block)
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
    if (i == MOST_POLLS) asm volatile("trap;");
  }
}
// Copy to this block, or to all BLOCKS of the cluster, at the same place in each; their barriers count the
// bytes. `from` and `to` are multiples of 16, and so is `bytes`.
template <int BLOCKS>
DEV void fetch_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
  if constexpr (BLOCKS == 1)
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], "
        "%2, [%3], "
        "%4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "h"((u16)((1 << BLOCKS) - 1))
        : "memory");
}
// Order what threads wrote or saw and copies in the background.
DEV void order_copies() { asm volatile("fence.proxy.async;" ::: "memory"); }
