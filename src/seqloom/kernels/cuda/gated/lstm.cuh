// LSTM, one unit. x comes from the input; u is U h + b, or with NORM the layer norm of U h; state h, c.
//   i, f, o = sigmoid(x + u)   g = tanh(x_g + u_g)   c' = f c + i g
//   h' = o tanh(c'), or with MEMORY h' = o tanh(N(c'))
#pragma once
#include "gated/math.cuh"
#include "gated/setting.cuh"

constexpr int GATES = 4, STATES = 2, JOINED = 4;  // the first JOINED gates depend only on x + u
struct Inside {
  float i, f, g, o, c, q;
};  // c is c', q is the tanh in h'

DEV Inside compute_inside(const float (&x)[GATES], const float (&u)[GATES], const float (&s)[STATES]) {
  const float i = sigmoid(x[0] + u[0]), f = sigmoid(x[1] + u[1]), g = hyperbolic_tangent(x[2] + u[2]),
              c = f * s[1] + i * g;
  return {i, f, g, sigmoid(x[3] + u[3]), c, MEMORY ? 0.f : hyperbolic_tangent(c)};
}
DEV void update_state(float (&s)[STATES], const Inside& in) {
  s[0] = in.o * in.q;
  s[1] = in.c;
}
// Return the gradient of the argument of the tanh q.
DEV float find_memory_gradient(const float (&d)[STATES], const Inside& in) {
  return d[0] * in.o * (1.f - in.q * in.q);
}
// d: gradients of h', c' on entry, of h, c on return; dx, du: gradients of x and u; dc: gradient of c'
// through q.
DEV void backpropagate(float (&d)[STATES], float (&dx)[GATES], float (&du)[GATES], const Inside& in,
                       const float (&s)[STATES], float dc) {
  const float all = d[1] + dc;
  du[0] = all * in.g * in.i * (1.f - in.i);
  du[1] = all * s[1] * in.f * (1.f - in.f);
  du[2] = all * in.i * (1.f - in.g * in.g);
  du[3] = d[0] * in.q * in.o * (1.f - in.o);
#pragma unroll
  for (int k = 0; k < GATES; k++) dx[k] = du[k];
  d[0] = 0.f;
  d[1] = all * in.f;
}
DEV void backpropagate(float (&d)[STATES], float (&dx)[GATES], float (&du)[GATES], const Inside& in,
                       const float (&s)[STATES]) {
  backpropagate(d, dx, du, in, s, find_memory_gradient(d, in));
}
// Compute the factors by which gradients are multiplied, the one for the memory's norm last; backpropagate
// below applies them.
constexpr int FACTORS = 6, MEMORY_FACTOR = 5;
DEV void find_factors(float (&f)[FACTORS], const Inside& in, const float (&s)[STATES]) {
  f[0] = in.g * in.i * (1.f - in.i);
  f[1] = s[1] * in.f * (1.f - in.f);
  f[2] = in.i * (1.f - in.g * in.g);
  f[3] = in.q * in.o * (1.f - in.o);
  f[4] = in.f;
  f[MEMORY_FACTOR] = in.o * (1.f - in.q * in.q);
}
DEV void backpropagate(float (&d)[STATES], float (&dx)[GATES], float (&du)[GATES], const float (&f)[FACTORS],
                       float dc) {
  const float all = d[1] + dc;
#pragma unroll
  for (int k = 0; k < GATES; k++) dx[k] = du[k] = (k < 3 ? all : d[0]) * f[k];
  d[0] = 0.f;
  d[1] = all * f[4];
}
