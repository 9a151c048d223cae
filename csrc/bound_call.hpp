// Looks up the plan of a layer's call, as a Python function: it compares the layer, its weights, the input
// and the states with those of earlier calls, in 2 us instead of 10 to 20 us in Python. See
// layers/recurrent/plans.py.
#pragma once
#include "bound_step.hpp"

// A cell: its __dict__, the number of items in it, and its settings.
struct BoundCell {
  Object* own;
  int64_t items;
  Settings settings;
};

// Calls of one kind, and the object that Python registered for them. All tensors are contiguous.
struct CallKind {
  int64_t train;
  Form x, h[2];
  Object* call;
};

// A layer, and the kinds of its calls.
struct BoundLayer {
  const Interface* interface;
  Kind kind;  // properties of all tensors
  int64_t states, weights, cells, modules;
  const uint64_t* addresses;  // addresses of the weights: of the layer's dict, then of the dicts of modules
  const Form* forms;
  Object* const* parameters;  // the _parameters of each module inside the cells
  Settings settings;
  const BoundCell* each_cell;
  const CallKind* calls;
  int64_t count;
};

// Whether the settings of the layer and its cells are the same objects as before.
inline bool has_same_settings(const BoundLayer& layer, Object* own) {
  const Interface& py = *layer.interface;
  if (!has_settings(py, own, layer.settings)) return false;
  for (int64_t i = 0; i < layer.cells; i++) {
    const BoundCell& cell = layer.each_cell[i];
    if (py.count_items(cell.own) != cell.items || !has_settings(py, cell.own, cell.settings)) return false;
  }
  return true;
}

// The object that Python registered for this call, or null.
inline Object* find_call(const BoundLayer& layer, Object* own, Object* input, Object* state) {
  const Interface& py = *layer.interface;
  if (!has_same_settings(layer, own) || !is_plain_context(py)) return nullptr;
  bool needs_gradient = false;
  const auto look = [&](const Bound& t) { needs_gradient |= py.requires_gradient(*(void**)t.handle); };
  Bound x{py}, before[2] = {{py}, {py}}, loaded{py};
  if (!x.read(layer.kind, input)) return nullptr;
  look(x);
  const int64_t given = state == py.none ? 0 : layer.states;
  if (given == 2) {
    Held type{py, py.type_of(state)};
    if (type.object != py.tuple || py.count_tuple(state) != 2) return nullptr;
  }
  for (int64_t i = 0; i < given; i++) {
    if (!before[i].read(layer.kind, given == 2 ? py.tuple_item(state, i) : state)) return nullptr;
    look(before[i]);
  }
  int64_t known = 0;
  const auto has_same_weights = [&](Object* weights) {
    Object *key, *weight;
    for (int64_t at = 0; weights && py.next_item(weights, &at, &key, &weight);) {
      if (weight == py.none) continue;  // such as a bias that a module does not have
      int32_t type = -1;
      if (known == layer.weights || !loaded.load(weight) || py.data(loaded.handle, &loaded.data))
        return false;
      if ((uint64_t)loaded.data != layer.addresses[known] || !loaded.has(layer.forms[known])) return false;
      if (py.number_type(loaded.handle, &type) || type != layer.kind.type) return false;
      look(loaded);
      known++;
    }
    return weights != nullptr;
  };
  if (!has_same_weights(py.get_item(own, py.key_weights))) return nullptr;
  for (int64_t i = 0; i < layer.modules; i++)
    if (!has_same_weights(layer.parameters[i])) return nullptr;
  if (known != layer.weights) return nullptr;
  const bool train = needs_gradient && py.has_gradients();
  const auto fits = [&](Bound& t, const Form& form) { return t.has(form) && t.has_memory(form, layer.kind); };
  for (int64_t k = 0; k < layer.count; k++) {
    const CallKind& call = layer.calls[k];
    if (call.train != train || !fits(x, call.x)) continue;
    bool found = true;
    for (int64_t i = 0; i < given; i++) found = found && fits(before[i], call.h[i]);
    if (found) return call.call;
  }
  return nullptr;
}

// own, input, state -> the object that Python registered for the call, or None.
inline Object* call_find_call(Object* self, Object* const* arguments, int64_t count) {
  const Interface& py = *python;
  Object* result = nullptr;
  if (count == 3)
    result = find_call(*(const BoundLayer*)py.read_address(py.tuple_item(self, 0)), arguments[0],
                       arguments[1], arguments[2]);
  py.clear_error();
  if (!result) result = py.none;
  py.hold(result);
  return result;
}

// A Python function. The first item of `owner` is the address of a BoundLayer.
inline Object* bind_layer(const Interface* interface, Object* owner) {
  static Definition definition{"find_call", call_find_call, FASTCALL, nullptr};
  python = interface;
  return interface->new_function(&definition, owner, nullptr);
}
