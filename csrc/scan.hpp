// A cell over time, forward and backward: everything except the equations of the cell. seqloom/core/job.py
// says what a step is: a state that may be reset, the cell, zoneout, and rows that have ended.
//
// A Net is a cell: its weights, packed, and what follows. Rows lie below each other, hp numbers each, `ld`
// apart.
//   STATES, gates()            states (h, or h and c); blocks of H numbers that the input gives
//   record_size, slope_size    numbers that a row saves of a step for the backward; that its gradients inside
//                              a step take
//   pack(team)                 packs the weights
//   compute_inside(m, at)      computes everything of a step, into at.rec
//   finish(m, at)              writes the new states in place of the old
//   backpropagate(m, at)       turns d, gradients of the new states, into those of the old, but for the
//                              product with what is seen of h, whose gradient is put to or added to at.dseen
//                              if at.is_wanted; fills at.slope and at.dx
//   add_weight_gradients(..)   adds up gradients of the weights from at.slope
//   write_gradients(..)        writes all of them to the caller
//
// Threads divide the rows of a batch, each a team of its own, and meet at the end. Or they are one team,
// which divides the columns of every product: each thread reads its share of the weights alone. Then all of
// them run the functions of a Net, each for its columns (at.columns) or its share of the rows, and wait for
// each other where one reads what another wrote. The driver waits after compute_inside, and around
// add_weight_gradients; compute_inside and finish begin when the states are whole, backpropagate when at.d is
// whole in at.columns.
#pragma once
#include <memory>

#include "rows.hpp"

template <class T>
struct StepView {  // some rows at one step, or at several steps in consecutive rows
  Team team;
  Span columns;       // columns of this thread
  T* s[2];            // states before the step
  const T* seen;      // h as the operand of products
  const T* const* x;  // rows of the input, padded
  T *rec, *slope;
  T *d[2], *dseen;  // gradients of the states; of what is seen
  T* const* dx;     // rows of the gradient of the input, tight
  bool add;         // dseen is d[0]
  bool is_wanted;   // whether the gradients of the states before the step are needed
  bool is_first;    // whether this is the first chunk of the backward pass
};

// The team's data of the job besides the cell.
template <class T>
struct Walk {
  const Args& a;
  const Rows& rows;
  int64_t H, hp, ld;

  Walk(const Args& a, const Rows& rows)
      : a(a), rows(rows), H(a.H), hp(padded_size<T>(a.H)), ld(row_stride<T>(a.H)) {}
  int64_t place(int64_t i, int64_t t) const {  // index of row i at the t-th step that is run
    const int64_t step = a.backwards ? rows.length[i] - 1 - t : t;
    return a.time_first ? step * a.B + rows.row[i] : rows.row[i] * a.T + step;
  }
  bool is_reset(int64_t i, int64_t t) const { return a.reset && a.reset[place(i, t)]; }
  const T* first(int k, int64_t i) const {  // null: zeros
    return a.s0[k] ? (const T*)a.s0[k] + rows.row[i] * H : nullptr;
  }
  const T* start(int k, int64_t i) const { return (const T*)a.start[k] + rows.row[i] * H; }
  const T* after(int k, int64_t i, int64_t t) const { return (const T*)(k ? a.c : a.y) + place(i, t) * H; }

  // state k of row i before step t, as saved by the forward pass; null: zeros
  const T* before(int k, int64_t i, int64_t t) const {
    return is_reset(i, t) ? start(k, i) : t ? after(k, i, t - 1) : first(k, i);
  }

  // a row of the input in place, or a padded copy by the thread that owns the row
  const T* input(int64_t i, int64_t t, int64_t gates, T* room, bool own) const {
    const T* x = (const T*)a.x + place(i, t) * gates * H;
    if (H == hp) return x;
    if (own) pad<T>(room, x, gates, H);
    return room;
  }
  // seen = h * mask
  void apply_mask(int64_t i, const T* h, T* seen) const {
    const T* mask = (const T*)a.mask + rows.row[i] * H;
    for (int64_t j = 0; j < H; j++) seen[j] = h[j] * mask[j];
  }
};

// Whether the gradient of the state before step t is needed, by an earlier step or by the caller.
inline bool is_state_wanted(const Args& a, int64_t t) { return t > 0 || a.ds0[0] || a.reset; }

// The part of the gradient of the states that goes through their product with the weights.
template <class T>
inline void pull_back(const T* slope, int64_t slopes, const Packed<T>& Ut, int64_t ld, int64_t m,
                      const StepView<T>& at) {
  if (at.is_wanted) gemm<T>(slope, slopes, Ut, at.dseen, ld, m, nullptr, at.columns, at.add);
}

// A single row with large weights is limited by memory, packed or not: the forward pass then does not pack
// them.
template <class T>
inline bool is_one_row(const Args& a) {
  return a.B == 1 && a.H >= 512 && a.H == padded_size<T>(a.H);
}

// Like torch.lerp: exact at both ends.
template <class T>
inline void zoneout(T* state, const T* previous, const T* keep, Span columns) {
  for (int64_t j = columns.lo; j < columns.hi; j++) {
    const T w = keep[j], gap = previous[j] - state[j];
    state[j] = w < T(0.5) ? state[j] + w * gap : previous[j] - gap * (T(1) - w);
  }
}

// The work of threads: one piece with all rows, which they run together, or one piece for each.
template <class Net, class Piece>
struct Pieces {
  std::vector<std::unique_ptr<Piece>> all;

  Pieces(const Net& net, int threads) {
    const int count = net.a.columns ? 1 : threads;
    for (int part = 0; part < count; part++)
      all.emplace_back(new Piece(net, part, count, net.a.columns ? threads : 1));
  }
  void run(const Team& team) const {
    if (all[0]->a.columns) return all[0]->run(team);
    for (size_t part = team.member; part < all.size(); part += team.size) all[part]->run(Team());
  }
};
