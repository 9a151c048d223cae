// One step of a linear recurrence as a Python function: it reads the tensors, allocates the results and runs
// the step. See bound_step.hpp.
#pragma once
#include "bound_step.hpp"
#include "linear.hpp"

// The torch constants that the function needs: the numbers of its types.
struct BoundLinear {
  const Interface* interface;
  int64_t single, wide, layout;
};

// A contiguous tensor on the CPU of any shape.
struct AnyBound : Bound {
  int64_t dimensions = 0, *sizes = nullptr, numbers = 1;
  int32_t kind = -1;

  bool read(const BoundLinear& bound, Object* object) {
    int32_t place = -1, layout = -1;
    int64_t* strides;
    if (!take(object) || py.layout(handle, &layout) || layout != bound.layout) return false;
    if (py.number_type(handle, &kind) || py.device(handle, &place) || place) return false;
    if (py.dimensions(handle, &dimensions) || py.sizes(handle, &sizes) || py.strides(handle, &strides))
      return false;
    for (int64_t i = dimensions - 1; i >= 0; numbers *= sizes[i--])
      if (sizes[i] != 1 && strides[i] != numbers) return false;
    return has_memory(numbers, kind == bound.wide ? sizeof(double) : sizeof(float));
  }
  bool has(int64_t a, int64_t b, int64_t c, int64_t d) const {
    return dimensions == 4 && sizes[0] == a && sizes[1] == b && sizes[2] == c && sizes[3] == d;
  }
  bool make(int32_t number_type, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t shape[4] = {a, b, c, d}, by[4] = {b * c * d, c * d, d, 1};
    return Bound::make(4, shape, by, number_type);
  }
};

// The results (y, state), or null if run_linear in Python has to handle the arguments.
inline Object* run_bound_linear(const BoundLinear& bound, Object* const* given) {
  const Interface& py = *bound.interface;
  if (!is_plain_mode(py)) return nullptr;
  AnyBound parts[7] = {{{py}}, {{py}}, {{py}}, {{py}}, {{py}}, {{py}}, {{py}}};
  auto &q = parts[0], &k = parts[1], &v = parts[2], &decay = parts[3], &erase = parts[4], &beta = parts[5],
       &state = parts[6];
  const int64_t writes = py.read_int(given[7]);
  if (writes < 1) return nullptr;
  for (int i = 0; i < 7; i++)
    if (given[i] != py.none && !parts[i].read(bound, given[i])) return nullptr;
  if (state.dimensions != 4 || q.dimensions != 4 || v.dimensions != 4) return nullptr;
  const int64_t B = q.sizes[0], T = q.sizes[1], H = q.sizes[2], K = q.sizes[3], V = v.sizes[3];
  const int64_t steps = T * writes, all = B * steps * H, numbers = all * K * V;
  if (!all || !K || !V || numbers > 2 * PER_THREAD) return nullptr;  // larger jobs use several threads
  if (!k.has(B, steps, H, K) || !v.has(B, steps, H, V) || !state.has(B, H, K, V)) return nullptr;
  if (erase.handle && !erase.has(B, steps, H, K)) return nullptr;
  for (auto* gate : {&decay, &beta}) {
    if (!gate->handle) continue;
    const int64_t d = gate->dimensions, last = d == 4 ? gate->sizes[3] : 1;
    if (d < 3 || d > 4 || gate->sizes[0] != B || gate->sizes[1] != steps || gate->sizes[2] != H)
      return nullptr;
    if (last != 1 && (gate == &beta || last != K)) return nullptr;
  }
  if (beta.handle && erase.handle) return nullptr;
  if (state.kind != bound.single && state.kind != bound.wide) return nullptr;
  for (auto& part : parts)
    if (part.handle && part.kind != state.kind) return nullptr;
  const int64_t channels = !decay.handle ? 0 : decay.dimensions == 4 ? decay.sizes[3] : 1;
  AnyBound y{{py}}, end{{py}};
  if (!y.make(state.kind, B, T, H, V) || !end.make(state.kind, B, H, K, V)) return nullptr;
  const LinearArgs args{B,      T,      H,          K,          V,         writes,     channels, q.data,
                        k.data, v.data, decay.data, erase.data, beta.data, state.data, y.data,   end.data};
  try {
    state.kind == bound.wide ? run_linear<double>(args, 1) : run_linear<float>(args, 1);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  Bound* results[2] = {&y, &end};
  return give_results(py, results, 2);
}

// q, k, v, decay, erase, beta, state, writes -> (y, state), or None.
inline Object* call_bound_linear(Object* self, Object* const* arguments, int64_t count) {
  const Interface& py = *python;
  Object* result = nullptr;
  if (count == 8)
    result = run_bound_linear(*(const BoundLinear*)py.read_address(py.tuple_item(self, 0)), arguments);
  if (result) return result;
  py.clear_error();
  py.hold(py.none);
  return py.none;
}

// A Python function. The first item of `owner` is the address of a BoundLinear.
inline Object* bind_linear(const Interface* interface, Object* owner) {
  static Definition definition{"step", call_bound_linear, FASTCALL, nullptr};
  python = interface;
  return interface->new_function(&definition, owner, nullptr);
}
