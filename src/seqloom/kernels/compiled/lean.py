"""The forward pass of a compiled cell on a CPU with as few calls of torch as possible, for short sequences.

`Stages.run_forward` decides in every call what each buffer of a program is. Here that is decided once: weights that a
program reads transposed are given by their address, products with a transposed weight are one call, and inputs stay in
the layer's order of steps and rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqloom.compiler.evaluation import PRODUCTS, Step, keep_same
from seqloom.core.memory import IS_POISONED
from seqloom.kernels.autograd import Call, Gradients
from seqloom.kernels.compiled.packing import Packing
from seqloom.kernels.compiled.run import Compiled, CompiledSaved, CompiledScan
from seqloom.kernels.compiled.stages import Stage, as_node
from seqloom.kernels.cpu.engine import split_threads
from seqloom.kernels.cpu.kept_memory import LEAST_BYTES
from seqloom.kernels.cpu.machine import Encoded, Rows, run_addresses
from seqloom.kernels.fused import differentiate

# Elements up to which a buffer of states is cleared in one call, although its first rows would suffice.
MOST_ZEROS = 1 << 14
_linear, _same = torch._C._nn.linear, keep_same


class LeanForward:
    """One forward program over a layer's input.

    Args:
        compiled: The compiled cell.
        stage: The program.
        encoded: The program for the engine.
        names: The cell's names for the weights of a call.
    """

    def __init__(self, compiled: Compiled, stage: Stage, encoded: Encoded, names: Sequence[str]) -> None:
        self.compiled, self.stage, self.encoded = compiled, stage, encoded
        places = {f"weight {name}": i for i, name in enumerate(names)}
        self.weights = [(n, places[name]) for n, _, name in stage.leaves if name != "x"]
        self.inputs = [n for n, _, name in stage.leaves if name == "x"]
        of_weight = {n for n, _ in self.weights}
        self.turned = {
            s.node: s.references[0][1] for s in stage.first if _is_transpose(s) and s.references[0][1] in of_weight
        }
        self.products: dict[int, tuple[int, int, int | None]] = {}  # node: left factor, weight, bias
        for step in stage.first:
            if step.function in PRODUCTS and step.references[-1][1] in self.turned:
                left, right = (n for _, n in step.references[-2:])
                bias = step.references[0][1] if len(step.references) == 3 else None
                self.products[step.node] = left, self.turned[right], bias
        needed = {n for s in stage.first if s.node not in self.products for n in compiled.evaluator.needs[s.node]}
        needed |= {s.node for s in stage.sources if s.kind != "weight"}
        steps = [s for s in stage.first if s.node not in self.turned or s.node in needed]
        # products are called here, other steps by the evaluator
        self.steps = [(s.node, self.products.get(s.node), (s,)) for s in steps]
        self.units = next(s.size for s in stage.sources if s.kind == "state")  # units of the first state
        flags = bytearray(len(stage.sources))
        for i, s in enumerate(stage.sources):
            flags[i] = s.kind == "weight" and s.node in self.turned and not s.is_transposed
        self.flags = array("B", flags)

    def run(
        self, rows: Tensor, state: Sequence[Tensor | None], weights: Sequence[Tensor], packing: Packing
    ) -> tuple[list[Tensor], dict[int, Any]]:
        """Run the program, and return the states of all steps and what is known.

        Args:
            rows: (N, D), the input, packed.
            state: The states before the first step; None for zeros (B, H).
            weights: The weights, contiguous.
            packing: Where the rows of each step are.
        """
        B, N, compiled, stage = packing.B, packing.N, self.compiled, self.stage
        known: dict[int, Any] = {n: weights[i] for n, i in self.weights}
        for n in self.inputs:
            known[n] = rows
        for node, product, step in self.steps:
            if product is not None:
                left, weight, bias = product
                known[node] = _linear(known[left], known[weight], None if bias is None else known[bias])
            elif step[0].function is _same:
                known[node] = known[step[0].references[0][1]]
            else:
                compiled.evaluate(step, known, N, rows)
        states = [self._start(s, rows, packing) for s in state]
        tensors: list[Tensor | None] = []
        flags = self.flags
        for s in stage.sources:
            kind = s.kind
            if kind == "state":
                tensors.append(states[s.node])
            elif kind == "new":
                t = compiled.allocate(rows, N, s.size)
                tensors.append(t)
                known[s.node] = as_node(s.value, t, N)
            elif kind == "scratch":
                tensors.append(None)
            elif kind == "weight" and s.node in self.turned:
                tensors.append(known[self.turned[s.node]])
            else:
                t = compiled._read(s, known[s.node], packing)
                if kind == "weight" and not t.is_contiguous():  # a slice of a weight, read as a transpose
                    flags = flags if flags is not self.flags else array("B", flags)
                    flags[len(tensors)] = 1
                tensors.append(t if t.dtype is rows.dtype else t.to(rows.dtype))
        places = Rows(B, packing.T, N, packing.offset, packing.count)
        run_addresses(self.encoded, tensors, flags, places, split_threads(B, self.encoded.hidden))
        for n, i in stage.after:
            known[n] = states[i].narrow(0, B, N)
        if stage.then:
            compiled.evaluate(stage.then, known, N, rows)
        return states, known

    def _start(self, state: Tensor | None, rows: Tensor, packing: Packing) -> Tensor:
        """Allocate memory for the states of all steps, and copy the first ones there."""
        B, many = packing.B, packing.B + packing.N
        if state is not None:
            steps = self.compiled.allocate(state, many, *state.shape[1:])
            steps.narrow(0, 0, B).copy_(packing.sort(state))
            return steps
        units = self.units
        if many * units <= MOST_ZEROS and not IS_POISONED:
            return rows.new_zeros(many, units)
        steps = self.compiled.allocate(rows, many, units)
        steps.narrow(0, 0, B).zero_()
        return steps


def _is_transpose(step: Step) -> bool:
    return step.call is None and step.function is torch.permute and step.arguments[1:] == ([1, 0],)


def why_not_lean(stage: Stage, encoded: Encoded, numbers: int) -> str | None:
    """Return why a program has no lean forward pass over this many rows and steps; None if it has one."""
    if any(kind != "named" or not (name == "x" or name.startswith("weight ")) for _, kind, name in stage.leaves):
        return "it reads more than the input and weights"
    if any(s.kind == "weight" and i not in encoded.factors for i, s in enumerate(stage.sources)):
        return "a weight is read beside products"
    if any(s.kind == "row" for s in stage.sources):
        return "it reads one value for each row"
    if numbers * max(s.size for s in stage.sources if s.kind != "weight") * 8 > LEAST_BYTES:
        return "memory that is kept between calls is worth more than a few calls of torch"
    return None


class LeanScan(CompiledScan):
    """A compiled cell over a layer's input, with lean forward passes.

    Args:
        scan: The compiled cell.
        encoded: Its programs for the engine: without gradients, and with them.
        is_time_first: Whether inputs and outputs are (T, B, ...).
    """

    def __init__(self, scan: CompiledScan, encoded: tuple[Encoded, Encoded], is_time_first: bool) -> None:
        super().__init__(scan.compiled, scan.names, scan.enter, scan.slow)
        compiled = scan.compiled
        stages = zip((compiled.infer, compiled.train), encoded, strict=True)
        self.passes = [LeanForward(compiled, stage, each, scan.names) for stage, each in stages]
        self.is_time_first, self.result = is_time_first, compiled.plan.results["y"]

    def _turn(self, t: Any) -> Any:  # noqa: ANN401  # Tensor or None
        return t.transpose(0, 1) if self.is_time_first and t is not None else t

    def forward(self, call: Call) -> tuple[tuple[Tensor, ...], CompiledSaved | None]:
        """Return the outputs in the layer's order and the last states, and what the backward pass needs."""
        x, train, is_time_first = call.x, call.train, self.is_time_first
        T, B = x.shape[:2] if is_time_first else (x.shape[1], x.shape[0])
        packing = Packing.of(B, T, call.lengths, None, is_time_first)
        rows = x.view(packing.N, -1) if is_time_first and packing.place is None else packing.pack(self._turn(x))
        states, known = self.passes[train].run(rows, call.states or (None,), call.weights, packing)
        last = [packing.take_ends(s) for s in states]
        y = known[self.result]
        if packing.place is not None or not is_time_first:
            y = self._turn(packing.unpack(y))
            y = y if y.is_contiguous() else y.contiguous()
        elif train:
            y = y.reshape(T, B, -1).clone()  # the caller may change it in place
        else:
            y = y.reshape(T, B, -1)
        if not train:
            return (y, *last), None
        values = tuple(known[n] for n in self.compiled.saved)
        return (y, *last), CompiledSaved(rows, (), tuple(states), values, (), packing, None)

    def backward(self, call: Call, saved: CompiledSaved, grads: Sequence[Tensor | None], needs: Gradients) -> Gradients:
        """Return the gradients of the input, the states and the weights."""
        call.x = self._turn(call.x)
        found = super().backward(call, saved, (self._turn(grads[0]), *grads[1:]), needs)
        return found._replace(x=self._turn(found.x))

    def differentiate(self, call: Call, grads: Sequence[Tensor | None]) -> Gradients:
        """Return the gradients by the reference loop, with a graph."""
        tensors, k = [call.x, *call.states, *call.weights], 1 + len(call.states)
        assert self.slow is not None
        with torch.enable_grad():
            call.x = self._turn(call.x)
            y, *ends = self.slow(call)(call.x, *tensors[1:])
            found = differentiate(tensors, (self._turn(y), *ends), grads, True, again=True)
        return Gradients(found[0], found[1:k], found[k:])
