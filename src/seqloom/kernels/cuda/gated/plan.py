"""Prepared calls of the gated GPU kernels: a stack of RNN, GRU or LSTM cells, with heads, normalised or neither.

The kernels, their arguments and the indices of the weights are determined when a plan is made. The owner of a plan
compares what it depends on at every call (`layers/recurrent/plans.py`). A call is one graph node per cell. Short passes
are recorded as CUDA graphs once they have run often enough (`runtime/recorded.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.cell import Cell
from seqloom.core.checks import are_contiguous, read_moved
from seqloom.core.heads import HeadsCell
from seqloom.core.precision import product_flags
from seqloom.core.weights import bind_weights
from seqloom.kernels import heuristics
from seqloom.kernels.autograd import Call, Gradients, run_prepared
from seqloom.kernels.cuda.gated.heads import GatedHeads
from seqloom.kernels.cuda.gated.kernels import KINDS, Gated, read_options, round_up
from seqloom.kernels.cuda.gated.layout import Layout
from seqloom.kernels.cuda.gated.scan import GatedForm, GatedWeights, Places, Saved, prepare
from seqloom.kernels.cuda.runtime.recorded import Recorder, list_addresses
from seqloom.kernels.current_stream import find_stream
from seqloom.kernels.stack import Stack

Maybe = Tensor | None


def read_head(cell: Cell) -> Cell:
    """Return the cell whose equations every head has; the cell itself if it has no heads."""
    one: Cell = cell.__dict__["one"] if isinstance(cell, HeadsCell) else cell
    return one


def why_not_plan(cells: Sequence[Cell]) -> str | None:
    """Return why a stack of gated cells has no plan; None if it has one."""
    for cell in cells:
        one = read_head(cell)
        if one.name not in KINDS or (one is not cell and KINDS[one.name].norm):
            return "only RNN, GRU and LSTM have a prepared call, with heads or normalised"
        if one is not cell and one.hidden_size % heuristics.HIDDEN_MULTIPLE:
            return "heads are not padded"
        if cell.__dict__.get("learned_states") or not {"start", "initial_state", "project"}.isdisjoint(cell.__dict__):
            return "the initial state is learned or computed"
        if not set(cell.__dict__["_names"]) <= set(GatedWeights._fields):
            return "the cell has weights that are not known here"
    return None


class PreparedGated:
    """One cell of a plan, a `Prepared` (`../../autograd.py`).

    Args:
        stack: All cells of the plan.
        index: Which of them it is; with two ways every second one reads backwards.
        code: Its kernel.
        weights: All weights of the stack.
        dtype: The type that autocast computes in; that of the weights if omitted.
    """

    def __init__(
        self,
        stack: Stack,
        index: int,
        code: Gated | GatedHeads,
        weights: Sequence[Tensor],
        dtype: torch.dtype | None = None,
    ) -> None:
        self.cell, names, like = stack.cells[index], stack.names[index], weights[0]
        one, heads = read_head(self.cell), self.cell.heads if isinstance(self.cell, HeadsCell) else 1
        self.weight_dtype, self.device = like.dtype, like.device
        self.is_cast = dtype is not None and dtype != like.dtype  # a pass then reads copies of the weights
        self.indices = [names.get(name) for name in GatedWeights._fields]
        own = self.find_weights(weights)
        self.places = Places.of(own)
        shape = torch.Size((*stack.shape[:-1], self.cell.input_size))
        is_backwards = stack.ways == 2 and index % 2 == 1
        hidden = round_up(one.hidden_size)
        layout = Layout(shape, stack.batch_first, heads, one.hidden_size, hidden, is_backwards)
        setting = read_options(one, hidden, dtype or like.dtype, isinstance(code, Gated) and code.grid)
        self.scan = prepare(GatedForm(setting, layout, like.device))
        self.stream = find_stream(self.device)
        self.start = self.scan.make_start()
        self.recorder, self.back_recorder = self._make_recorders()

    def _make_recorders(self) -> tuple[Recorder, Recorder]:
        """Return the kernels of the forward and the backward pass."""
        kind, layout, dtype = self.scan.kind, self.scan.layout, self.scan.dtype
        width, size = layout.shape[-1] // layout.heads, layout.rows * layout.T * dtype.itemsize
        gates, H = kind.gates * (1 + kind.norm) * layout.hidden, layout.hidden
        forward = size * (2 * gates + 2 * (1 + kind.states) * H + 2 * width)
        back = size * (4 * gates + (4 + kind.states) * H + 3 * width)
        return Recorder(self.device, forward, heuristics.RECORDED_FORWARD_SHARE), Recorder(self.device, back)

    def find_weights(self, weights: Sequence[Tensor]) -> GatedWeights:
        """Return those of this cell."""
        return GatedWeights(*(None if i is None else weights[i] for i in self.indices))

    def forward(self, call: Call) -> tuple[tuple[Tensor, ...], Saved | None]:
        """Return the outputs, the last states, and what the backward pass reads."""
        stream = self._find_recording_stream()
        if stream is None:
            found = self.scan.run_forward(call, self._find_start())
        else:
            has = len(call.states), call.lengths is not None
            key = stream, product_flags(), call.train, call.x.dtype, has, list_addresses(call.weights)

            def launch(tensors: Any) -> Any:  # noqa: ANN401  # trees
                x, states, lengths = tensors
                own = Call(x, states, call.weights, lengths=lengths, train=call.train)
                return self.scan.run_forward(own, self._find_start())

            found = self.recorder.run(launch, key, (call.x, tuple(call.states), call.lengths))
        saved = None if found.saved is None else found.saved._replace(places=self.places)
        return (found.y, *found.ends), saved

    def _find_start(self) -> tuple[Tensor, ...]:
        """Return zeros as first states, in memory that the current stream may read."""
        if self.stream is not None and self.stream == find_stream(self.device):
            return self.start
        return self.scan.make_start()

    def backward(self, call: Call, saved: Saved, grads: Sequence[Maybe], needs: Gradients) -> Gradients:
        """Return the gradients; most launches are replayed when passes of this form have been made often enough."""
        own = saved.copies or call.weights
        addresses = () if self.is_cast else list_addresses(own)
        if not self.is_cast and (addresses != self.places.addresses or not are_contiguous(own)):
            call.weights = read_moved(own, self.places.shapes, self.weight_dtype, self.device)
            addresses = list_addresses(call.weights)
        stream = self._find_recording_stream()
        grads = tuple(None if d is None else d.contiguous() for d in grads)
        if stream is None:
            return self.scan.run_backward(call, saved, grads, needs)
        given = call.x, saved, grads, call.lengths  # copies of weights, in `saved`, are elsewhere in every pass

        def launch(tensors: Any) -> Any:  # noqa: ANN401  # trees
            x, saved, grads, lengths = tensors
            own = Call(x, call.states, call.weights, lengths=lengths, train=True)
            return self.scan.run_backward(own, saved, grads, needs)

        is_given = tuple(d is None for d in grads), call.lengths is None, len(call.states), saved.kept is None
        key = stream, product_flags(), _list_needs(needs), addresses, is_given
        found: Gradients = self.back_recorder.run(launch, key, given)
        return found

    def differentiate(self, call: Call, grads: Sequence[Maybe]) -> Gradients:
        """Return the gradients by the loop."""
        return self.scan.differentiate(call, grads, lambda own: bind_weights(self.cell, own))

    def _find_recording_stream(self) -> int | None:
        """Return the current stream if graphs can be recorded there now, else None."""
        return find_stream(self.device) if self.device.type == "cuda" else None


def _list_needs(needs: Gradients) -> tuple[bool, ...]:
    """Return what a backward pass depends on: whether the gradients of x, weight_ih and bias_ih are needed."""
    own = GatedWeights(*needs.weights)
    return bool(needs.x), bool(own.weight_ih), bool(own.bias_ih)


class GatedPlan:
    """Run a stack of gated cells over inputs of one shape.

    Args:
        stack: The cells, and the form of the input.
        codes: The kernel of each cell.
        weights: All weights of the stack.
        backend: The name of the first cell's kernel.
        dtype: The type that autocast computes in; that of the weights if omitted.
        dropout: Share of the outputs of every layer but the last that is dropped.
    """

    may_cover = True  # its passes are recorded, so calls of other shapes are faster padded than on their own

    def __init__(
        self,
        stack: Stack,
        codes: Sequence[Gated | GatedHeads],
        weights: Sequence[Tensor],
        backend: str,
        dtype: torch.dtype | None = None,
        dropout: float = 0.0,
    ) -> None:
        self.backend, self.h_shapes, self.dropout = backend, stack.state_shapes, dropout
        self.B, self.T, self.ways = stack.B, stack.T, stack.ways
        self.cells = [PreparedGated(stack, i, code, weights, dtype) for i, code in enumerate(codes)]

    def run(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        train: bool,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Run the stack; the arguments and results are those of `PreparedStack.run` (`kernels/cpu/prepared.py`)."""
        ends = []
        for begin in range(0, len(self.cells), self.ways):
            if begin and self.dropout:
                x = F.dropout(x, self.dropout)
            outputs = []
            for i in range(begin, begin + self.ways):
                cell = self.cells[i]
                own = [s[i : i + 1] for s in states] if len(self.cells) > 1 else states
                call = Call(x, own, cell.find_weights(weights), lengths=lengths, train=train)
                y, *end = run_prepared(cell, call)
                outputs.append(y)
                ends.append(end)
            x = outputs[0] if self.ways == 1 else torch.cat(outputs, -1)
        last = ends[0] if len(ends) == 1 else [torch.cat(parts) for parts in zip(*ends, strict=True)]
        return x, last[0] if len(last) == 1 else tuple(last)
