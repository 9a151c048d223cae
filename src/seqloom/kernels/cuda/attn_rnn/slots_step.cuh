// One step of AttnRNN with slots: step.cuh with the attention of several slots.
#pragma once
#include "attn_rnn/slots.cuh"
#include "attn_rnn/step.cuh"

struct SlotsStep : Step {
  DEV SlotsStep(const Lane& l, u32 memory, const Weights& w) : Step(l, memory, w) {}

  template <class Arrived, class Meanwhile>
  DEV void run(float (&after)[4], const float (&h)[4], const float (&x)[4], const Arrived& arrived,
               const Meanwhile& meanwhile) {
    u32 hp[2], turned[2], hxp[2], hb[TILES][2];
    float gh[4], hx[4];
    narrow_finite(hp, h);
    turn_both(turned, hp);
    wait_block();
    arrived();
    ask(gh, hb);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      hx[i] = h[i] * x[i];
      aC[i] = 0.f;
    }
    narrow_finite(hxp, hx);
    Rows s[NEAR];
    score(s, q, x, turned, l);
    if constexpr (CROSSED) {
      put_scores(s, memory + AT_SUMS, l);
      wait_head(l);
      get_scores(s, memory + AT_SUMS, l);
    }
#pragma unroll
    for (int n = 0; n < NEAR; n++) {
      Rows w;
      float both[2];
      attend(w, both, s[n], l);
      mix(aC, w, hp, hxp, x, n, l);
    }
    answer(after, h, gh, hb, meanwhile);
  }
};
