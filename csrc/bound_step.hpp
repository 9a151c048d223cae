// A step as a Python function, without ctypes: it compares what the step depends on, reads the addresses of
// the tensors, allocates the results and runs the step. The engine is linked to neither Python nor torch:
// kernels/cpu/bound_step.py passes the addresses of functions of Python's stable ABI and of torch's C API.
#pragma once
#include "step_cells.hpp"

struct Object;         // PyObject
typedef void* Handle;  // at::Tensor*

// Arguments and results of torch's C++ functions: c10::IntArrayRef, and at::TensorBase, for which the caller
// provides memory because it has a destructor.
struct Numbers {
  const int64_t* first;
  size_t count;
};
struct NewTensor {
  void* implementation;
  ~NewTensor() {}
};

// Functions and objects of Python and torch, in the order of FUNCTIONS and OBJECTS of bound_step.py.
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
  int (*device_index)(Handle, int32_t*);
  int (*layout)(Handle, int32_t*);
  int (*storage_size)(Handle, int64_t*);  // in bytes
  int (*storage_offset)(Handle, int64_t*);
  int (*free_tensor)(Handle);
  int (*new_tensor)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, Handle*);
  bool (*has_gradients)();
  // functions to which C++ extensions of torch are linked; all null if one is missing
  int (*new_handle)(Handle*);  // creates the handle of an undefined tensor
  bool (*load_tensor)(Handle, Object*, bool convert);
  Object* (*wrap_tensor)(Handle);
  bool (*is_negated)(Handle);
  NewTensor (*new_cpu_tensor)(Numbers sizes, Numbers strides, int8_t number_type, bool pinned);
  int64_t (*count_dispatch_modes)();
  void* const* (*find_trace)();
  bool (*is_autocast)(int8_t device);
  bool (*requires_gradient)(void* implementation);
  bool (*has_dispatch_key)(uint16_t key);
  Object* (*wrap_new_tensor)(void* tensor);  // steals the reference; null if torch lacks the function
  uint64_t front_key, back_key;              // dispatch keys of torch.func's transforms
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

// Properties that all tensors of a call share; the device index matters only on a GPU.
struct Kind {
  int64_t type, size, layout, device, index;  // size: bytes per element
};

// Settings of an object, by their names in its __dict__.
struct Settings {
  int64_t count;
  Object *const *keys, *const *values;
};
inline bool has_settings(const Interface& py, Object* own, const Settings& known) {
  for (int64_t i = 0; i < known.count; i++)
    if (py.get_item(own, known.keys[i]) != known.values[i]) return false;
  return true;
}

// A step for inputs of one form.
struct BoundStep {
  const Interface* interface;
  const Step* layers;
  int64_t count, rows, states, numbers;  // numbers: multiply-adds
  Kind kind;
  Form x, y, h;
  int64_t weights;
  const uint64_t* addresses;  // addresses of the weights, in the order of the layer's dict
  Settings settings;
};

// An object that is released by the destructor.
struct Held {
  const Interface& py;
  Object* object;
  ~Held() {
    if (object) py.release(object);
  }
};

// A tensor of a call: its handle, which the destructor frees, and the address of its elements.
struct Bound {
  const Interface& py;
  Handle handle = nullptr;
  void *data = nullptr, *own = nullptr;  // own: an undefined tensor, for its handle
  ~Bound() { release(); }
  void release() {
    if (own)  // Python frees it
      Held{py, wrap()};
    else if (handle)
      py.free_tensor(handle);
    handle = nullptr;
  }
  // Convert the tensor to a Python object.
  Object* wrap() {
    if (!own) return py.wrap_tensor(handle);
    Object* object = py.wrap_new_tensor(&own);
    own = nullptr;
    handle = nullptr;
    return object;
  }

  // Take the handle of a plain tensor that a caller passed, replacing an earlier one; false if it is anything
  // else.
  bool take(Object* object) {
    Held type{py, py.type_of(object)};
    if (type.object != py.tensor) return false;
    if (py.load_tensor) return load(object) && !py.is_negated(handle);
    Held negative{py, call(py, py.is_negative, object)};
    if (negative.object != py.no) return false;
    Held capsule{py, call(py, py.to_handle, object)};
    release();
    handle = capsule.object ? py.read_capsule(capsule.object, nullptr) : nullptr;
    return handle;
  }
  // The same for any tensor, by torch's C++ functions.
  bool load(Object* object) {
    return (handle || !py.new_handle(&handle)) && py.load_tensor(handle, object, false);
  }
  // Whether a tensor has the sizes and strides of a form.
  bool has(const Form& form) {
    int64_t dimensions = -1, *sizes, *strides;
    if (py.dimensions(handle, &dimensions) || dimensions != form.dimensions) return false;
    if (py.sizes(handle, &sizes) || py.strides(handle, &strides)) return false;
    for (int64_t i = 0; i < dimensions; i++)
      if (sizes[i] != form.sizes[i] || (sizes[i] > 1 && strides[i] != form.strides[i])) return false;
    return true;
  }
  // Whether the storage of a contiguous tensor holds all its elements; a caller may have shrunk it.
  bool has_memory(int64_t numbers, int64_t size) {
    int64_t bytes = 0, offset = 0;
    if (py.storage_size(handle, &bytes) || py.storage_offset(handle, &offset)) return false;
    return bytes >= (offset + numbers) * size && !py.data(handle, &data) && data;
  }
  bool has_memory(const Form& form, const Kind& kind) {
    int64_t numbers = 1;
    for (int64_t i = 0; i < form.dimensions; i++) numbers *= form.sizes[i];
    return has_memory(numbers, kind.size);
  }
  // Read a tensor that a caller passed; false if it does not have this form.
  bool read(const Kind& expected, Object* object) {
    int32_t type = -1, device = -1, layout = -1, index = -1;
    if (!take(object) || py.layout(handle, &layout) || layout != expected.layout) return false;
    if (py.number_type(handle, &type) || type != expected.type) return false;
    if (py.device(handle, &device) || device != expected.device) return false;
    return !device || (!py.device_index(handle, &index) && index == expected.index);
  }
  bool read(const Kind& expected, Object* object, const Form& form) {
    return read(expected, object) && has(form) && has_memory(form, expected);
  }
  // Allocate a tensor of this form.
  bool make(int64_t dimensions, const int64_t* sizes, const int64_t* strides, int64_t type) {
    if (!py.new_cpu_tensor) {
      const int failed = py.new_tensor(dimensions, sizes, strides, (int32_t)type, 0, 0, &handle);
      return !failed && poison_new();
    }
    if (!py.wrap_new_tensor && py.new_handle(&handle)) return false;
    try {
      const Numbers shape{sizes, (size_t)dimensions}, by{strides, (size_t)dimensions};
      void* made = py.new_cpu_tensor(shape, by, (int8_t)type, false).implementation;
      if (handle)
        *(void**)handle = made;  // an undefined tensor owns nothing, so the new one takes its place
      else
        handle = &(own = made);
    } catch (...) {  // out of memory
      return false;
    }
    return poison_new();
  }
  // Get the address of a new tensor's memory, and poison it in tests.
  bool poison_new() {
    int64_t bytes = 0;
    if (py.data(handle, &data)) return false;
    if (is_poisoned() && !py.storage_size(handle, &bytes)) poison(data, bytes);
    return true;
  }
  bool make(const BoundStep& step, const Form& form) {
    return make(form.dimensions, form.sizes, form.strides, step.kind.type);
  }
};

// Convert some tensors to Python objects.
inline bool give_tensors(const Interface& py, Bound* const* tensors, int64_t count, Held* given) {
  if (py.wrap_tensor) {
    for (int64_t i = 0; i < count; i++)
      if (!(given[i].object = tensors[i]->wrap())) return false;
    return true;
  }
  Held handles{py, py.new_list(count)};
  if (!handles.object) return false;
  for (int64_t i = 0; i < count; i++) {
    Object* capsule = py.new_capsule(tensors[i]->handle, nullptr, nullptr);
    if (!capsule || py.set_list_item(handles.object, i, capsule)) return false;
  }
  for (int64_t i = 0; i < count; i++) tensors[i]->handle = nullptr;  // owned by Python from here on
  Held list{py, call(py, py.from_handles, handles.object)};
  for (int64_t i = 0; i < count && list.object; i++) py.hold(given[i].object = py.list_item(list.object, i));
  return list.object;
}

// The results of a step: (y, h), or (y, (h, c)) for three tensors.
inline Object* give_results(const Interface& py, Bound* const* tensors, int64_t count) {
  Held given[3] = {{py, nullptr}, {py, nullptr}, {py, nullptr}};
  if (!give_tensors(py, tensors, count, given)) return nullptr;
  if (count == 2) return py.new_tuple(2, given[0].object, given[1].object);
  Held state{py, py.new_tuple(2, given[1].object, given[2].object)};
  return state.object ? py.new_tuple(2, given[0].object, state.object) : nullptr;
}

// Whether no mode intercepts or changes operations.
inline bool is_plain_context(const Interface& py) {
  Object* level = py.get_item(py.forward_mode, py.key_level);
  if (!level || py.read_int(level) >= 0) return false;
  if (py.load_tensor) {
    constexpr int8_t CPU = 0, CUDA = 1;
    return !py.has_dispatch_key(py.front_key) && !py.has_dispatch_key(py.back_key) &&
           !py.count_dispatch_modes() && !*py.find_trace() && !py.is_autocast(CPU) && !py.is_autocast(CUDA);
  }
  for (Object* ask : {py.has_transforms, py.has_autocast}) {
    Held answer{py, call(py, ask)};
    if (answer.object != py.no) return false;
  }
  Held trace{py, call(py, py.get_trace)}, modes{py, call(py, py.count_modes)};
  return trace.object == py.none && modes.object && !py.read_int(modes.object);
}
inline bool is_plain_mode(const Interface& py) {  // and autograd does not record operations
  return !py.has_gradients() && is_plain_context(py);
}

// Whether the layer with this __dict__ is unchanged, in a plain mode.
inline bool is_unchanged(const BoundStep& step, Object* own, Bound& taken) {
  const Interface& py = *step.interface;
  const auto is_empty = [&](Object* dict) { return dict && !py.count_items(dict); };
  if (py.get_item(own, py.key_forward) || !is_empty(py.get_item(own, py.key_hooks)) ||
      !is_empty(py.get_item(own, py.key_prehooks)) || !is_empty(py.all_hooks) || !is_empty(py.all_prehooks))
    return false;
  if (!has_settings(py, own, step.settings) || !is_plain_mode(py)) return false;
  Object *weights = py.get_item(own, py.key_weights), *key, *weight;
  if (!weights || py.count_items(weights) != step.weights) return false;
  int64_t at = 0;
  for (int64_t i = 0; py.next_item(weights, &at, &key, &weight); i++) {
    if (py.load_tensor) {
      if (!taken.load(weight) || py.data(taken.handle, &taken.data)) return false;
      if ((uint64_t)taken.data != step.addresses[i]) return false;
      continue;
    }
    Held address{py, call(py, py.get_address, weight)};
    if (!address.object || py.read_address(address.object) != step.addresses[i]) return false;
  }
  return true;
}

// The results of a step for one layer's __dict__, an input and a state, or null if the layer's `step` has to
// handle them.
inline Object* run_bound_step(const BoundStep& step, Object* own, Object* input, Object* state) {
  const Interface& py = *step.interface;
  Bound taken{py}, after[2] = {{py}, {py}}, y{py};
  if (!is_unchanged(step, own, taken)) return nullptr;
  const bool two = step.states == 2;
  if (two) {
    Held type{py, py.type_of(state)};
    if (type.object != py.tuple || py.count_tuple(state) != 2) return nullptr;
  }
  // the caller holds references to the tensors, so one handle at a time suffices
  void *x, *before[2] = {};
  if (!taken.read(step.kind, input, step.x)) return nullptr;
  x = taken.data;
  for (int i = 0; i < step.states; i++) {
    if (!taken.read(step.kind, two ? py.tuple_item(state, i) : state, step.h)) return nullptr;
    before[i] = taken.data;
  }
  if (!y.make(step, step.y)) return nullptr;
  for (int i = 0; i < step.states; i++)
    if (!after[i].make(step, step.h)) return nullptr;
  const Stack stack{step.layers, step.count, step.rows};
  const Call call{&stack, x, before[0], before[1], y.data, after[0].data, after[1].data};
  // release the GIL only during a long step: releasing it costs more than a short one
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
  return give_results(py, results, 1 + step.states);
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

// A Python function that runs a step. The first item of `owner` is the address of the BoundStep; the others
// are kept alive with the function.
inline Object* bind_step(const Interface* interface, Object* owner) {
  static Definition definition{"step", call_bound_step, FASTCALL, nullptr};
  python = interface;
  return interface->new_function(&definition, owner, nullptr);
}
