// RNN, one unit. x comes from the input, u is U h + b.
//   h' = relu(x + u)
#pragma once
#include "gated/math.cuh"

constexpr int GATES = 1, STATES = 1;
struct Inside {
  float n;
};

DEV Inside compute_inside(const float (&x)[GATES], const float (&u)[GATES], const float (&)[STATES]) {
  return {maximum(x[0] + u[0], 0.f)};
}
DEV void update_state(float (&s)[STATES], const Inside& in) { s[0] = in.n; }
// d: gradient of h' on entry, of h on return; dx, du: gradients of x and u.
DEV void backpropagate(float (&d)[STATES], float (&dx)[GATES], float (&du)[GATES], const Inside& in,
                       const float (&)[STATES]) {
  dx[0] = du[0] = in.n > 0.f ? d[0] : 0.f;
  d[0] = 0.f;
}
