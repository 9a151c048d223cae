// AttnRNN with a cluster of two blocks per row of the batch. Of the four weights, the second block holds
// the one whose product with the first vector is needed last in a step: it receives the vector and sends the
// product back before it is needed, which hides the latency of the exchange. Along with the product it sends
// the next step's values from global memory. So the first block needs no shared memory for weights and does
// little besides the step itself. Everything sent for one step is one message (one phase of an mbarrier); a
// block sends a message only after it has received the previous one, so that neither block gets ahead.
#pragma once
#include "attn_rnn/row.cuh"
#include "runtime/cluster.cuh"

static_assert(QUADS_IN_SHARED == 0, "two blocks have registers for all weights");
constexpr int VECTOR_BYTES = 8 * H;     // bytes of the message to the second block: two vectors of H floats
constexpr int PAIR_BYTES = 4 * H + 16;  // bytes of the product and an mbarrier

struct Partner {
  const Lane& l;
  int other;
  u32 product, barrier, other_barrier;
  bool is_second;
  // at: offset of the product and the barrier; bytes, others_bytes: sizes of the first message to the first
  // and to the second block.
  DEV Partner(const Lane& l, int at, int bytes, int others_bytes) : l(l) {
    is_second = block() & 1;
    other = ~block() & 1;
    product = l.four[0] + at;
    barrier = hold(l.memory + at + 4 * H);
    if (l.thread == 0) {
      make_barrier(barrier);
      show_barriers();
      expect(barrier, is_second ? others_bytes : bytes);
    }
    wait_cluster();
    other_barrier = map_to_block(barrier, other);
  }
  // Map an address in shared memory to the same offset in the other block.
  DEV u32 map(u32 at) const { return map_to_block(at, other); }
  // Set the byte count that the barrier expects of the next message (one thread does), after the previous
  // message has arrived.
  DEV void expect_next(int bytes, bool is_needed = true) const {
    expect_if(l.thread == 0 && is_needed, barrier, bytes);
  }
  DEV bool has_message(int i) const { return has_arrived(barrier, i & 1); }
  DEV void take_message(int i) const { await(barrier, i & 1); }
  // Run the second block: compute W v + bias for the first vector v of each step. `messages` is `steps` or
  // steps + 1.
  //   load(i), push(i)        load the values of step i from global memory; send them to the first block
  //   read(), store(i, v)     read a value that came with the vector; store it after message i has been used
  template <class Load, class Push, class Read, class Store>
  DEV void help(const Element* W, int stride, float bias, int steps, int messages, const Load& load,
                const Push& push, const Read& read, const Store& store) const {
    const u32 result = map(product);
    Weight w;
    load(0);
    push(0);
    load(1);
    w.load(W, stride, l, 0);
#pragma unroll 1
    for (int i = 0; i < messages; i++) {
      float v[DEEP][4], c[4] = {bias};
      take_message(i);
      expect_next(VECTOR_BYTES, i + 1 < messages);
      l.get(v, 0);
      const float more = read();
      if (i < steps) {
        multiply(c, w, v);
        const float sum = l.scatter(c);
        if (!l.odd) send(result, other_barrier, sum);
        push(i + 1);
        load(i + 2);
      }
      store(i, more);
    }
  }
};
