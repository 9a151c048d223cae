// Pointwise kernels of AttnRNN between its GEMMs, for one step of a batch or for many steps at once.
#include "attn_rnn/pointwise.cuh"

struct Begin {             // the state before a step, as the products read it
  const float *h, *start;  // (rows, H)
  const Element* mask;     // (rows, H)
  const u8* reset;         // (rows,), of this step
  const int* left;         // (rows,): number of steps that a row has in the chunk
  float* past;             // (rows, H): the state before the step
  Element* seen;
  int step;
};
constexpr int BEGIN_BYTES = 0;
constexpr int BEFORE_BYTES = 0;
constexpr int ATTEND_BYTES = HEAD_BYTES;
constexpr int GELU_BYTES = 0;
constexpr int END_BYTES = ROW_BYTES;

DEV void begin(float h, i64 at, int row, const Begin& b, int step) {
  if constexpr (RESET)
    if (step < b.left[row] && b.reset[row]) h = b.start[at];
  b.past[at] = h;
  put_one(b.seen + at, MASK ? h * get_one(b.mask + at) : h);
}
KERNEL(attn_rnn_begin, Begin, WIDE) {
  for (int i = thread(); i < H; i += WIDE)
    begin(a.h[(i64)block() * H + i], (i64)block() * H + i, block(), a, a.step);
}

// Gather the states before many steps, from step `from` of every row on, and the inputs of these steps.
struct Before {
  const Element *x, *y;     // (B, T, H) with these strides
  const float *h0, *start;  // (B, H)
  const Element* mask;      // (B, H)
  const u8* reset;          // (B, T)
  const i64* lengths;       // (B,), or null
  float* past;              // (B, steps, H), like seen and u
  Element *seen, *u;
  i64 x_row, x_step, y_row, y_step;
  int T, from, steps;
};
KERNEL(attn_rnn_before, Before, EIGHTS) {  // H is a multiple of 8
  const int row = block() / a.steps, t = a.from + block() % a.steps;
  const i64 step = (i64)row * a.T + t, x_at = row * a.x_row + t * a.x_step,
            y_at = row * a.y_row + t * a.y_step;
  const bool is_reset = RESET && a.reset[step], in_length = !a.lengths || t < a.lengths[row];
  for (int i = 8 * thread(); i < H; i += 8 * EIGHTS) {
    const i64 at = (i64)block() * H + i, own = (i64)row * H + i;
    float h[8], x[8] = {}, seen[8];
    // x past a length may be NaN, and 0 * NaN is NaN: replace it with zeros
    if (in_length) get_many(x, a.x + x_at + i);
    if (t && !is_reset)
      get_many(h, a.y + y_at - a.y_step + i);
    else
#pragma unroll
      for (int k = 0; k < 8; k++) h[k] = is_reset ? a.start[own + k] : a.h0[own + k];
#pragma unroll
    for (int k = 0; k < 8; k++) seen[k] = MASK ? h[k] * get_one(a.mask + own + k) : h[k];
#pragma unroll
    for (int k = 0; k < 8; k += 4) {
      const float four[4] = {h[k], h[k + 1], h[k + 2], h[k + 3]};
      put_global(a.past + at + k, four);
    }
    put_many(a.seen + at, seen);
    put_many(a.u + at, x);
  }
}

struct Attend {  // aC from q, the state and the input; a row of (rows, 2H) holds q, then W_gh h
  const Element *q, *u;
  const float* past;
  Element* aC;
  float* attention;  // (rows, HEADS, 4), or null
};
KERNEL(attn_rnn_attend, Attend, 32 * HEADS * SHARE) {
  const int head = thread() / (32 * SHARE), lane = thread() % (32 * SHARE);
  const i64 row = block(), at = row * H + head * D, qat = row * 2 * H + head * D;
  float h[PER_LANE], u[PER_LANE], sh = 0.f, su = 0.f, sp = 0.f;
#pragma unroll
  for (int k = 0; k < PER_LANE; k++) {
    const int i = lane + 32 * SHARE * k;
    h[k] = i < D ? a.past[at + i] : 0.f;
    u[k] = i < D ? get_one(a.u + at + i) : 0.f;
    const float q = i < D ? get_one(a.q + qat + i) : 0.f;
    sh += q * h[k];
    su += q * u[k];
    sp += q * h[k] * u[k];
  }
  sum_head(sh, su, sp);
  const float root = 1.f / sqrtf((float)REAL_D);
  float s[4] = {sh * root, su * root, (sh + su) * root, sp * root}, top = -3.0e38f, sum = 0.f;
#pragma unroll
  for (int j = 0; j < 4; j++)
    if (CONTEXT >> j & 1) top = maximum(top, s[j]);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    s[j] = CONTEXT >> j & 1 ? expf(s[j] - top) : 0.f;
    sum += s[j];
  }
#pragma unroll
  for (int j = 0; j < 4; j++) s[j] /= sum;
#pragma unroll
  for (int k = 0; k < PER_LANE; k++) {
    const int i = lane + 32 * SHARE * k;
    if (i < D) put_one(a.aC + at + i, (s[0] + s[2]) * h[k] + (s[1] + s[2]) * u[k] + s[3] * h[k] * u[k]);
  }
  if (a.attention && lane < 4) a.attention[(row * HEADS + head) * 4 + lane] = s[lane];
}

struct Gelu {
  const Element* s;
  Element *o, *slope;
};  // slope may be null
KERNEL(attn_rnn_gelu, Gelu, EIGHTS) {
  constexpr int MANY = H % 8 == 0 ? 8 : 1;
  for (int i = MANY * thread(); i < H; i += MANY * EIGHTS) {
    const i64 at = (i64)block() * H + i;
    float s[MANY], o[MANY], slope[MANY];
    get_many(s, a.s + at);
#pragma unroll
    for (int k = 0; k < MANY; k++) {
      const float cdf = 0.5f * (1.f + erff(s[k] * ROOT_HALF));
      o[k] = s[k] * cdf;
      slope[k] = cdf + s[k] * expf(-0.5f * s[k] * s[k]) / ROOT_2PI;
    }
    put_many(a.o + at, o);
    if (a.slope) put_many(a.slope + at, slope);
  }
}

// Compute the state after a step, and the operand of the next step's products.
struct End {
  const Element *g, *o, *scale, *bias, *keep;  // g: before the sigmoid; each row of 2H also holds q
  const float* past;
  float* h;               // null when only recomputing intermediates
  Element *y, *gate, *n;  // gate, n: intermediates for the backward pass, or null
  float* deviation;       // (rows,): 1 / deviation
  Begin next;
};
KERNEL(attn_rnn_end, End, WIDE) {
  const i64 row = block();
  float h[PER], o[PER], g[PER], scale[PER], bias[PER], keep[PER], sum = 0.f, square = 0.f;
#pragma unroll
  for (int k = 0; k < PER; k++) {
    const int i = thread() + WIDE * k;
    const i64 at = row * H + i;
    h[k] = o[k] = 0.f;
    if (i >= H) continue;
    h[k] = a.past[at];
    o[k] = get_one(a.o + at);
    g[k] = get_one(a.g + row * 2 * H + i);
    if constexpr (NORM) {
      scale[k] = get_one(a.scale + i);
      bias[k] = get_one(a.bias + i);
    }
    if constexpr (KEEP)
      if (a.h) keep[k] = get_one(a.keep + at);
    sum += o[k] + h[k];
    square += (o[k] + h[k]) * (o[k] + h[k]);
  }
  float mean = 0.f, r = 1.f;
  if constexpr (NORM) {
    // in two passes: in float32, E[z^2] - mean^2 would lose digits by cancellation
    if constexpr (FORMAT == 2) {
      mean = sum_row(sum) / REAL_H;
      square = 0.f;
#pragma unroll
      for (int k = 0; k < PER; k++) {
        const float d = o[k] + h[k] - mean;
        if (thread() + WIDE * k < H) square += d * d;
      }
      r = 1.f / sqrtf((sum_row(square) - PADDING * mean * mean) / REAL_H + 1e-5f);
    } else {
      sum_row(sum, square);
      mean = sum / REAL_H;
      r = 1.f / sqrtf(maximum(square / REAL_H - mean * mean, 0.f) + 1e-5f);
    }
    if (a.deviation && thread() == 0) a.deviation[row] = r;
  }
#pragma unroll
  for (int k = 0; k < PER; k++) {
    const int i = thread() + WIDE * k;
    if (i >= H) continue;
    const i64 at = row * H + i;
    const float gate = 1.f / (1.f + expf(-g[k])), xhat = (o[k] + h[k] - mean) * r,
                n = NORM ? xhat * scale[k] + bias[k] : o[k];
    if (a.gate) {
      put_one(a.gate + at, gate);
      if constexpr (NORM) put_one(a.n + at, xhat);
    }
    if (!a.h) continue;
    float after = h[k] + gate * (n - h[k]);
    if constexpr (KEEP) after += keep[k] * (h[k] - after);
    const bool valid = a.next.step <= a.next.left[row];  // this step is next.step - 1
    if (!valid) after = h[k];
    a.h[at] = after;
    put_one(a.y + at, valid ? after : 0.f);
    begin(after, at, row, a.next, a.next.step);
  }
}
