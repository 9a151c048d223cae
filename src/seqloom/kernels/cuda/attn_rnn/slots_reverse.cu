// Backward pass of AttnRNN with slots over a chunk of steps, from the values that slots_inside.cu recomputes.
// Letters as in block_reverse.cu. The attention is recomputed from q, h and x, which is cheaper than loading
// it.
#include "attn_rnn/reverse.cuh"
#include "attn_rnn/slots.cuh"

constexpr int AT_RING = AT_SUMS + SCORES;
constexpr int STAGE = STREAMS * SEQUENCE + 8 * 16, SLOTS_REVERSE_BYTES = AT_RING + RING * STAGE;

KERNEL(attn_rnn_slots_reverse, BlockReverse, THREADS) {
  const Lane l;
  const u32 memory = shared_memory();
  const int first = USED_COLUMNS * block(), slots = a.B * SLOTS;
  u32 Wq[TILES][4], Wh[TILES][4], Wo[TILES][4], Wc[TILES][4];
  load_weight_transposed(Wq, a.w.q, H, l);
  load_weight_transposed(Wh, a.w.g, 2 * H, l);
  load_weight_transposed(Wo, a.w.o, H, l);
  load_weight_transposed(Wc, a.w.g + H, 2 * H, l);
  float scale[2], bias[2], dh[4], mask[4];
  if constexpr (NORM) {
    load_vector(scale, a.w.scale, l);
    load_vector(bias, a.w.bias, l);
  }
  int slot[2], length[2];
  load_slots(slot, length, dh, mask, a.dh, a, l);
  // Each half of the block loads one of each pair of streams: of sequence `fetch_row`, or of slot
  // `fetch_row`.
  const bool second = l.thread >= H;
  const int fetch_index = second ? l.thread - H : l.thread, fetch_row = fetch_index / (H / 8),
            part = fetch_index % (H / 8) * 8;
  auto find_length = [&](bool active, int row) {
    return !active ? 0 : a.lengths ? (int)a.lengths[row] : a.T;
  };
  const bool row_active = fetch_row < SEQS && first / SLOTS + fetch_row < a.B,
             slot_active = fetch_row < USED_COLUMNS && first + fetch_row < slots;
  const int row = row_active ? first / SLOTS + fetch_row : 0,
            fetch_slot = slot_active ? first + fetch_row : 0, slot_row = fetch_slot / SLOTS;
  const int row_length = find_length(row_active, row), slot_length = find_length(slot_active, slot_row);
  // Offset of step 0: in tensors of all steps, and in tensors of the chunk's steps (counted in slots).
  const i64 whole = ((i64)slot_row * a.T * SLOTS + fetch_slot % SLOTS) * H + part,
            piece = ((i64)slot_row * a.steps - a.from) * SLOTS + fetch_slot % SLOTS;
  auto fetch = [&](int t) {
    if (t >= a.from) {
      const u32 stage = memory + AT_RING + t % RING * STAGE,
                to = stage + (second ? SEQUENCE : 0) + fetch_row * ROW + part * 2;
      const int bytes = t < slot_length ? 16 : 0;
      const i64 whole_at = whole + (i64)t * SLOTS * H, piece_at = piece + (i64)t * SLOTS;
      const u16* past = t == 0 ? a.h0 + (i64)fetch_slot * H + part : a.y + whole_at - SLOTS * H;
      if constexpr (RESET)
        if (t < slot_length && a.reset[(i64)slot_row * a.T + t]) past = a.start + (i64)fetch_slot * H + part;
      if (fetch_row < SEQS)
        cp_async16(to, (second ? a.x : a.dy) + ((i64)row * a.T + t) * H + part, t < row_length ? 16 : 0);
      cp_async16(to + 2 * SEQUENCE, (second ? a.g : a.q) + piece_at * H + part, bytes);
      cp_async16(to + 4 * SEQUENCE, (second ? a.slope : a.n) + piece_at * H + part, bytes);
      if (KEEP || !second) cp_async16(to + 6 * SEQUENCE, second ? a.keep + whole_at : past, bytes);
      if (NORM && !second && part == 0)
        cp_async16(stage + STREAMS * SEQUENCE + fetch_row * 16, a.aux + piece_at * 4, slot_active ? 16 : 0);
    }
    cp_async_commit();
  };
  const bool active = l.row < USED_COLUMNS && first + l.row < slots, is_leader = active && l.row % SLOTS == 0;
  const i64 base =
      active ? (((i64)((first + l.row) / SLOTS) * a.steps - a.from) * SLOTS + (first + l.row) % SLOTS) * H +
                   16 * l.warp + 2 * l.pair
             : 0;
  const i64 whole_base = active ? (i64)((first + l.row) / SLOTS) * a.T * H + 16 * l.warp + 2 * l.pair : 0;
  auto put = [&](u16* to, const u32(&p)[2], bool valid) {
    const u32 v = transpose(p[0]), w = transpose(p[1]);
    if (valid) {
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
    const i64 offset = base + (i64)t * SLOTS * H;
    auto load = [&](float (&to)[4], int stream) {  // reload at each use: registers are scarce
      u32 p[2];
      if (stream == DY || stream == X)
        load_common(p, stage + stream * SEQUENCE, l);
      else
        load_sequence(p, stage + stream * SEQUENCE, l);
      widen(to, p);
    };
    u32 v[2], hp[2], transposed[2];
    float h[4], x[4], q[4], n[4], dn[4], dx[4], acc[4], g[4], dnew[4], dgate[4], keep[4];
    load(dnew, DY);
    load(h, PAST);
    load(g, G);
    load(n, N_);
    load(q, Q);
    load(x, X);
    if constexpr (KEEP) load(keep, KEEP_STREAM);
    bool is_reset[2] = {false, false};
    if constexpr (RESET)
#pragma unroll
      for (int c = 0; c < 2; c++) is_reset[c] = t < length[c] && a.reset[(i64)(slot[c] / SLOTS) * a.T + t];
    back_end(dn, dgate, dx, acc, dnew, dh, keep, g, n, h, scale, bias, length, t);
    u32 dgp[2], dnp[2], dsp[2], dqp[2];
    narrow(dgp, dgate);
    narrow(dnp, dn);
    narrow(v, dx);
    store_buffer(memory + AT_DG, dgp[0], dgp[1], l);
    if constexpr (NORM) store_buffer(memory + AT_DN, v[0], v[1], l);
    fetch(t - (RING - 1));  // its stage was read in step t + 1, before that step's last barrier
    Rows w[WARP_HEADS], z[WARP_HEADS];
    float both[WARP_HEADS][2];
    narrow_finite(hp, h);
    transpose_both(transposed, hp);
    score(w, q, x, transposed, l);
    if constexpr (SPLIT_HEADS) put_scores(w, memory + AT_SUMS, l);
    wait_block();
    float ds[4], back[4];
    {
      u32 b[TILES][2];
      load_buffer(b, memory + AT_DG, l);
      multiply<4>(ds, zero, Wc, b);
      multiply<2>(back, zero, Wh, b);
      put(a.dn + offset, dnp, active);
    }
    if constexpr (NORM) {  // the product {xhat^T; ones} dx, see back_norm
      float sums[2][4] = {};
      u32 d[TILES][2];
      load(n, N_);
      load_buffer(d, memory + AT_DN, l);
#pragma unroll
      for (int k = 0; k < TILES; k++) {
        u32 e[2];
        load2(e[0], e[1], stage + N_ * SEQUENCE + (l.lane & 7) * ROW + (l.lane >> 3 & 1) * 16 + k * 32);
        mma<TYPE>(sums[k & 1], e[0], ONES, e[1], ONES, d[k][0], d[k][1]);
      }
      back_norm(dx, acc, sums, n, stage + STREAMS * SEQUENCE + 2 * l.pair * 16, 16, l);
    }
    float slope[4];
    load(slope, SLOPE);
    back_gelu(ds, acc, dx, dn, slope, mask, back);
    narrow(dsp, ds);
    store_buffer(memory + AT_DS, dsp[0], dsp[1], l);
    if constexpr (SPLIT_HEADS) get_scores(w, memory + AT_SUMS, l);
#pragma unroll
    for (int k = 0; k < WARP_HEADS; k++) {
      const Rows s = w[k];
      attend(w[k], both[k], s, l);
    }
    wait_block();
    float vC[4], dq[4] = {}, dh_direct[4] = {}, dh_times_x[4] = {}, du[4] = {};
    {
      u32 b[TILES][2];
      load_buffer(b, memory + AT_DS, l);
      put(a.dg + offset, dgp, active);
      multiply<4>(vC, zero, Wo, b);
    }
    load(x, X);
    load(h, PAST);
    narrow_finite(hp, h);
    transpose_both(transposed, hp);
    score(z, vC, x, transposed, l);
    if constexpr (SPLIT_HEADS) {
      put_scores(z, memory + AT_SUMS, l);
      wait_head(l);
      get_scores(z, memory + AT_SUMS, l);
    }
    u32 vp[2], qp[2], hxp[2];
    float hx[4];
#pragma unroll
    for (int i = 0; i < 4; i++) hx[i] = h[i] * x[i];
    narrow_finite(hxp, hx);
#pragma unroll
    for (int k = 0; k < WARP_HEADS; k++) {
      const Rows s = z[k];
      attend_back(z[k], w[k], both[k], s, l);
      mix(dq, z[k], hp, hxp, x, k, l);
    }
    narrow(dqp, dq);
    store_buffer(memory + AT_DQ, dqp[0], dqp[1], l);
    load(q, Q);
    narrow_finite(vp, vC);
    narrow_finite(qp, q);
#pragma unroll
    for (int k = 0; k < WARP_HEADS; k++) {  // off the critical path: dq is already stored
      mix_back(dh_direct, w[k].h, z[k].h, vp, qp, k, l);
      mix_back(dh_times_x, w[k].p, z[k].p, vp, qp, k, l);
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const float with_v = read_query(w[k].x, l, c), with_q = read_query(z[k].x, l, c);
#pragma unroll
        for (int i = c; i < 4; i += 2)
          du[i] += mask_unit(l, k, l.unit[i >> 1]) ? with_v * vC[i] + with_q * q[i] : 0.f;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      acc[i] += dh_direct[i] + x[i] * dh_times_x[i];
      du[i] += h[i] * dh_times_x[i];
    }
    cp_async_wait<RING - 2>();
    wait_block();
    {
      u32 b[TILES][2];
      load_buffer(b, memory + AT_DQ, l);
      back_query(acc, mask, Wq, b);
      float sum[4];
      sum_slots(sum, du, l);
      narrow(v, sum);
      put(a.ds + offset, dsp, active);
      put(a.dq + offset, dqp, active);
      put(a.du + whole_base + (i64)t * H, v, is_leader);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if constexpr (RESET)
        if (is_reset[i & 1]) {
          a.dstart[(i64)slot[i & 1] * H + l.unit[i >> 1]] += acc[i];
          acc[i] = 0.f;
        }
      dh[i] = t < length[i & 1] ? acc[i] : dh[i];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
    if (slot[i & 1] >= 0) a.dh[(i64)slot[i & 1] * H + l.unit[i >> 1]] = dh[i];
}
