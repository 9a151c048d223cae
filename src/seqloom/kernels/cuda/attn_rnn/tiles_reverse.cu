// Backward pass of AttnRNN over a chunk of steps with tiles of many rows, from recomputed planes. Letters as
// in block_reverse.cu.
#if WGMMA
#include "attn_rnn/tiles_wgmma.cuh"
#else
#include "attn_rnn/tiles_mma.cuh"
#endif

constexpr int OF_GATE = 0, OF_OUTPUT = 1, OF_QUERY = 2;  // indices of the messages: gradients
constexpr int SCALE = 0, BIAS = 1;                       // indices of the parameter vectors
constexpr int TILES_REVERSE_BYTES = TILES_BYTES;

struct TilesReverse : Reverse {
  const u8* packed;                  // the transposed weights, packed by tiles_pack.cu
  const float* units;                // in float32: 1 / scale of every 32 rows of q, o and g
  i64 x_row, x_step, y_row, y_step;  // strides of x and du, and of dy
};

CLUSTER_KERNEL(attn_rnn_tiles_reverse, TilesReverse, THREADS, PAIR) {
  Tiles b(a);
  const int row = b.first + b.row;
  const int of_q = b.unit / 32, of_o = H / 32 + of_q, of_g = 2 * (H / 32) + of_q;
  const Factor of_gate = find_factor(a.packed, a.units, 0, of_g + H / 32, of_g, b),
               of_output = find_factor(a.packed, a.units, 2 * UNITS, of_o, of_o, b),
               of_query = find_factor(a.packed, a.units, 3 * UNITS, of_q, of_q, b);
  float dh[EACH], dstart[EACH] = {}, mask[EACH];
  b.put_constants(SCALE, a.w.scale, NORM);
  b.put_constants(BIAS, a.w.bias, NORM);
  wait_block();
  const i64 at = b.active ? (i64)row * H + b.unit : 0;
#pragma unroll
  for (int e = 0; e < EACH; e++) dh[e] = b.active ? a.dh[at + e] : 0.f;
  load_pairs(mask, a.mask + at, MASK && b.active);
  int length, end;
  b.read_lengths(length, end, a.lengths, a.T);
  // Step 0 of this row: in tensors of all steps, and in tensors of the chunk's steps.
  const i64 whole = b.active ? (i64)row * a.T : 0, piece = b.active ? (i64)row * a.steps - a.from : 0;
  const int last = a.from + a.steps - 1, top = end - 1 < last ? end - 1 : last;
  if (b.active)
    for (int t = last; t > top && t >= a.from; t--) {  // zeros past the longest row of the group
      const float zeros[EACH] = {};
      const i64 j = (piece + t) * H + b.unit;
      store_units(a.du + row * a.x_row + t * a.x_step + b.unit, zeros);
      store_units(a.dn + j, zeros);
      store_units(a.dg + j, zeros);
      store_units(a.ds + j, zeros);
      store_units(a.dq + j, zeros);
    }
  if (top >= a.from) {
    b.load_resident(of_gate, of_output, of_query);
    b.prepare<2 * UNITS>(of_gate);
  }
  const float root = 1.f / sqrtf((float)REAL_D);
#pragma unroll 1
  for (int t = top; t >= a.from; t--) {
    const bool valid = b.active && t < length;
    const i64 k = valid ? piece + t : 0, j = k * H + (valid ? b.unit : 0), offset = (piece + t) * H + b.unit,
              of_x = row * a.x_row + t * a.x_step + b.unit, of_y = row * a.y_row + t * a.y_step + b.unit;
    float h[EACH], x[EACH], acc[EACH], dx[EACH], n[EACH], slope[EACH], back[EACH], deviation = 0.f;
    {
      float dn[EACH], dgate[EACH], g[EACH], keep[EACH], sum = 0.f, both = 0.f, dy[EACH], scale[EACH],
                                                        bias[EACH];
      b.get_constants(scale, SCALE);
      b.get_constants(bias, BIAS);
      load_units(dy, a.dy + of_y, valid);
      load_units(g, a.g + j, valid);
      load_units(n, a.n + j, valid);
      if constexpr (KEEP) load_pairs(keep, a.keep + (whole + t) * H + b.unit, valid);
      load_floats(h, a.past + j, valid);
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        const float dafter = t < length ? dy[e] + dh[e] : 0.f,
                    rest = KEEP ? dafter * (1.f - keep[e]) : dafter;
        dn[e] = rest * g[e];
        acc[e] = KEEP ? rest - dn[e] + dafter * keep[e] : rest - dn[e];
        dgate[e] = ((NORM ? n[e] * scale[e] + bias[e] : n[e]) - h[e]) * (rest - dn[e]) * g[e];
        dx[e] = NORM ? dn[e] * scale[e] : dn[e];
        sum += dx[e];
        both += dx[e] * n[e];
      }
      b.put_numbers(OF_GATE, dgate);
      if constexpr (NORM) b.put_moments(b.sum_row(sum), b.sum_row(both));
      b.announce();
      if (t < top) b.prepare<2 * UNITS>(of_gate);
      if (b.active) {
        store_units(a.dg + offset, dgate);
        store_units(a.dn + offset, dn);
      }
    }
    load_units(slope, a.slope + j, valid);
    load_units(x, a.x + of_x, valid);
    if constexpr (NORM) deviation = valid ? a.deviation[k] : 0.f;
    b.await_all();
    float sums[BLOCKS / SHARE], products[BLOCKS / SHARE], ds[EACH];
    if constexpr (NORM) b.get_moments(sums, products);
    b.multiply<2 * UNITS>(OF_GATE, of_gate);
    b.get_sum<2 * UNITS>(ds, of_gate.unit[0]);
    b.get_sum<2 * UNITS>(back, of_gate.unit[1], UNITS);
    if constexpr (NORM) {
      float mean = 0.f, both = 0.f;
#pragma unroll
      for (int m = 0; m < BLOCKS / SHARE; m++) {
        mean += sums[m];
        both += products[m];
      }
      mean = b.sum_row(mean) * (1.0f / REAL_H);
      both = b.sum_row(both) * (1.0f / REAL_H);
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        dx[e] = deviation * (dx[e] - mean - n[e] * both);
        acc[e] += dx[e];
      }
    }
#pragma unroll
    for (int e = 0; e < EACH; e++) ds[e] = (ds[e] + dx[e]) * slope[e];
    b.put_numbers(OF_OUTPUT, ds);
    b.announce();
    b.prepare<UNITS>(of_output);
    if (b.active) store_units(a.ds + offset, ds);
    float q[EACH], weight[4];
    load_units(q, a.q + j + k * H, valid);
#pragma unroll
    for (int m = 0; m < 4; m++) weight[m] = valid ? a.attention[(k * HEADS + b.unit / D) * 4 + m] : 0.f;
    b.await_all();
    b.multiply<UNITS>(OF_OUTPUT, of_output);
    {
      float v[EACH], p[3] = {}, s[3], dq[EACH], du[EACH];
      b.get_sum<UNITS>(v, of_output.unit[0]);
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        p[0] += v[e] * h[e];
        p[1] += v[e] * x[e];
        p[2] += v[e] * (h[e] * x[e]);
      }
      b.put_scores(p, top - t + 1);
      b.prepare<UNITS>(of_query);
      b.get_scores(s, top - t + 1);
      const float two = s[0] + s[1],
                  mid = weight[0] * s[0] + weight[1] * s[1] + weight[2] * two + weight[3] * s[2],
                  shared = weight[2] * (two - mid);
      const float zh = root * (weight[0] * (s[0] - mid) + shared),
                  zx = root * (weight[1] * (s[1] - mid) + shared), zp = root * weight[3] * (s[2] - mid);
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        const float product = weight[3] * v[e] + zp * q[e];
        dq[e] = zh * h[e] + x[e] * (zx + zp * h[e]);
        acc[e] += (weight[0] + weight[2]) * v[e] + zh * q[e] + x[e] * product;
        du[e] = (weight[1] + weight[2]) * v[e] + zx * q[e] + h[e] * product;
      }
      b.put_numbers(OF_QUERY, dq);
      b.announce();
      if (b.active) {
        store_units(a.dq + offset, dq);
        store_units(a.du + of_x, du);
      }
    }
    b.await_all();
    b.multiply<UNITS>(OF_QUERY, of_query);
    float dseen[EACH];
    b.get_sum<UNITS>(dseen, of_query.unit[0]);
    const bool is_reset = RESET && valid && a.reset[whole + t];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      dseen[e] += back[e];
      acc[e] += MASK ? mask[e] * dseen[e] : dseen[e];
      if (is_reset) {
        dstart[e] += acc[e];
        acc[e] = 0.f;
      }
      dh[e] = t < length ? acc[e] : dh[e];
    }
  }
  b.end();
  if (b.active)
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      a.dh[at + e] = dh[e];
      if constexpr (RESET) a.dstart[at + e] += dstart[e];
    }
}
