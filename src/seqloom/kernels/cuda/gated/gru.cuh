// GRU, one unit. x comes from the input; u is U h + b, or with NORM the layer norm of U h.
//   r = sigmoid(x_r + u_r)   z = sigmoid(x_z + u_z)   n = tanh(x_n + r u_n)   h' = n + z (h - n)
#pragma once
#include "gated/math.cuh"

constexpr int GATES = 3, STATES = 1, JOINED = 2;  // the first JOINED gates depend only on x + u
struct Inside {
  float r, z, n, u;
};

DEV Inside compute_inside(const float (&x)[GATES], const float (&u)[GATES], const float (&s)[STATES]) {
  const float r = sigmoid(x[0] + u[0]), z = sigmoid(x[1] + u[1]);
  return {r, z, hyperbolic_tangent(x[2] + r * u[2]), u[2]};
}
DEV void update_state(float (&s)[STATES], const Inside& in) { s[0] = in.n + in.z * (s[0] - in.n); }
// d: gradient of h' on entry, of h on return; dx, du: gradients of x and u.
DEV void backpropagate(float (&d)[STATES], float (&dx)[GATES], float (&du)[GATES], const Inside& in,
                       const float (&s)[STATES]) {
  const float dn = d[0] * (1.f - in.z) * (1.f - in.n * in.n);
  dx[0] = du[0] = dn * in.u * in.r * (1.f - in.r);
  dx[1] = du[1] = d[0] * (s[0] - in.n) * in.z * (1.f - in.z);
  dx[2] = dn;
  du[2] = dn * in.r;
  d[0] *= in.z;
}
// Compute the factors from the gradient of h' to those of x, u and h; backpropagate below applies them.
constexpr int FACTORS = 5;
DEV void find_factors(float (&f)[FACTORS], const Inside& in, const float (&s)[STATES]) {
  const float dn = (1.f - in.z) * (1.f - in.n * in.n);
  f[0] = dn * in.u * in.r * (1.f - in.r);
  f[1] = (s[0] - in.n) * in.z * (1.f - in.z);
  f[2] = dn;
  f[3] = dn * in.r;
  f[4] = in.z;
}
DEV void backpropagate(float (&d)[STATES], float (&dx)[GATES], float (&du)[GATES],
                       const float (&f)[FACTORS]) {
  dx[0] = du[0] = d[0] * f[0];
  dx[1] = du[1] = d[0] * f[1];
  dx[2] = d[0] * f[2];
  du[2] = d[0] * f[3];
  d[0] *= f[4];
}
