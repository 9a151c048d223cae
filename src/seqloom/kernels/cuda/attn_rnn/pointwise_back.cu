// Pointwise kernels of one step of the backward pass. Letters as in block_reverse.cu, but u is the input.
#include "attn_rnn/pointwise.cuh"

constexpr int BACK_END_BYTES = ROW_BYTES, BACK_GELU_BYTES = 0, BACK_ATTEND_BYTES = HEAD_BYTES;

struct BackEnd {
  const Element *dy, *g, *n, *scale, *bias, *keep, *mask;
  const float *past, *deviation;
  const int* left;
  // Gradients from the following step, through W_g and W_q: (rows, 2H), (rows, H); or null.
  const Element *before, *query;
  const u8* reset;  // of the following step
  // dh: gradient of the state after this step; acc: of the state before it, without the terms that come
  // through GEMMs.
  float *dh, *dstart, *acc, *dz;
  Element *dg, *dn;
  int step;
};
// Return the gradient of the state between two steps: acc plus the terms from the following step's GEMMs.
DEV float find_state_gradient(i64 at, int row, int i, const BackEnd& a, int after) {
  float dh = a.dh[at];
  if (a.before && after < a.left[row]) {
    const float dseen = get_one(a.before + (i64)row * 2 * H + i) + get_one(a.query + at);
    dh = a.acc[at] + (MASK ? get_one(a.mask + at) * dseen : dseen);
    if constexpr (RESET)
      if (a.reset[row]) {
        a.dstart[at] += dh;
        dh = 0.f;
      }
  }
  return dh;
}
KERNEL(attn_rnn_back_end, BackEnd, WIDE) {
  const i64 row = block();
  const bool valid = a.step >= 0 && a.step < a.left[row];
  float dx[PER], xhat[PER], dn[PER], acc[PER], sum = 0.f, both = 0.f;
#pragma unroll
  for (int k = 0; k < PER; k++) {
    const int i = thread() + WIDE * k;
    const i64 at = row * H + i;
    dx[k] = xhat[k] = dn[k] = acc[k] = 0.f;
    if (i >= H) continue;
    const float dh = find_state_gradient(at, row, i, a, a.step + 1);
    a.dh[at] = dh;
    if (a.step < 0) continue;
    const float dafter = valid ? dh + get_one(a.dy + at) : 0.f, keep = KEEP ? get_one(a.keep + at) : 0.f,
                g = get_one(a.g + at), n = get_one(a.n + at);
    const float rest = KEEP ? dafter * (1.f - keep) : dafter;
    dn[k] = rest * g;
    acc[k] = rest - dn[k] + dafter * keep;
    const float scale = NORM ? get_one(a.scale + i) : 1.f, value = NORM ? n * scale + get_one(a.bias + i) : n;
    put_one(a.dg + at, (value - a.past[at]) * (rest - dn[k]) * g);
    put_one(a.dn + at, dn[k]);
    dx[k] = dn[k] * scale;
    xhat[k] = n;
    sum += dx[k];
    both += dx[k] * n;
  }
  if (a.step < 0) return;
  if constexpr (NORM) sum_row(sum, both);
#pragma unroll
  for (int k = 0; k < PER; k++) {
    const int i = thread() + WIDE * k;
    if (i >= H) continue;
    const i64 at = row * H + i;
    const float dz = NORM ? a.deviation[row] * (dx[k] - sum / H - xhat[k] * (both / H)) : dn[k];
    a.dz[at] = dz;
    a.acc[at] = NORM ? acc[k] + dz : acc[k];
  }
}

struct BackGelu {
  const Element *before, *slope;
  const float* dz;
  Element* ds;
};
KERNEL(attn_rnn_back_gelu, BackGelu, WIDE) {
  for (int i = thread(); i < H; i += WIDE) {
    const i64 at = (i64)block() * H + i;
    put_one(a.ds + at, (a.dz[at] + get_one(a.before + (i64)block() * 2 * H + H + i)) * get_one(a.slope + at));
  }
}

struct BackAttend {
  const Element *v, *u, *q;
  const float *past, *attention;
  float* acc;
  Element *dq, *du;
};
KERNEL(attn_rnn_back_attend, BackAttend, 32 * HEADS * SHARE) {
  const int head = thread() / (32 * SHARE), lane = thread() % (32 * SHARE);
  const i64 row = block(), at = row * H + head * D;
  const float *p = a.attention + (row * HEADS + head) * 4, p0 = p[0], p1 = p[1], p2 = p[2], p3 = p[3];
  float h[PER_LANE], u[PER_LANE], v[PER_LANE], q[PER_LANE], acc[PER_LANE], sh = 0.f, su = 0.f, sp = 0.f;
#pragma unroll
  for (int k = 0; k < PER_LANE; k++) {
    const int i = lane + 32 * SHARE * k;
    h[k] = u[k] = v[k] = q[k] = acc[k] = 0.f;
    if (i < D) {
      h[k] = a.past[at + i];
      u[k] = get_one(a.u + at + i);
      v[k] = get_one(a.v + at + i);
      q[k] = get_one(a.q + row * 2 * H + head * D + i);
      acc[k] = a.acc[at + i];
    }
    sh += v[k] * h[k];
    su += v[k] * u[k];
    sp += v[k] * h[k] * u[k];
  }
  sum_head(sh, su, sp);
  const float root = 1.f / sqrtf((float)D), both = sh + su, mean = p0 * sh + p1 * su + p2 * both + p3 * sp,
              shared = p2 * (both - mean);
  const float zh = root * (p0 * (sh - mean) + shared), zu = root * (p1 * (su - mean) + shared),
              zp = root * p3 * (sp - mean);
#pragma unroll
  for (int k = 0; k < PER_LANE; k++) {
    const int i = lane + 32 * SHARE * k;
    if (i >= D) continue;
    const float product = p3 * v[k] + zp * q[k];
    put_one(a.dq + at + i, zh * h[k] + u[k] * (zu + zp * h[k]));
    put_one(a.du + at + i, (p1 + p2) * v[k] + zu * q[k] + h[k] * product);
    a.acc[at + i] = acc[k] + (p0 + p2) * v[k] + zh * q[k] + u[k] * product;
  }
}
