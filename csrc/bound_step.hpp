// A step as a function of Python, without ctypes: it compares what the step depends on, reads the addresses
// of the tensors, makes the results and runs the step. The engine is linked to neither Python nor torch:
// kernels/cpu/bound_step.py passes the addresses of functions of Python's stable interface and of torch's C
// interface.
#pragma once
#include "step_cells.hpp"

struct Object;         // PyObject
typedef void* Handle;  // at::Tensor*

// What the function needs of Python and torch, in the order of FUNCTIONS and OBJECTS of bound_step.py.
struct Interface {
  Object* (*new_function)(void* definition, Object* self, Object* module);
  Object* (*vectorcall)(Object* function, Object* const* arguments, size_t count, Object* names);
  Object* (*get_item)(Object* dict, Object* key);
  int64_t (*count_items)(Object* dict);
  int (*next_item)(Object* dict, int64_t* at, Object** key, Object** value);
  int64_t (*read_int)(Object*);
  uint64_t (*read_address)(Object*);
  Object* (*new_capsule)(void* pointer, const char* name, void (*free)(Object*));
  void* (*read_capsule)(Object*, const char* name);
  Object* (*new_tuple)(int64_t count, ...);
  Object* (*tuple_item)(Object*, int64_t);
  int64_t (*count_tuple)(Object*);
  Object* (*new_list)(int64_t count);
  int (*set_list_item)(Object*, int64_t, Object*);
  Object* (*list_item)(Object*, int64_t);
  void (*hold)(Object*);
  void (*release)(Object*);
  void (*clear_error)();
  Object* (*type_of)(Object*);
  void* (*leave_python)();
  void (*enter_python)(void*);
  int (*data)(Handle, void**);
  int (*dimensions)(Handle, int64_t*);
  int (*sizes)(Handle, int64_t**);
  int (*strides)(Handle, int64_t**);
  int (*number_type)(Handle, int32_t*);
  int (*device)(Handle, int32_t*);
  int (*layout)(Handle, int32_t*);
  int (*free_tensor)(Handle);
  int (*new_tensor)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, Handle*);
  bool (*has_gradients)();
  // objects
  Object *none, *yes, *no, *tensor, *tuple;  // constants and types
  Object *key_forward, *key_hooks, *key_prehooks, *key_weights, *key_level;
  Object *all_hooks, *all_prehooks, *forward_mode;  // dicts
  Object *count_modes, *has_transforms, *get_trace, *has_autocast;
  Object *get_address, *is_negative, *to_handle, *from_handles;
};

inline Object* call(const Interface& py, Object* function) {
  return py.vectorcall(function, nullptr, 0, nullptr);
}
inline Object* call(const Interface& py, Object* function, Object* argument) {
  return py.vectorcall(function, &argument, 1, nullptr);
}

// The form of a tensor: contiguous, on the CPU.
struct Form {
  int64_t dimensions, sizes[4], strides[4];
};

// A step for inputs of one form.
struct BoundStep {
  const Interface* interface;
  const Step* layers;
  int64_t count, rows, states, type, layout, numbers;  // numbers: multiply-adds
  Form x, y, h;
  int64_t weights, settings;
  const uint64_t* addresses;            // of the weights, in the order of the layer's dict
  Object *const *keys, *const *values;  // the settings of the layer, by name
};

// An object that is released at the end of its life.
struct Held {
  const Interface& py;
  Object* object;
  ~Held() {
    if (object) py.release(object);
  }
};

// A tensor of a call: its handle, which is freed, and where its numbers are.
struct Bound {
  const Interface& py;
  Handle handle = nullptr;
  void* data = nullptr;
  ~Bound() {
    if (handle) py.free_tensor(handle);
  }

  // Take the handle of a plain tensor that a caller passed; false if it is something else.
  bool take(Object* object) {
    Held type{py, py.type_of(object)};
    if (type.object != py.tensor) return false;
    Held negative{py, call(py, py.is_negative, object)};
    if (negative.object != py.no) return false;
    Held capsule{py, call(py, py.to_handle, object)};
    handle = capsule.object ? py.read_capsule(capsule.object, nullptr) : nullptr;
    return handle;
  }
  // Read a tensor that a caller passed; false if it is not of this form.
  bool read(const BoundStep& step, Object* object, const Form& form) {
    int32_t kind = -1, place = -1, layout = -1;
    int64_t dimensions = -1, *sizes, *strides;
    if (!take(object) || py.layout(handle, &layout) || layout != step.layout) return false;
    if (py.number_type(handle, &kind) || kind != step.type || py.device(handle, &place) || place)
      return false;
    if (py.dimensions(handle, &dimensions) || dimensions != form.dimensions) return false;
    if (py.sizes(handle, &sizes) || py.strides(handle, &strides)) return false;
    for (int64_t i = 0; i < dimensions; i++)
      if (sizes[i] != form.sizes[i] || (sizes[i] > 1 && strides[i] != form.strides[i])) return false;
    return !py.data(handle, &data) && data;
  }
  // Make a tensor of this form.
  bool make(const BoundStep& step, const Form& form) {
    const int32_t type = (int32_t)step.type;
    return !py.new_tensor(form.dimensions, form.sizes, form.strides, type, 0, 0, &handle) &&
           !py.data(handle, &data);
  }
};

// Give some tensors to Python: a list of them.
inline Object* give_tensors(const Interface& py, Bound* const* tensors, int64_t count) {
  Held handles{py, py.new_list(count)};
  if (!handles.object) return nullptr;
  for (int64_t i = 0; i < count; i++) {
    Object* capsule = py.new_capsule(tensors[i]->handle, nullptr, nullptr);
    if (!capsule || py.set_list_item(handles.object, i, capsule)) return nullptr;
  }
  for (int64_t i = 0; i < count; i++) tensors[i]->handle = nullptr;  // Python's from here on
  return call(py, py.from_handles, handles.object);
}

// Whether nothing intercepts or changes the operations, and autograd records none.
inline bool is_plain_mode(const Interface& py) {
  if (py.has_gradients()) return false;
  Object* level = py.get_item(py.forward_mode, py.key_level);
  if (!level || py.read_int(level) >= 0) return false;
  for (Object* ask : {py.has_transforms, py.has_autocast}) {
    Held answer{py, call(py, ask)};
    if (answer.object != py.no) return false;
  }
  Held trace{py, call(py, py.get_trace)}, modes{py, call(py, py.count_modes)};
  return trace.object == py.none && modes.object && !py.read_int(modes.object);
}

// Whether the layer with this __dict__ is what it was, in a plain mode.
inline bool is_unchanged(const BoundStep& step, Object* own) {
  const Interface& py = *step.interface;
  const auto is_empty = [&](Object* dict) { return dict && !py.count_items(dict); };
  if (py.get_item(own, py.key_forward) || !is_empty(py.get_item(own, py.key_hooks)) ||
      !is_empty(py.get_item(own, py.key_prehooks)) || !is_empty(py.all_hooks) || !is_empty(py.all_prehooks))
    return false;
  for (int64_t i = 0; i < step.settings; i++)
    if (py.get_item(own, step.keys[i]) != step.values[i]) return false;
  if (!is_plain_mode(py)) return false;
  Object *weights = py.get_item(own, py.key_weights), *key, *weight;
  if (!weights || py.count_items(weights) != step.weights) return false;
  int64_t at = 0;
  for (int64_t i = 0; py.next_item(weights, &at, &key, &weight); i++) {
    Held address{py, call(py, py.get_address, weight)};
    if (!address.object || py.read_address(address.object) != step.addresses[i]) return false;
  }
  return true;
}

// The results of a step for one layer's __dict__, an input and a state, or null if `step` of the layer has to
// look at them.
inline Object* run_bound_step(const BoundStep& step, Object* own, Object* input, Object* state) {
  const Interface& py = *step.interface;
  if (!is_unchanged(step, own)) return nullptr;
  Bound x{py}, before[2] = {{py}, {py}}, after[2] = {{py}, {py}}, y{py};
  const bool two = step.states == 2;
  if (two) {
    Held type{py, py.type_of(state)};
    if (type.object != py.tuple || py.count_tuple(state) != 2) return nullptr;
  }
  if (!x.read(step, input, step.x)) return nullptr;
  for (int i = 0; i < step.states; i++)
    if (!before[i].read(step, two ? py.tuple_item(state, i) : state, step.h)) return nullptr;
  if (!y.make(step, step.y)) return nullptr;
  for (int i = 0; i < step.states; i++)
    if (!after[i].make(step, step.h)) return nullptr;
  const Stack stack{step.layers, step.count, step.rows};
  const Call call{&stack, x.data, before[0].data, before[1].data, y.data, after[0].data, after[1].data};
  // other threads may run during a long step; letting them costs more than a short one
  constexpr int64_t MANY = 1 << 18;
  void* thread = step.numbers > MANY ? py.leave_python() : nullptr;
  bool ran = true;
  try {
    step.layers->wide ? step_layers<double>(call) : step_layers<float>(call);
  } catch (const std::bad_alloc&) {
    ran = false;
  }
  if (thread) py.enter_python(thread);
  if (!ran) return nullptr;
  Bound* results[3] = {&y, &after[0], &after[1]};
  Held tensors{py, give_tensors(py, results, 1 + step.states)};
  if (!tensors.object) return nullptr;
  Object *out = py.list_item(tensors.object, 0), *h = py.list_item(tensors.object, 1);
  Held pair{py, two ? py.new_tuple(2, h, py.list_item(tensors.object, 2)) : nullptr};
  if (two && !pair.object) return nullptr;
  return py.new_tuple(2, out, two ? pair.object : h);
}

inline const Interface* python = nullptr;  // the same for all steps

// own, input, state -> (y, state), or None.
inline Object* call_bound_step(Object* self, Object* const* arguments, int64_t count) {
  const Interface& py = *python;
  Object* result = nullptr;
  if (count == 3) {
    const BoundStep& step = *(const BoundStep*)py.read_address(py.tuple_item(self, 0));
    result = run_bound_step(step, arguments[0], arguments[1], arguments[2]);
  }
  if (result) return result;
  py.clear_error();
  py.hold(py.none);
  return py.none;
}

struct Definition {  // PyMethodDef
  const char* name;
  Object* (*function)(Object*, Object* const*, int64_t);
  int flags;
  const char* about;
};
constexpr int FASTCALL = 0x80;

// A function of Python that runs a step. The first item of `owner` is the address of the BoundStep; the
// others live as long as the function.
inline Object* bind_step(const Interface* interface, Object* owner) {
  static Definition definition{"step", call_bound_step, FASTCALL, nullptr};
  python = interface;
  return interface->new_function(&definition, owner, nullptr);
}
