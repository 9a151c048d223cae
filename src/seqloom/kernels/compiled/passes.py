"""The passes of a compiled cell on a CPU, each as one call of the engine, for short sequences.

`CompiledScan` calls torch for what is computed beside the programs, and packs the rows in Python. Here both are
translated into operations of the engine once, if it has all that the cell needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.compiler.evaluation import Step, keep_same
from seqloom.compiler.nodes import CONSTANTS, COPIES, POINT, SUMS
from seqloom.compiler.plan import Value
from seqloom.core.checks import are_contiguous, read_moved
from seqloom.core.memory import empty, empty_like
from seqloom.kernels.autograd import Call, Gradients, Maybe
from seqloom.kernels.compiled.run import CompiledScan
from seqloom.kernels.compiled.stages import Stage, StageSource
from seqloom.kernels.cpu import cell_pass
from seqloom.kernels.cpu.cell_pass import ALL, SLACK, STATES, CellPass, PassWriter, View, require
from seqloom.kernels.cpu.engine import split_threads
from seqloom.kernels.cpu.kept_memory import LEAST_BYTES, kept_memory
from seqloom.kernels.cpu.machine import Encoded
from seqloom.kernels.fused import differentiate
from seqloom.kernels.stack import Stack

# Elements of the largest value of all rows and steps, and multiply-adds of a product, up to which a call takes longer
# to start torch's operators than the engine takes to do without them.
MOST_ELEMENTS, MOST_PRODUCTS = 1 << 16, 1 << 22
_TRUTHS = {"where", "and", "or", "not"}  # operators that take truth values
_address = Tensor.data_ptr


class _Translator:
    """Translate what torch computes around a program.

    Args:
        scan: The compiled cell.
        stage: The program.
        writer: What the operations are added to.
        saved: For nodes that the forward pass saves, their places in the tensor "memory".
    """

    def __init__(self, scan: CompiledScan, stage: Stage, writer: PassWriter, saved: dict[int, int]) -> None:
        self.plan, self.stage, self.writer, self.saved = scan.compiled.plan, stage, writer, saved
        self.known: dict[int, View] = {}

    def list_sizes(self, value: Value | None) -> tuple[int, ...]:
        """Return the shape of a value of all packed rows."""
        require(value is not None, "a value has no shape")
        assert value is not None
        require(value.batch is None or value.sizes[value.batch] == 1, "a row of the batch has several rows")
        return tuple(ALL if d == value.batch else s for d, s in enumerate(value.sizes))

    def make_saved(self, node: int, sizes: Sequence[int]) -> View:
        """Add memory for a node: that of the forward pass if it saves the node."""
        place = self.saved.get(node)
        return self.writer.make(sizes) if place is None else self.writer.make(sizes, "memory", place)

    def evaluate(self, steps: Sequence[Step]) -> None:
        """Translate steps in order."""
        for step in steps:
            arguments: list[Any] = list(step.arguments)
            for i, n in step.references:
                arguments[i] = {"node": n}
            named = step.named
            if step.call is not None:
                arguments, named = list(step.call.arguments), dict(step.call.named)
            self.known[step.node] = self._translate(step, [self._read(a) for a in arguments], named)

    def _read(self, argument: object) -> Any:  # noqa: ANN401  # a view, a number, None or a list of these
        if isinstance(argument, dict):
            if "node" in argument:
                return self.known[argument["node"]]
            require(argument.get("rows") == 1, "an argument depends on the number of rows")
            return ALL
        return [self._read(a) for a in argument] if isinstance(argument, (list, tuple)) else argument

    def _translate(self, step: Step, given: list[Any], named: dict[str, Any]) -> View:
        writer, name, rest = self.writer, _name(step.function), given[1:]
        t: View = given[0] if given and isinstance(given[0], View) else View(-1, (), ())
        if step.function is keep_same or name in COPIES:
            return t
        if name in CONSTANTS:
            return writer.repeat(_read_constant(name, given), self.list_sizes(self.plan.values.get(step.node)))
        if name == "_to_copy":
            source = self.plan.values.get(step.references[0][1])
            require(source is not None and source.is_truth, "a value is converted to another type")
            return t  # truth values are numbers here
        require(not named, f"{name} has a named argument")
        if name == "permute":
            return t.permute(rest[0])
        if name == "expand":
            return t.expand(self.list_sizes(self.plan.values.get(step.node)))
        if name == "reshape":
            return t.reshape(rest[0])
        if name in ("unsqueeze", "squeeze"):
            return t.reshape(self.list_sizes(self.plan.values.get(step.node)))
        if name == "slice":
            return t.slice(*_find_part(t.sizes, *rest))
        if name == "slice_backward":
            whole = writer.make(rest[0])
            writer.add(whole.buffer, [], cell_pass.FILL, whole.buffer, *_flatten(whole.sizes))
            writer.copy(whole.slice(*_find_part(whole.sizes, *rest[1:])), t)
            return whole
        if name == "cat":
            return self._join(step, given[0], rest[0] if rest else 0)
        if name == "mm":
            return writer.multiply(t, rest[0])
        if name == "addmm":
            product = writer.multiply(rest[0], rest[1])
            return writer.compute("add", [product, t], product.sizes)
        if name in SUMS:
            return self._reduce(SUMS[name], t, *rest)
        return self._compute(step, name, given)

    def _join(self, step: Step, parts: Sequence[View], dim: int) -> View:
        whole, at = self.writer.make(self.list_sizes(self.plan.values.get(step.node))), 0
        for part in parts:
            self.writer.copy(whole.slice(dim, at, at + part.sizes[dim]), part)
            at += part.sizes[dim]
        return whole

    def _reduce(self, kind: str, t: View, dims: Sequence[int] | None = None, keeps: bool = False) -> View:
        dims = sorted({d % len(t.sizes) for d in dims or range(len(t.sizes))})
        for d in dims:
            t = self.writer.reduce(t, d, kind)
        return t if keeps else t.reshape([s for d, s in enumerate(t.sizes) if d not in dims])

    def _compute(self, step: Step, name: str, given: Sequence[Any]) -> View:
        require(all(isinstance(v, (View, int, float)) for v in given), f"{name} has an unusual argument")
        truths = [n for _, n in step.references if (v := self.plan.values.get(n)) is not None and v.is_truth]
        if name == "pow":
            operator, given = ("mul", [given[0]] * 2) if given[1] == 2 else ("pow", given)
        elif name == "rsub":
            operator, given = "sub", given[::-1]
        else:
            operator = POINT.get(name) or ""
        require(bool(operator), f"the engine has no {name}")
        require(not truths or operator in _TRUTHS, f"{name} of truth values")
        return self.writer.compute(operator, given, self.list_sizes(self.plan.values.get(step.node)))

    def add_program(self, encoded: Encoded, states: Sequence[int], gradients: Sequence[int]) -> None:
        """Add the program, on the buffers of states and gradients and on the values that are known."""
        buffers: list[tuple[View | None, bool]] = []
        for i, s in enumerate(self.stage.sources):
            if s.kind in ("state", "gradient"):
                buffer = (states if s.kind == "state" else gradients)[s.node]
                buffers.append((View(buffer, (), ()), False))
            elif s.kind == "new":
                view = self.make_saved(s.node, (ALL, s.size))
                sizes = self.list_sizes(s.value)
                self.known[s.node] = view.reshape(sizes) if sizes[0] == ALL else _move_rows(view, sizes)
                buffers.append((view, False))
            elif s.kind == "scratch":
                buffers.append((None, False))
            else:
                buffers.append(self._find_memory(s, i in encoded.factors))
        self.writer.run(encoded, buffers)

    def _find_memory(self, s: StageSource, is_factor: bool) -> tuple[View, bool]:
        """Return a value as a program reads it, and whether that is a transposed weight."""
        t = self.known[s.node]
        require(s.kind != "row", "a program reads one value for each row of the batch")
        if s.kind == "rows":
            t = t if t.sizes[:1] == (ALL,) else t.permute(_put_first(t.sizes))
            require(abs(math.prod(t.sizes)) == s.size, "a value has another size")
            return self.writer.tighten(t), False
        require(ALL not in t.sizes and math.prod(t.sizes) == s.size, "a value has another size")
        if s.kind == "weight" and s.is_transposed:
            t = t.permute([*range(len(t.sizes) - 2), len(t.sizes) - 1, len(t.sizes) - 2])
        if s.kind == "weight" and is_factor and not t.is_tight():
            turned = t.permute([*range(len(t.sizes) - 2), len(t.sizes) - 1, len(t.sizes) - 2])
            if turned.is_tight():
                return t, True
        return self.writer.tighten(t), False


def _name(function: Callable[..., object]) -> str:
    """Return the name of an operator without its overload."""
    return getattr(function, "__name__", "").partition(".")[0]


def _read_constant(name: str, given: Sequence[Any]) -> float:
    """Return the number that a constant is filled with."""
    if "ones" in name or "zeros" in name:
        return float("ones" in name)
    value = given[{"scalar_tensor": 0, "new_full": 2}.get(name, 1)]
    require(isinstance(value, (int, float)), "a constant is computed")
    return float(value)


def _find_part(
    sizes: Sequence[int], dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> tuple[int, int, int]:
    """Return the dimension, the start and the end of a slice."""
    require(step == 1, "a part has gaps")
    start, end = slice(start, end).indices(sizes[dim])[:2] if sizes[dim] != ALL else (0, 0)
    return dim, start, max(start, end)


def _flatten(sizes: Sequence[int]) -> tuple[int, int]:
    """Return the rows and columns of a value without gaps."""
    return (ALL, abs(math.prod(sizes))) if ALL in sizes else (1, math.prod(sizes))


def _put_first(sizes: Sequence[int]) -> list[int]:
    """Return the order of the dimensions with the rows first."""
    require(ALL in sizes, "a value has no rows")
    rows = tuple(sizes).index(ALL)
    return [rows, *(d for d in range(len(sizes)) if d != rows)]


def _move_rows(view: View, sizes: Sequence[int]) -> View:
    """Return packed rows as a value whose rows are in another dimension."""
    order = _put_first(sizes)
    whole = view.reshape([sizes[d] for d in order])
    return whole.permute([order.index(d) for d in range(len(sizes))])


class PassSaved(NamedTuple):
    """What the backward pass needs: states and values of all steps, and where the weights were."""

    memory: Tensor
    addresses: list[int]


class PassScan:
    """A compiled cell over a layer's input, each pass as one call of the engine: a `Prepared` of `autograd.py`.

    Args:
        scan: The compiled cell, whose `project` is a part of its programs.
        encoded: Its programs for the engine: without gradients, with them, and the reverse one.
        weights: Those that a call has.
        stack: The form of the input.

    Raises:
        UnsupportedPassError: If the engine lacks something that the cell needs.
    """

    def __init__(
        self, scan: CompiledScan, encoded: tuple[Encoded, Encoded, Encoded], weights: Sequence[Tensor], stack: Stack
    ) -> None:
        plan, compiled = scan.compiled.plan, scan.compiled
        require(cell_pass.has_passes(), "the CPU engine belongs to another version of seqloom")
        self.scan, self.is_time_first, self.B, self.T = scan, not stack.is_batch_first, stack.B, stack.T
        self.shapes, self.dtype = [w.shape for w in weights], weights[0].dtype
        require(all(w.dtype == self.dtype for w in weights), "the weights differ in type")
        require({n.partition("_")[0] for n in plan.inputs} <= {"x", "state", "dy", "dafter"}, "it has other inputs")
        cell = stack.cells[0]
        firsts = cell.initial_state(empty(stack.B, 1, device="cpu"))
        self.forms = [s.shape for s in firsts]  # (B, ...), as the cell has them
        self.sizes = [math.prod(form[1:]) for form in self.forms]
        like = empty((), dtype=self.dtype, device="cpu")
        self.y_like = like.expand(*stack.shape[:-1], cell.output_size)
        self.state_likes = [like.expand(shape) for shape in stack.state_shapes]
        self.weights, self.states = [f"weight {name}" for name in scan.names], range(len(firsts))
        rows = self.B * self.T
        most = max(s.size for stage in (compiled.infer, compiled.train) for s in stage.sources if s.kind != "weight")
        require(rows * most <= MOST_ELEMENTS, "torch's operators are as fast for so many elements")
        self.places: list[int] = []  # of the states in the memory that is saved
        at = 0
        for size in self.sizes:
            self.places.append(at)
            at += (self.B + rows) * size + SLACK
        self.saved: dict[int, int] = {}
        for node in compiled.saved:
            self.saved[node] = at
            at += rows * max(1, math.prod(plan.values[node].sizes)) + SLACK
        self.memory_like = like.expand(at)
        keeps = at * self.dtype.itemsize >= LEAST_BYTES
        self.make_memory: Callable[[Tensor], Tensor] = kept_memory.allocate_like if keeps else empty_like
        wanted = [name for name in plan.results if name != "y"]
        self.infer = self._write_forward(compiled.infer, encoded[0], is_saved=False)
        self.train = self._write_forward(compiled.train, encoded[1], is_saved=True)
        self.results = ["dx", *(f"dstate {i}" for i in self.states), *(f"d{name}" for name in self.weights)]
        self.reverse = self._write_reverse(compiled.prepare_reverse(wanted), encoded[2], wanted)
        self.has_dx, self.has_gradient = "dx" in wanted, [f"d{name}" in wanted for name in self.weights]

    def _prepare(self, writer: PassWriter, encoded: Encoded, *, skips_results: bool) -> CellPass:
        """Return the pass that a writer has; refuse products for which torch's operators are as fast."""
        split = split_threads(self.B, encoded.hidden)
        for operation in writer.operations:
            if operation.words[0] == cell_pass.MULTIPLY:
                rows, columns, inner = (
                    self.B * self.T if operation.words[i] == ALL else operation.words[i] for i in (2, 3, 8)
                )
                require(rows * columns * inner <= MOST_PRODUCTS, "torch's products are as fast")
        return CellPass(writer, self.B, self.T, self.is_time_first, self.dtype, split, skips_results)

    def _add_leaves(self, translator: _Translator, gradients: Sequence[int]) -> None:
        """Add the weights and the inputs that a stage needs, other than states before a step."""
        writer = translator.writer
        for node, kind, name in translator.stage.leaves:
            if kind == "before":
                continue
            require(kind == "named", "it reads more than the input, states and weights")
            sizes = translator.list_sizes(translator.plan.values.get(node))
            if name in self.weights:
                translator.known[node] = writer.make(sizes, name)
            elif name in ("x", "dy"):
                require(sizes[0] == ALL, "the rows of the input are not its first dimension")
                t = translator.known[node] = writer.make(sizes)
                writer.add(t.buffer, [], cell_pass.LOAD, t.buffer, writer.tensors.index(name))
            else:
                require(name.startswith("dafter_"), "it reads more than the input, states and weights")
                translator.known[node] = writer.view_states(gradients[int(name[7:])], sizes)

    def _add_before(self, translator: _Translator, states: Sequence[int]) -> None:
        """Add the states before each step that a stage needs."""
        for node, kind, i in translator.stage.leaves:
            if kind == "before":
                writer = translator.writer
                t = translator.known[node] = writer.make(translator.list_sizes(translator.plan.values.get(node)))
                writer.add(t.buffer, [View(states[i], (), ())], cell_pass.BEFORE, t.buffer, states[i])

    def _add_after(self, translator: _Translator, states: Sequence[int]) -> None:
        """Add the states after each step that a stage needs."""
        for node, i in translator.stage.after:
            sizes = translator.list_sizes(translator.plan.values.get(node))
            translator.known[node] = translator.writer.view_states(states[i], sizes)

    def _write_forward(self, stage: Stage, encoded: Encoded, *, is_saved: bool) -> CellPass:
        first, last = ([f"{name} {i}" for i in self.states] for name in ("state", "end"))
        writer = PassWriter(["x", *first, *self.weights, "y", *last, *(["memory"] * is_saved), "numbers"])
        translator = _Translator(self.scan, stage, writer, self.saved if is_saved else {})
        memory = "memory" if is_saved else ""
        states = [
            writer.add_buffer(STATES, n, memory, at * is_saved) for n, at in zip(self.sizes, self.places, strict=True)
        ]
        self._add_leaves(translator, [])
        for i, name in zip(states, first, strict=True):
            writer.add(i, [], cell_pass.BEGIN, i, writer.tensors.index(name))
        translator.evaluate(stage.first)
        translator.add_program(encoded, states, [])
        self._add_before(translator, states)
        self._add_after(translator, states)
        translator.evaluate(stage.then)
        for node, place in translator.saved.items():
            sizes = translator.list_sizes(translator.plan.values.get(node))
            view = translator.known[node]
            if writer.buffers[view.buffer][2:] != (writer.tensors.index("memory"), place):
                require(ALL not in sizes[1:], "the rows of a saved value are not its first dimension")
                writer.copy(writer.make(sizes, "memory", place), view)
        writer.put("y", translator.known[translator.plan.results["y"]], is_per_step=True)
        for i, name in zip(states, last, strict=True):
            writer.add(None, [View(i, (), ())], cell_pass.END, writer.tensors.index(name), i)
            writer.results.append(name)
        return self._prepare(writer, encoded, skips_results=False)

    def _write_reverse(self, stage: Stage, encoded: Encoded, wanted: Sequence[str]) -> CellPass:
        plan = self.scan.compiled.plan
        given = ["x", *self.weights, "memory", "dy", *(f"dend {i}" for i in self.states)]
        writer = PassWriter([*given, *self.results, "numbers"])
        translator = _Translator(self.scan, stage, writer, {})
        states = [writer.add_buffer(STATES, n, "memory", at) for n, at in zip(self.sizes, self.places, strict=True)]
        gradients = [writer.add_buffer(STATES, size) for size in self.sizes]
        self._add_leaves(translator, gradients)
        self._add_before(translator, states)
        self._add_after(translator, states)
        for node, place in self.saved.items():
            sizes = translator.list_sizes(plan.values.get(node))
            if sizes and sizes[0] != ALL and ALL in sizes:
                rows = writer.make((ALL, abs(math.prod(sizes))), "memory", place)
                translator.known[node] = _move_rows(rows, sizes)
            else:
                translator.known[node] = writer.make(sizes, "memory", place)
        for i, buffer in enumerate(gradients):
            writer.add(buffer, [], cell_pass.BEGIN_REVERSE, buffer, writer.tensors.index(f"dend {i}"))
        translator.evaluate(stage.first)
        translator.add_program(encoded, states, gradients)
        translator.evaluate(stage.then)
        for name in wanted:
            if name == "dx":
                writer.put("dx", translator.known[plan.results[name]], is_per_step=True)
            else:
                kind, _, weight = name.partition(" ")
                require(kind == "dweight", "it has gradients of other inputs")
                if f"weight {weight}" in self.weights:
                    writer.put(name, translator.known[plan.results[name]])
        for i, buffer in enumerate(gradients):
            place = writer.tensors.index(f"dstate {i}")
            writer.add(None, [View(buffer, (), ())], cell_pass.END_REVERSE, place, buffer)
            writer.results.append(f"dstate {i}")
        return self._prepare(writer, encoded, skips_results=True)

    def forward(self, call: Call) -> tuple[tuple[Tensor, ...], PassSaved | None]:
        """Return the outputs and the last states in the layer's form, and what the backward pass needs."""
        y, ends = empty_like(self.y_like), [empty_like(like) for like in self.state_likes]
        if not call.train:
            states = call.states or [self.infer.nothing] * len(ends)
            self.infer.run((call.x, *states, *call.weights, y, *ends, self.infer.numbers), call.lengths)
            return (y, *ends), None
        memory, states = self.make_memory(self.memory_like), call.states or [self.train.nothing] * len(ends)
        self.train.run((call.x, *states, *call.weights, y, *ends, memory, self.train.numbers), call.lengths)
        return (y, *ends), PassSaved(memory, list(map(_address, call.weights)))

    def backward(self, call: Call, saved: PassSaved, grads: Sequence[Maybe], needs: Gradients) -> Gradients:
        """Return the gradients of the input, the states and the weights."""
        weights = call.weights
        # FSDP and ZeRO-3 free the weights after the forward pass, and restore them at other addresses
        if list(map(_address, weights)) != saved.addresses or not are_contiguous(weights):
            weights = read_moved(weights, self.shapes, self.dtype, self.y_like.device)
        nothing = self.reverse.nothing
        pulls = [nothing if d is None else d.contiguous() for d in grads]
        dx = empty_like(call.x) if needs.x and self.has_dx else None
        states = [
            empty_like(like) if need else None for like, need in zip(self.state_likes, needs.states, strict=False)
        ]
        known = zip(weights, needs.weights, self.has_gradient, strict=True)
        own = [empty_like(w) if need and has else None for w, need, has in known]
        results = [nothing if t is None else t for t in (dx, *(states or [None] * len(self.states)), *own)]
        given = call.x.contiguous(), *weights, saved.memory, *pulls
        self.reverse.run((*given, *results, self.reverse.numbers), call.lengths)
        return Gradients(dx, states, own)

    def _turn(self, t: Any) -> Any:  # noqa: ANN401  # Tensor or None
        """Return the input, the output or one of their gradients as (B, T, ...), or the reverse."""
        if t is None:
            return None
        return t.transpose(0, 1) if self.is_time_first else t

    def differentiate(self, call: Call, grads: Sequence[Maybe]) -> Gradients:
        """Return the gradients by the reference loop, with a graph."""
        tensors, k = [call.x, *call.states, *call.weights], 1 + len(call.states)
        assert self.scan.slow is not None
        with torch.enable_grad():
            rows = call.x.view(*([self.T, self.B] if self.is_time_first else [self.B, self.T]), -1)
            call.x = self._turn(rows)
            call.states = [s.view(form) for s, form in zip(call.states, self.forms, strict=False)]
            y, *ends = self.scan.slow(call)(call.x, *call.states, *call.weights)
            outputs = [self._turn(y).reshape(self.y_like.shape)]
            outputs += [s.reshape(like.shape) for s, like in zip(ends, self.state_likes, strict=True)]
            found = differentiate(tensors, outputs, grads, True, again=True)
        return Gradients(found[0], found[1:k], found[k:])
