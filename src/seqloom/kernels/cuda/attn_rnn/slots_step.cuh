// One step of AttnRNN with slots: step.cuh with the attention of several slots.
#pragma once
#include "attn_rnn/slots.cuh"
#include "attn_rnn/step.cuh"

struct SlotsStep : Step {
  DEV SlotsStep(const Lane& l, u32 memory, const Weights& w) : Step(l, memory, w) {}

  template <class OnArrival, class SideWork>
  DEV void run(float (&after)[4], const float (&h)[4], const float (&x)[4], const OnArrival& on_arrival,
               const SideWork& side_work) {
    u32 hp[2], transposed[2], hxp[2], hb[TILES][2];
    float gh[4], hx[4];
    narrow_finite(hp, h);
    transpose_both(transposed, hp);
    wait_block();
    on_arrival();
    compute_query(gh, hb);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      hx[i] = h[i] * x[i];
      aC[i] = 0.f;
    }
    narrow_finite(hxp, hx);
    Rows s[WARP_HEADS];
    score(s, q, x, transposed, l);
    if constexpr (SPLIT_HEADS) {
      put_scores(s, memory + AT_SUMS, l);
      wait_head(l);
      get_scores(s, memory + AT_SUMS, l);
    }
#pragma unroll
    for (int n = 0; n < WARP_HEADS; n++) {
      Rows w;
      float both[2];
      attend(w, both, s[n], l);
      mix(aC, w, hp, hxp, x, n, l);
    }
    finish_step(after, h, gh, hb, side_work);
  }
};
