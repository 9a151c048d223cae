// The plain C interface of the engine. It is compiled once per instruction set into a separate library, so
// that different builds of one template are never linked together. scan.hpp describes the threads.
#include "attn_rnn_backward.hpp"
#include "backward.hpp"
#include "cell_pass.hpp"
#include "forward.hpp"
#include "gru.hpp"
#include "input_product.hpp"
#include "linear.hpp"
#include "ln_gru.hpp"
#include "ln_lstm.hpp"
#include "lstm.hpp"
#include "machine.hpp"
#include "packing.hpp"
#include "rnn.hpp"

#ifdef _WIN32
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

struct Cell {
  void (*forward)(const Args&, int threads);
  void (*backward)(const Args&, int threads);
  int64_t (*record_size)(const Args&);
};
#define BOTH(Net)                                                                                   \
  {                                                                                                 \
    {run_forward<float, Net<float>>, run_backward<float, Net<float>>, Net<float>::record_size}, {   \
      run_forward<double, Net<double>>, run_backward<double, Net<double>>, Net<double>::record_size \
    }                                                                                               \
  }

static const Cell cells[][2] = {BOTH(Rnn), BOTH(Gru), BOTH(Lstm), BOTH(Attn), BOTH(LnGru), BOTH(LnLstm)};

// Runs a cell for float (0) or double (1); returns 0, or 1 if out of memory. The backward pass uses as many
// threads as the forward pass did.
EXPORT int seqloom_run(int cell, int backward, int dtype, int threads, const Args* args) {
  const Cell& run = cells[cell][dtype];
  try {
    if (args->inputs && !backward) (dtype ? project_input<double> : project_input<float>)(*args);
    (backward ? run.backward : run.forward)(*args, threads);
    if (args->inputs && backward) (dtype ? differentiate_input<double> : differentiate_input<float>)(*args);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

// The number of values that are saved per row and step, if they are saved.
EXPORT int64_t seqloom_record(int cell, int dtype, const Args* args) {
  return cells[cell][dtype].record_size(*args);
}

// The size of the arguments, so that a caller with another definition can detect it.
EXPORT int64_t seqloom_args_size() { return sizeof(Args); }

#include "bound_call.hpp"
#include "bound_linear.hpp"
#include "bound_step.hpp"

// One time step on the calling thread. Returns 0, or 1 if out of memory.
EXPORT int seqloom_step(const Call* call) {
  try {
    call->stack->layers->wide ? step_layers<double>(*call) : step_layers<float>(*call);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

EXPORT int64_t seqloom_step_size() { return sizeof(Step) + sizeof(Stack) + sizeof(Call); }

// A Python function that runs a step; null, with Python's error set, if it cannot be created.
EXPORT Object* seqloom_bind_step(const Interface* interface, Object* owner) {
  return bind_step(interface, owner);
}

EXPORT int64_t seqloom_bound_step_size() { return 2 + sizeof(Interface) + 1000 * sizeof(BoundStep); }

// A Python function that looks up what is known about a call of a layer; null, with Python's error set, if it
// cannot be created.
EXPORT Object* seqloom_bind_layer(const Interface* interface, Object* owner) {
  return bind_layer(interface, owner);
}

EXPORT int64_t seqloom_bound_layer_size() {
  return sizeof(BoundLayer) + 1000 * (sizeof(BoundCell) + sizeof(CallKind));
}

// Whether a program may run: 1 if everything that it reads and writes lies inside its buffers' rows, given
// the lengths of code and constants.
EXPORT int seqloom_check_machine(const int64_t* code, int64_t length, int64_t constants) {
  return ProgramCheck(code, length, constants).passes();
}

// Runs a checked program for float (0) or double (1). Returns 0, 1 if out of memory, 2 if the rows of the
// steps are inconsistent, or 3 if a buffer is shorter than the program requires.
EXPORT int seqloom_machine(int dtype, int threads, const MachineArgs* args) {
  if (!rows_fit(*args)) return 2;
  if (!buffers_fit(*args)) return 3;
  try {
    dtype ? run_machine<double>(*args, threads) : run_machine<float>(*args, threads);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

// Runs a pass of a compiled cell for float (0) or double (1). Returns 0, 1 if out of memory, or 3 if the code
// does not fit the tensors.
EXPORT int seqloom_cell_pass(int dtype, int threads, const PassArgs* args) {
  try {
    return dtype ? CellPass<double>::run(*args, threads) : CellPass<float>::run(*args, threads);
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// The size of its arguments.
EXPORT int64_t seqloom_cell_pass_size() { return sizeof(PassArgs); }

// A version number that changes with the format of programs.
EXPORT int64_t seqloom_machine_version() { return sizeof(MachineArgs) + 1000 * Operators<float>::count; }

// The longest of the lengths (B) of a batch padded to `length` steps, and their sum, into size.
EXPORT void seqloom_measure_packing(const int64_t* lengths, int64_t B, int64_t length, int64_t* size) {
  const RaggedBatch batch{lengths, B, length};
  size[0] = batch.longest();
  size[1] = batch.sum();
}

// Fills 2 T + 3 B + 3 N numbers, T and N as above. Returns 0, 1 if out of memory, or 2 if the lengths have
// changed.
EXPORT int seqloom_fill_packing(const int64_t* lengths, int64_t B, int64_t length, int time_first, int64_t T,
                                int64_t N, int64_t* to) {
  const RaggedBatch batch{lengths, B, length};
  if (batch.longest() != T || batch.sum() != N) return 2;
  try {
    fill_packing(batch, time_first, T, N, to);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

// A linear recurrence for float (0) or double (1). Returns 0, or 1 if out of memory.
EXPORT int seqloom_linear(int dtype, int threads, const LinearArgs* args) {
  try {
    dtype ? run_linear<double>(*args, threads) : run_linear<float>(*args, threads);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

// The same with a diagonal transition.
EXPORT int seqloom_diagonal(int dtype, int threads, const DiagonalArgs* args) {
  dtype ? run_diagonal<double>(*args, threads) : run_diagonal<float>(*args, threads);
  return 0;
}

// A Python function that runs one step of a linear recurrence; null, with Python's error set, if it cannot be
// created.
EXPORT Object* seqloom_bind_linear(const Interface* interface, Object* owner) {
  return bind_linear(interface, owner);
}

EXPORT int64_t seqloom_bound_linear_size() { return sizeof(BoundLinear); }

// The sizes of both argument structs.
EXPORT int64_t seqloom_linear_size() { return sizeof(LinearArgs) + 1000 * sizeof(DiagonalArgs); }
