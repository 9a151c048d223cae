// A row of the batch to a cluster of two blocks. The second one has one of the four weights, whose product
// with the first vector is needed last in a step: it is sent the vector, and sends the product back in time,
// so that the exchange costs nothing. With the product come the numbers of the next step from global memory.
// So the first block needs no shared memory for weights, and does little but the step. Everything that is
// sent for a step is one message; a block sends one only after it has received the one before, so that
// neither overtakes the other.
#pragma once
#include "attn_rnn/row.cuh"
#include "runtime/cluster.cuh"

static_assert(QUADS_IN_SHARED == 0, "two blocks have registers for all weights");
constexpr int VECTOR_BYTES = 8 * H;     // of the message to the second block: two vectors
constexpr int PAIR_BYTES = 4 * H + 16;  // of the product and a barrier

struct Partner {
  const Lane& l;
  int other;
  u32 product, barrier, other_barrier;
  bool is_second;
  // at: where the product and the barrier lie; bytes, others_bytes: of the first message to the first and to
  // the second block.
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
  // Return where the other block has this address.
  DEV u32 map(u32 at) const { return map_to_block(at, other); }
  // Announce the bytes of the next message, by one thread, some time after the one before came.
  DEV void expect_next(int bytes, bool is_needed = true) const {
    expect_if(l.thread == 0 && is_needed, barrier, bytes);
  }
  DEV bool has_message(int i) const { return has_arrived(barrier, i & 1); }
  DEV void take_message(int i) const { await(barrier, i & 1); }
  // Be the second block. For the first vector of each step compute W v + bias; `messages` may be one more.
  //   load(i), push(i)        load numbers of step i from global memory, send them
  //   read(), store(i, v)     read a number that came with the vector, store it after message i was used
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
