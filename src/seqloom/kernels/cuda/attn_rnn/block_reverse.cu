// Backward pass of AttnRNN over a chunk of steps, from the intermediates that block_inside.cu recomputed. d
// before a letter denotes the gradient of the loss with respect to it; du is that of the input x.
//   dn = g dh'   dg = dh' (n - h) g (1 - g)   dz = LayerNorm'(dn)   ds = (dz + W_go^T dg) gelu'(s)
//   v = W_o^T ds   da = v [h, x, h + x, h * x]   dscore = softmax'(da)
//   dq from dscore   du, dh from v and dscore
//   dh += W_q^T dq + W_gh^T dg
#include "attn_rnn/reverse.cuh"

constexpr int SUM_PLACES = WHOLE_WARPS ? 2 : 4;  // distinct sums over heads in a C fragment
constexpr int AT_RING = AT_SUMS + SUMS;
constexpr int AUX_ROW = 4 * AUX;
constexpr int STAGE = STREAMS * SEQUENCE + 8 * AUX_ROW;
constexpr int REVERSE_BYTES = AT_RING + RING * STAGE;

KERNEL(attn_rnn_reverse, BlockReverse, THREADS) {
  const Lane l;
  const u32 memory = shared_memory();
  const int first = 8 * block();
  u32 Wq[TILES][4], Wh[TILES][4], Wo[TILES][4], Wc[TILES][4];
  load_weight_transposed(Wq, a.w.q, H, l);
  load_weight_transposed(Wh, a.w.g, 2 * H, l);
  load_weight_transposed(Wo, a.w.o, H, l);
  load_weight_transposed(Wc, a.w.g + H, 2 * H, l);
  float scale[2], bias[2], dh[4], dstart[4] = {}, mask[4];
  if constexpr (NORM) {
    load_vector(scale, a.w.scale, l);
    load_vector(bias, a.w.bias, l);
  }
  int column[2], length[2];
  load_rows(column, length, dh, mask, a.dh, a, l);
  // Each half of the block loads one of a pair of streams; some threads also load aux.
  const bool second = l.thread >= H;
  const int fetch_index = second ? l.thread - H : l.thread, fetch_row = fetch_index / (H / 8),
            part = fetch_index % (H / 8) * 8;
  const int b = first + fetch_row < a.B ? first + fetch_row : 0;
  const int fetch_length = first + fetch_row >= a.B ? 0 : a.lengths ? (int)a.lengths[b] : a.T;
  // offsets of the row's step 0 in (B, T, H), and in (B, steps, H), which begins at step a.from
  const i64 whole = (i64)b * a.T * H + part, piece = ((i64)b * a.steps - a.from) * H + part;
  auto fetch = [&](int t) {
    if (t >= a.from) {
      const u32 stage = memory + AT_RING + t % RING * STAGE,
                to = stage + (second ? SEQUENCE : 0) + fetch_row * ROW + part * 2;
      const int bytes = t < fetch_length ? 16 : 0;
      const i64 whole_at = whole + (i64)t * H, piece_at = piece + (i64)t * H;
      const u16* past = t == 0 ? a.h0 + (i64)b * H + part : a.y + whole_at - H;
      if constexpr (RESET)
        if (t < fetch_length && a.reset[(i64)b * a.T + t]) past = a.start + (i64)b * H + part;
      cp_async16(to, (second ? a.x : a.dy) + whole_at, bytes);
      cp_async16(to + 2 * SEQUENCE, (second ? a.g : a.q) + piece_at, bytes);
      cp_async16(to + 4 * SEQUENCE, (second ? a.slope : a.n) + piece_at, bytes);
      if (KEEP || !second) cp_async16(to + 6 * SEQUENCE, second ? a.keep + whole_at : past, bytes);
#pragma unroll
      for (int i = 0; i < (8 * (HEADS + 1) + THREADS - 1) / THREADS; i++) {
        const int k = l.thread + i * THREADS, r = k / (HEADS + 1), column = k % (HEADS + 1);
        const bool active = first + r < a.B;
        if (k < 8 * (HEADS + 1))
          cp_async16(stage + STREAMS * SEQUENCE + r * AUX_ROW + column * 16,
                     a.aux + ((i64)(active ? first + r : 0) * a.steps + t - a.from) * AUX + 4 * column,
                     active ? 16 : 0);
      }
    }
    cp_async_commit();
  };
  const int row = first + l.row;
  const i64 base = row < a.B ? ((i64)row * a.steps - a.from) * H + 16 * l.warp + 2 * l.pair : 0;
  const i64 whole_base = row < a.B ? (i64)row * a.T * H + 16 * l.warp + 2 * l.pair : 0;
  auto put = [&](u16* to, const u32(&p)[2]) {
    const u32 v = transpose(p[0]), w = transpose(p[1]);
    if (row < a.B) {
      put_global(to, v);
      put_global(to + 8, w);
    }
  };
  const int last = a.from + a.steps - 1;
#pragma unroll
  for (int i = 0; i < RING - 1; i++) fetch(last - i);
  cp_async_wait<RING - 2>();
  wait_block();
  const float zero[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll 1
  for (int t = last; t >= a.from; t--) {
    const u32 stage = memory + AT_RING + t % RING * STAGE;
    const i64 offset = base + (i64)t * H;
    u32 v[2], xp[2], qp[2], slope_p[2];
    float h[4], g[4], n[4], dnew[4], dn[4], dx[4], dgate[4], acc[4];
    load_sequence(v, stage + DY * SEQUENCE, l);
    widen(dnew, v);
    load_sequence(v, stage + PAST * SEQUENCE, l);
    widen(h, v);
    load_sequence(v, stage + G * SEQUENCE, l);
    widen(g, v);
    load_sequence(v, stage + N_ * SEQUENCE, l);
    widen(n, v);
    load_sequence(slope_p, stage + SLOPE * SEQUENCE, l);
    load_sequence(xp, stage + X * SEQUENCE, l);
    load_sequence(qp, stage + Q * SEQUENCE, l);
    float keep[4];
    if constexpr (KEEP) {
      load_sequence(v, stage + KEEP_STREAM * SEQUENCE, l);
      widen(keep, v);
    }
    bool is_reset[2] = {false, false};
    if constexpr (RESET)
#pragma unroll
      for (int c = 0; c < 2; c++) is_reset[c] = t < length[c] && a.reset[(i64)column[c] * a.T + t];
    fetch(t - (RING - 1));  // its ring slot was last read in step t + 1, before that step's last barrier
    back_end(dn, dgate, dx, acc, dnew, dh, keep, g, n, h, scale, bias, length, t);
    u32 dgp[2], dnp[2], dsp[2], dqp[2];
    narrow(dgp, dgate);
    narrow(dnp, dn);
    narrow(v, dx);
    store_buffer(memory + AT_DG, dgp[0], dgp[1], l);
    if constexpr (NORM) store_buffer(memory + AT_DN, v[0], v[1], l);
    wait_block();
    float ds[4], back[4];
    {
      u32 b[TILES][2];
      load_buffer(b, memory + AT_DG, l);
      multiply<4>(ds, zero, Wc, b);
      multiply<2>(back, zero, Wh, b);
      put(a.dn + offset, dnp);
    }
    if constexpr (NORM) {  // {xhat^T; ones} dx: the diagonal has the sums of xhat dx, rows 8..15 those of dx
      float sums[2][4] = {};
      u32 d[TILES][2];
      load_buffer(d, memory + AT_DN, l);
#pragma unroll
      for (int k = 0; k < TILES; k += 2) {
        const u32 at = stage + N_ * SEQUENCE + (l.lane & 7) * ROW + (l.lane >> 3) * 16 + k * 32;
        u32 e[4];
        if (k + 1 < TILES)
          load4(e[0], e[1], e[2], e[3], at);
        else
          load2(e[0], e[1], stage + N_ * SEQUENCE + (l.lane & 7) * ROW + (l.lane >> 3 & 1) * 16 + k * 32);
        mma<TYPE>(sums[0], e[0], ONES, e[1], ONES, d[k][0], d[k][1]);
        if (k + 1 < TILES)
          mma<TYPE>(sums[1], e[2], ONES, e[3], ONES, d[k + 1 < TILES ? k + 1 : k][0],
                    d[k + 1 < TILES ? k + 1 : k][1]);
      }
      back_norm(dx, acc, sums, n, stage + STREAMS * SEQUENCE + 2 * l.pair * AUX_ROW + 16 * HEADS, AUX_ROW, l);
    }
    float slope[4];
    widen(slope, slope_p);
    back_gelu(ds, acc, dx, dn, slope, mask, back);
    narrow(dsp, ds);
    store_buffer(memory + AT_DS, dsp[0], dsp[1], l);
    wait_block();
    float vC[4], x[4], q[4], p[3][4], sum[3][SUM_PLACES];
    {
      u32 b[TILES][2];
      load_buffer(b, memory + AT_DS, l);
      put(a.dg + offset, dgp);
      multiply<4>(vC, zero, Wo, b);
    }
    widen(x, xp);
    widen(q, qp);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      p[0][i] = vC[i] * h[i];
      p[1][i] = vC[i] * x[i];
      p[2][i] = vC[i] * (h[i] * x[i]);
    }
    sum_heads_at(sum, p, memory + AT_SUMS, l);
    // w, z: coefficients of v and q in dh (0), in du (1) and in `both` (2), the factor of x in dh and of
    // h in du.
    float w[3][SUM_PLACES], z[3][SUM_PLACES];
#pragma unroll
    for (int i = 0; i < SUM_PLACES; i++) {
      float at[4];
      get_shared(at,
                 stage + STREAMS * SEQUENCE + (2 * l.pair + (i & 1)) * AUX_ROW + 16 * (l.unit[i >> 1] / D));
      const float root = inverse_root((float)REAL_D), both = sum[0][i] + sum[1][i];
      const float mean = at[0] * sum[0][i] + at[1] * sum[1][i] + at[2] * both + at[3] * sum[2][i],
                  shared = at[2] * (both - mean);
      z[0][i] = root * (at[0] * (sum[0][i] - mean) + shared);
      z[1][i] = root * (at[1] * (sum[1][i] - mean) + shared);
      z[2][i] = root * at[3] * (sum[2][i] - mean);
      w[0][i] = at[0] + at[2];
      w[1][i] = at[1] + at[2];
      w[2][i] = at[3];
    }
    float dq[4], du4[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int k = i % SUM_PLACES;
      dq[i] = z[0][k] * h[i] + x[i] * (z[1][k] + z[2][k] * h[i]);
      const float both = w[2][k] * vC[i] + z[2][k] * q[i];
      acc[i] += w[0][k] * vC[i] + z[0][k] * q[i] + x[i] * both;
      du4[i] = w[1][k] * vC[i] + z[1][k] * q[i] + h[i] * both;
    }
    narrow(dqp, dq);
    store_buffer(memory + AT_DQ, dqp[0], dqp[1], l);
    cp_async_wait<RING - 2>();
    wait_block();
    {
      u32 b[TILES][2];
      load_buffer(b, memory + AT_DQ, l);
      narrow(v, du4);
      put(a.ds + offset, dsp);
      put(a.dq + offset, dqp);
      put(a.du + whole_base + (i64)t * H, v);
      back_query(acc, mask, Wq, b);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if constexpr (RESET)
        if (is_reset[i & 1]) {
          dstart[i] += acc[i];
          acc[i] = 0.f;
        }
      dh[i] = t < length[i & 1] ? acc[i] : dh[i];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const i64 at = (i64)column[i & 1] * H + l.unit[i >> 1];
    if (column[i & 1] < a.B) {
      a.dh[at] = dh[i];
      if constexpr (RESET) a.dstart[at] += dstart[i];
    }
  }
}
