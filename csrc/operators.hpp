// The operators of the vector machine: each is a function over some rows of n elements.
#pragma once
#include <algorithm>
#include <type_traits>

#include "functions.hpp"

constexpr int64_t BLOCK_BYTES = 2048;  // bytes per register: ten registers fill about half of the L1 cache
template <class T>
constexpr int64_t BLOCK = BLOCK_BYTES / sizeof(T);

// The addresses of a block's operands. A slot is a register, a location in memory or a constant.
template <class T>
struct Frame {
  int64_t rows, n;
  T* const* place;
  const int64_t* by;     // strides between rows
  const int64_t* along;  // strides within a row, for gather and scatter
};

struct Operands {
  int64_t single;  // 1: the result and all operands are single values of a row
                   // (sum across: the operand is a register, which has full vectors)
  int64_t out, a[3];
};

template <class T>
using Run = void (*)(const Frame<T>&, const Operands&);

template <class T>
INLINE V<T> truth(typename Simd<T>::I mask) {
  return pick<T>(mask, all(T(1)), V<T>{});
}

// An operator is a struct with a function of its operands as vectors.
#define UNARY(Name, ...)                                              \
  template <class T>                                                  \
  struct Name {                                                       \
    static constexpr int arity = 1;                                   \
    static INLINE V<T> of(V<T> a, V<T>, V<T>) { return __VA_ARGS__; } \
  };
#define BINARY(Name, ...)                                               \
  template <class T>                                                    \
  struct Name {                                                         \
    static constexpr int arity = 2;                                     \
    static INLINE V<T> of(V<T> a, V<T> b, V<T>) { return __VA_ARGS__; } \
  };
#define TERNARY(Name, ...)                                                \
  template <class T>                                                      \
  struct Name {                                                           \
    static constexpr int arity = 3;                                       \
    static INLINE V<T> of(V<T> a, V<T> b, V<T> c) { return __VA_ARGS__; } \
  };

UNARY(Neg, -a)
UNARY(Abs, absolute(a))
UNARY(Sign, truth<T>(a > T(0)) - truth<T>(a < T(0)))
UNARY(Relu, pick<T>(a < T(0), V<T>{}, a))
UNARY(Sigmoid, exact_sigmoid<T>(a))
UNARY(Tanh, vtanh(a))
UNARY(Exp, exact_exp<T>(a))
UNARY(Logarithm, exact_log<T>(a))
UNARY(Log1p, exact_log1p<T>(a))
UNARY(Expm1, exact_expm1<T>(a))
UNARY(Sqrt, by_lane<T>(a, [](T v) { return std::sqrt(v); }))
UNARY(Rsqrt, T(1) / by_lane<T>(a, [](T v) { return std::sqrt(v); }))
UNARY(Reciprocal, T(1) / a)
UNARY(Sin, exact_sine<T, 0>(a))
UNARY(Cos, exact_sine<T, 1>(a))
UNARY(Sinh, by_lane<T>(a, [](T v) { return std::sinh(v); }))
UNARY(Cosh, by_lane<T>(a, [](T v) { return std::cosh(v); }))
UNARY(Erf, exact_erf(a))
UNARY(Floor, floor_of<T>(a))
UNARY(Ceil, -floor_of<T>(-a))
UNARY(Round, round_of<T>(a))
UNARY(Trunc, pick<T>(a < T(0), -floor_of<T>(-a), floor_of<T>(a)))
UNARY(Not, truth<T>(a == T(0)))
UNARY(Copy, a)

BINARY(Add, a + b)
BINARY(Sub, a - b)
BINARY(Mul, a* b)
BINARY(Div, a / b)
template <class T>
struct Pow {
  static constexpr int arity = 2;
  static INLINE V<T> of(V<T> a, V<T> b, V<T>) {
    T x[N<T>], y[N<T>];
    store(x, a), store(y, b);
    for (int i = 0; i < N<T>; i++) x[i] = std::pow(x[i], y[i]);
    return load(x);
  }
};
BINARY(Maximum, pick<T>((a > b) | (a != a), a, b))
BINARY(Minimum, pick<T>((a < b) | (a != a), a, b))
BINARY(Gt, truth<T>(a > b))
BINARY(Lt, truth<T>(a < b))
BINARY(Ge, truth<T>(a >= b))
BINARY(Le, truth<T>(a <= b))
BINARY(Eq, truth<T>(a == b))
BINARY(Ne, truth<T>(a != b))
BINARY(And, truth<T>((a != T(0)) & (b != T(0))))
BINARY(Or, truth<T>((a != T(0)) | (b != T(0))))
BINARY(SigmoidBackward, a*(T(1) - b) * b)
BINARY(TanhBackward, a*(T(1) - b * b))
BINARY(SigmoidAdd, exact_sigmoid<T>(a + b))
BINARY(TanhAdd, vtanh(a + b))

TERNARY(Where, pick<T>(a != T(0), b, c))
TERNARY(Fma, a* b + c)
TERNARY(MulSub, a* b - c)
TERNARY(SubMul, c - a * b)
TERNARY(SigmoidFma, exact_sigmoid<T>(a* b + c))
TERNARY(TanhFma, vtanh(a* b + c))
TERNARY(AddAdd, a + b + c)
TERNARY(SigmoidAddAdd, exact_sigmoid<T>(a + b + c))
TERNARY(TanhAddAdd, vtanh(a + b + c))

// An operator on rows that are shorter than a vector: they are copied into consecutive lanes.
template <class T>
__attribute__((noinline)) void run_short(const Frame<T>& f, const Operands& at, Run<T> run, int arity,
                                         int scalars) {
  const int64_t width = at.single ? 1 : f.n, count = std::max<int64_t>(N<T>, f.rows * width);
  alignas(64) T room[4][BLOCK<T>];
  T* place[4] = {room[0], room[1], room[2], room[3]};
  const int64_t by[4] = {};
  for (int k = 0; k < arity; k++) {
    const T* from = f.place[at.a[k]];
    T* to = room[k];
    for (int64_t r = 0; r < f.rows; r++, from += f.by[at.a[k]])
      for (int64_t i = 0; i < width; i++) *to++ = from[scalars >> k & 1 ? 0 : i];
    std::fill(to, room[k] + count, T(0));
  }
  run({1, count, place, by, by}, {0, 3, {0, 1, 2}});
  const T* from = room[3];
  T* to = f.place[at.out];
  for (int64_t r = 0; r < f.rows; r++, to += f.by[at.out])
    for (int64_t i = 0; i < width; i++) to[i] = *from++;
}

// The last vector of a row overlaps the previous one, so that none reaches past the row; this is safe because
// a result is never an operand of its own instruction. SCALARS has a bit for each operand that is a single
// value of a row.
template <class T, template <class> class Op, int SCALARS>
void run_operator(const Frame<T>& f, const Operands& at) {
  constexpr int n = N<T>, arity = Op<T>::arity;
  if (at.single || f.n < n) return run_short<T>(f, at, run_operator<T, Op, 0>, arity, SCALARS);
  T* out = f.place[at.out];
  const T* in[3];
  int64_t by[3];
  for (int k = 0; k < arity; k++) in[k] = f.place[at.a[k]], by[k] = f.by[at.a[k]];
  const int64_t last = f.n - n, by_out = f.by[at.out];
  for (int64_t r = f.rows; r > 0; r--) {
    V<T> v[3] = {};
    for (int k = 0; k < arity; k++)
      if (SCALARS >> k & 1) v[k] = all(*in[k]);
    for (int64_t i = 0;;) {
      for (int k = 0; k < arity; k++)
        if (!(SCALARS >> k & 1)) v[k] = load(in[k] + i);
      store(out + i, Op<T>::of(v[0], v[1], v[2]));
      i += n;
      if (i > last) {
        if (i == last + n) break;
        i = last;
      }
    }
    out += by_out;
    for (int k = 0; k < arity; k++) in[k] += by[k];
  }
}

template <class T>
void run_gather(const Frame<T>& f, const Operands& at) {
  const int64_t along = f.along[at.a[0]];
  for (int64_t r = 0; r < f.rows; r++) {
    const T* from = f.place[at.a[0]] + r * f.by[at.a[0]];
    T* to = f.place[at.out] + r * f.by[at.out];
    for (int64_t i = 0; i < f.n; i++) to[i] = from[i * along];
  }
}
template <class T>
void run_scatter(const Frame<T>& f, const Operands& at) {
  const int64_t along = f.along[at.out];
  for (int64_t r = 0; r < f.rows; r++) {
    const T* from = f.place[at.a[0]] + r * f.by[at.a[0]];
    T* to = f.place[at.out] + r * f.by[at.out];
    for (int64_t i = 0; i < f.n; i++) to[i * along] = from[i];
  }
}

// Fewer values than a vector holds, padded to a full one.
template <class T>
struct Padded {
  T t[N<T>];
  INLINE const T* fill(const T* from, int64_t n, T rest = 0) {
    for (int64_t i = 0; i < N<T>; i++) t[i] = i < n ? from[i] : rest;
    return t;
  }
};

// Reductions: the start of a sum, and how two of its values combine.
template <class T>
struct Sum : Add<T> {
  static constexpr T start = 0;
};
template <class T>
struct Most : Maximum<T> {
  static constexpr T start = -INF<T>;
};
template <class T>
struct Least : Minimum<T> {
  static constexpr T start = INF<T>;
};

template <class T, template <class> class Op>
void run_start(const Frame<T>& f, const Operands& at) {  // single: as many lanes as a vector has
  const int64_t width = at.single ? N<T> : f.n;
  for (int64_t r = 0; r < f.rows; r++) std::fill_n(f.place[at.out] + r * f.by[at.out], width, Op<T>::start);
}
// Reduce the values of a row into the lanes of one vector. The lane of a value depends only on n.
template <class T, template <class> class Op>
void run_across(const Frame<T>& f, const Operands& at) {
  Padded<T> room;
  const V<T> start = all(Op<T>::start);
  const int rest = f.n % N<T>;
  for (int64_t r = 0; r < f.rows; r++) {
    const T* from = f.place[at.a[0]] + r * f.by[at.a[0]];
    T* to = f.place[at.out] + r * f.by[at.out];
    V<T> sum = load(to);
    for (int64_t i = 0; i + N<T> <= f.n; i += N<T>) sum = Op<T>::of(sum, load(from + i), sum);
    if (rest && f.n > N<T>)
      sum = Op<T>::of(sum, pick<T>(lanes<T>() < N<T> - rest, start, load(from + f.n - N<T>)), sum);
    else if (rest && at.single)
      sum = Op<T>::of(sum, pick<T>(lanes<T>() < rest, load(from), start), sum);
    else if (rest)
      sum = Op<T>::of(sum, load(room.fill(from, rest, Op<T>::start)), sum);
    store(to, sum);
  }
}
template <class T, template <class> class Op, int W = N<T> / 2>
INLINE T combine_lanes(V<T> v) {
  v = Op<T>::of(v, shuffle<T, Other<W>>(v, v), v);
  if constexpr (W > 1)
    return combine_lanes<T, Op, W / 2>(v);
  else
    return v[0];
}
template <class T, template <class> class Op>
void run_fold(const Frame<T>& f, const Operands& at) {
  for (int64_t r = 0; r < f.rows; r++)
    f.place[at.out][r * f.by[at.out]] = combine_lanes<T, Op>(load(f.place[at.a[0]] + r * f.by[at.a[0]]));
}
// Add the values of every row to the accumulators of their columns.
template <class T, template <class> class Op>
void run_down(const Frame<T>& f, const Operands& at) {
  Padded<T> room;
  for (int64_t r = 0; r < f.rows; r++) {
    const T* from = f.place[at.a[0]] + r * f.by[at.a[0]];
    T* to = f.place[at.out] + r * f.by[at.out];  // full vectors
    int64_t i = 0;
    for (; i + N<T> <= f.n; i += N<T>) store(to + i, Op<T>::of(load(to + i), load(from + i), V<T>{}));
    if (i < f.n) store(to + i, Op<T>::of(load(to + i), load(room.fill(from + i, f.n - i)), V<T>{}));
  }
}

template <class T, template <class> class Op>
Run<T> choose(int scalars) {
  switch (scalars) {
    case 0:
      return run_operator<T, Op, 0>;
    case 1:
      if constexpr (Op<T>::arity > 1 || std::is_same_v<Op<T>, Copy<T>>) return run_operator<T, Op, 1>;
      break;
    case 2:
      if constexpr (Op<T>::arity > 1) return run_operator<T, Op, 2>;
      break;
    case 4:
      if constexpr (Op<T>::arity > 2) return run_operator<T, Op, 4>;
      break;
    case 5:
      if constexpr (Op<T>::arity > 2) return run_operator<T, Op, 5>;
      break;
    case 6:
      if constexpr (Op<T>::arity > 2) return run_operator<T, Op, 6>;
      break;
    case 3:
      if constexpr (Op<T>::arity > 2) return run_operator<T, Op, 3>;
      break;
  }
  return nullptr;
}
template <class T, Run<T> f>
Run<T> always(int) {
  return f;
}

// The kinds of operands of an operator: see ProgramCheck.
enum class Layout { POINTWISE, GATHER, SCATTER, START, ACROSS, FOLD, DOWN };

template <class T>
struct Operator {
  Run<T> (*choose)(int scalars);  // null if it has no such operands
  Layout layout;
  int arity;
};
template <class T, template <class> class Op>
constexpr Operator<T> pointwise{choose<T, Op>, Layout::POINTWISE, Op<T>::arity};
template <class T, Run<T> f, Layout layout>
constexpr Operator<T> move{always<T, f>, layout, 1};

// The table that codes refer to, in the order of OPERATORS in seqloom/kernels/cpu/nest_code.py.
template <class T>
struct Operators {
  static constexpr Operator<T> table[] = {
      pointwise<T, Neg>, pointwise<T, Abs>, pointwise<T, Sign>, pointwise<T, Relu>, pointwise<T, Sigmoid>,
      pointwise<T, Tanh>, pointwise<T, Exp>, pointwise<T, Logarithm>, pointwise<T, Log1p>,
      pointwise<T, Expm1>, pointwise<T, Sqrt>, pointwise<T, Rsqrt>, pointwise<T, Reciprocal>,
      pointwise<T, Sin>, pointwise<T, Cos>, pointwise<T, Sinh>, pointwise<T, Cosh>, pointwise<T, Erf>,
      pointwise<T, Floor>, pointwise<T, Ceil>, pointwise<T, Round>, pointwise<T, Trunc>, pointwise<T, Not>,
      pointwise<T, Copy>,
      //
      pointwise<T, Add>, pointwise<T, Sub>, pointwise<T, Mul>, pointwise<T, Div>, pointwise<T, Pow>,
      pointwise<T, Maximum>, pointwise<T, Minimum>, pointwise<T, Gt>, pointwise<T, Lt>, pointwise<T, Ge>,
      pointwise<T, Le>, pointwise<T, Eq>, pointwise<T, Ne>, pointwise<T, And>, pointwise<T, Or>,
      pointwise<T, SigmoidBackward>, pointwise<T, TanhBackward>,
      //
      pointwise<T, Where>, pointwise<T, Fma>,
      //
      pointwise<T, SigmoidAdd>, pointwise<T, TanhAdd>, pointwise<T, MulSub>, pointwise<T, SubMul>,
      pointwise<T, SigmoidFma>, pointwise<T, TanhFma>, pointwise<T, AddAdd>, pointwise<T, SigmoidAddAdd>,
      pointwise<T, TanhAddAdd>,
      //
      move<T, run_gather<T>, Layout::GATHER>, move<T, run_scatter<T>, Layout::SCATTER>,
      //
      move<T, run_start<T, Sum>, Layout::START>, move<T, run_across<T, Sum>, Layout::ACROSS>,
      move<T, run_fold<T, Sum>, Layout::FOLD>, move<T, run_down<T, Sum>, Layout::DOWN>,
      //
      move<T, run_start<T, Most>, Layout::START>, move<T, run_across<T, Most>, Layout::ACROSS>,
      move<T, run_fold<T, Most>, Layout::FOLD>, move<T, run_down<T, Most>, Layout::DOWN>,
      //
      move<T, run_start<T, Least>, Layout::START>, move<T, run_across<T, Least>, Layout::ACROSS>,
      move<T, run_fold<T, Least>, Layout::FOLD>, move<T, run_down<T, Least>, Layout::DOWN>};
  static constexpr int64_t count = sizeof table / sizeof *table;
};
#undef UNARY
#undef BINARY
#undef TERNARY
