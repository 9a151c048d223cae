"""One AttnRNN cell of a prepared call: its kernels, their arguments and the memory of its backward passes.

All of it is determined when a plan is made, so that a call only allocates, sets a few addresses and launches.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.core.checks import are_contiguous, read_moved
from seqloom.core.job import ScanJob
from seqloom.core.memory import empty, empty_like, new_empty
from seqloom.core.precision import product_flags
from seqloom.kernels import heuristics
from seqloom.kernels.autograd import Call, Gradients, run_prepared
from seqloom.kernels.cuda.attn_rnn.backward import Chunk, DividedChunk, align, name_weights
from seqloom.kernels.cuda.attn_rnn.scan import AttnRNNWeights, Tier, read_padded
from seqloom.kernels.cuda.attn_rnn.setting import AttnRNNInputs
from seqloom.kernels.cuda.attn_rnn.whole_pass import WholePass
from seqloom.kernels.cuda.products import exact
from seqloom.kernels.cuda.runtime.recorded import Recorder, list_addresses
from seqloom.kernels.current_stream import find_stream
from seqloom.kernels.stack import Stack

Maybe = Tensor | None
_with_pass: deque[weakref.ref[PreparedCell]] = deque()  # the cells that keep memory, the oldest first


class CellSaved(NamedTuple):
    """What a backward pass reads besides the call.

    Attributes:
        u: The projected input, in the order of the input.
        states: After all steps, in the same order.
        first: The state before them, in float32.
    """

    u: Tensor
    states: Tensor
    first: Tensor


class PreparedCell:
    """One cell of a plan, a `Prepared` (`../../autograd.py`).

    A backward pass in one chunk keeps its memory and records most launches itself (WholePass); other short passes are
    recorded as they are.

    Args:
        stack: All cells of the plan.
        index: Which of them it is.
        tier: How it is divided over the GPU.
        weights: All weights of the stack.
    """

    def __init__(self, stack: Stack, index: int, tier: Tier, weights: Sequence[Tensor]) -> None:
        cell, names = stack.cells[index], stack.names[index]
        self.tier, self.B, self.T = tier, stack.B, stack.T
        self.indices = [names.get(name) for name in AttnRNNWeights._fields]
        like = weights[0].detach()
        self.dtype, self.device = like.dtype, like.device
        self.is_time_first = len(stack.shape) == 3 and not stack.batch_first
        shape = torch.Size((*stack.shape[:-1], cell.input_size))
        mine = {name: i for i, name in enumerate(AttnRNNWeights._fields) if name in names}
        self.stack = Stack([cell], [mine], shape, stack.batch_first, 1)
        job = ScanJob(new_empty(like, self.B, self.T, cell.input_size), ())
        self.inputs = AttnRNNInputs(cell, read_padded(cell, job), None, None, None, None)
        self.H = self.inputs.setting.hidden  # number of units in the kernels
        # whether it is worth checking for products with the hi/lo split
        self.is_large = self.B * self.T * self.H * cell.input_size >= heuristics.EXACT_LEAST_PRODUCTS
        self.last_shape = torch.Size((*self.stack.state_shapes[0][:-1], self.H))
        self.h_like = empty((), dtype=torch.float32, device=self.device).expand(self.last_shape)
        self.end_like = self.h_like.to(self.dtype) if tier.gives_end else self.h_like
        self.code = tier.find_code(self.inputs.setting, "forward", self.B, self.device)
        own = self.find_weights(weights)
        self.addresses, self.shapes = list_addresses(own), [None if w is None else w.shape for w in own]
        values = {"w": name_weights(own.recurrent), "B": self.B, "T": self.T}
        B, T, H = self.B, self.T, self.H
        by_row = {"x_row": T * H, "x_step": H, "y_row": T * H, "y_step": H}
        by_step = {"x_row": H, "x_step": B * H, "y_row": H, "y_step": B * H}
        self.arguments: Any = self.code.arguments
        self.filled = bytes(self.code.pack(values | (by_step if self.is_time_first else by_row)))
        self.steps = tier.count_steps(empty(B, T, H, dtype=self.dtype, device="meta"))  # steps per chunk
        self.initial, self.stream = cell.initial, find_stream(self.device)
        self.start = self._make_start()
        self.is_whole = self.steps >= T and isinstance(tier.chunk, type) and issubclass(tier.chunk, DividedChunk)
        self.passes: dict[int | None, WholePass] = {}  # by stream
        # Whether it is listed among the cells that keep memory, and the size of that memory.
        self.is_listed, self.kept_bytes = False, 0
        # Values per row that a backward pass reads or writes.
        numbers = (5 * T + 16 * self.steps) * H + 2 * T * cell.input_size
        self.recorder = Recorder(self.device, numbers * B * self.dtype.itemsize)

    def _make_start(self) -> Tensor:
        """Return the cell's initial state, rounded to the type of the layer."""
        return torch.full(self.last_shape, self.initial, dtype=self.dtype, device=self.device).float()

    def find_weights(self, weights: Sequence[Tensor]) -> AttnRNNWeights:
        """Return the weights of this cell."""
        return AttnRNNWeights(*(None if i is None else weights[i] for i in self.indices))

    def run(self, x: Tensor, h0: Maybe, weights: Sequence[Tensor], train: bool) -> tuple[Tensor, ...]:
        """Return the outputs, and the last state (1, B, H), or (1, H) for a single sequence."""
        states = () if h0 is None else (h0,)
        return run_prepared(self, Call(x, states, self.find_weights(weights), train=train))

    def forward(self, call: Call) -> tuple[tuple[Tensor, ...], CellSaved]:
        """Return the outputs, the last state, and what the backward pass reads."""
        h0 = call.states[0] if call.states else None
        y, last, *saved = self.go_forward(call.x, h0, AttnRNNWeights(*call.weights))
        return (y, last), CellSaved(*saved)

    def backward(self, call: Call, saved: CellSaved, grads: Sequence[Maybe], needs: Gradients) -> Gradients:
        """Return the gradients; most launches are replayed once passes of this form have run often enough."""
        wanted = AttnRNNWeights(*needs.weights)
        ends = tuple(None if d is None else d.contiguous() for d in grads)
        asked = bool(needs.x), any(needs.states), bool(wanted.weight_u), bool(wanted.bias_u)
        found = self.find_gradients(call.x, saved, ends, AttnRNNWeights(*call.weights), asked)
        states = [
            None if d is None else d.view(h.shape).to(h.dtype)
            for d, h in zip((found.states or (None,)), call.states, strict=False)
        ]
        return found._replace(states=states)

    def differentiate(self, call: Call, grads: Sequence[Maybe]) -> Gradients:
        """Return the gradients by the loop."""
        dx, *rest = self.stack.differentiate(call.x, call.states, call.weights, grads)
        k = len(call.states)
        return Gradients(dx, rest[:k], rest[k:])

    def go_forward(self, x: Tensor, h0: Maybe, own: AttnRNNWeights) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the outputs, the last state, and the kernel's input, states and first state.

        Outputs, input and states are in the order of x, the first state is in float32.
        """
        if own.weight_u is None:
            u = x
        elif self.is_large:
            u = exact.linear(x, own.weight_u, own.bias_u).view(*x.shape[:-1], -1)
        else:
            u = torch._C._nn.linear(x, own.weight_u, own.bias_u)
        if u.data_ptr() % 16:
            u = u.clone()
        if h0 is not None:
            first = h0.float()
        elif self.stream is not None and self.stream == find_stream(self.device):
            first = self.start
        else:  # memory of another stream may not be ready
            first = self._make_start()
        y, last = empty_like(u), empty_like(self.end_like)
        arguments = self.fill_arguments(own)
        arguments.x, arguments.y, arguments.h0 = u.data_ptr(), y.data_ptr(), first.data_ptr()
        if self.tier.gives_end:
            arguments.end = last.data_ptr()
        else:
            arguments.last = last.data_ptr()
        self.code.start(arguments, self.B, self.device)
        return y, last.to(self.dtype), u, y, first

    def fill_arguments(self, _own: AttnRNNWeights) -> Any:  # noqa: ANN401  # a struct of C
        """Return the arguments of the forward kernel, with the addresses of the weights."""
        return self.arguments.from_buffer_copy(self.filled)

    def find_gradients(
        self,
        x: Tensor,
        saved: CellSaved,
        grads: tuple[Maybe, ...],
        own: AttnRNNWeights,
        needs: tuple[bool, bool, bool, bool],
    ) -> Gradients:
        """Return the gradients; that of the first state is in float32.

        Args:
            x: The input.
            saved: What the forward pass saved.
            grads: The gradients of the outputs and of the last state, contiguous; None for zeros.
            own: The weights.
            needs: Whether the gradients of x, of the first state, weight_u and bias_u are needed.
        """
        if list_addresses(own) != self.addresses or not are_contiguous(own):
            own = AttnRNNWeights(*read_moved(own, self.shapes, self.dtype, self.device))

        def launch(tensors: Any) -> Gradients:  # noqa: ANN401  # trees
            x, saved, grads = tensors
            return self.launch_back(x, saved, grads, own, needs)

        if self.is_whole:  # recorded by itself
            return launch((x, saved, grads))
        found: Gradients = self.record(self.recorder, launch, (x, saved, grads), own, (*needs, *map(_is_none, grads)))
        return found

    def record(
        self,
        recorder: Recorder,
        launch: Callable[[Any], Any],
        tensors: Any,  # noqa: ANN401  # trees
        own: AttnRNNWeights,
        form: tuple[bool, ...],
    ) -> Any:  # noqa: ANN401  # trees
        """Run a pass; most launches are replayed once passes of this form have run often enough."""
        stream = self._find_recording_stream()
        if stream is None:
            return launch(tensors)
        return recorder.run(launch, (stream, product_flags(), form, list_addresses(own)), tensors)

    def _find_recording_stream(self) -> int | None:
        """Return the current stream if graphs can be recorded there now, else None."""
        return find_stream(self.device) if self.device.type == "cuda" else None

    def launch_back(
        self,
        x: Tensor,
        saved: CellSaved,
        grads: tuple[Maybe, ...],
        own: AttnRNNWeights,
        needs: tuple[bool, bool, bool, bool],
    ) -> Gradients:
        """Do what `find_gradients` does, launch by launch."""
        needs_x, needs_state, needs_weight, needs_bias = needs
        needs_du = needs_x or own.weight_u is not None
        du, dh, gradients = self.go_back(saved, own, grads, (needs_du, needs_state))
        dx, dweight, dbias = None, None, None
        if needs_du and du is not None:
            flat = (du.transpose(0, 1) if self.is_time_first else du).reshape(-1, self.H)
            if own.weight_u is None:
                dx = flat.view(x.shape)
            else:
                given = x.view(-1, x.shape[-1])
                dx, dweight = exact.differentiate_linear(flat, given, own.weight_u, (needs_x, needs_weight))
                dx = None if dx is None else dx.view(x.shape)
                dbias = flat.sum(0) if needs_bias else None
        states = (dh,) if needs_state else ()
        return Gradients(dx, states, AttnRNNWeights(*gradients)._replace(weight_u=dweight, bias_u=dbias))

    def go_back(
        self,
        saved: CellSaved,
        own: AttnRNNWeights,
        grads: tuple[Maybe, ...],
        needs: tuple[bool, bool],
    ) -> tuple[Maybe, Maybe, list[Maybe]]:
        """Return the gradients of u (B, T, H), the first state and the cell's weights.

        Args:
            saved: What the forward pass saved.
            own: The weights.
            grads: The gradients of the outputs and of the last state, None for zeros.
            needs: Whether the gradients of u and of the first state are needed.
        """
        dy, dlast = grads
        if not self.is_whole:
            return self._go_back_in_chunks(saved, own, dy, dlast)
        stream = find_stream(self.device)
        kept = self.passes.pop(stream, None) or self._make_pass(saved.u, own)
        if not kept.reads(own.recurrent):
            kept.take_weights(own.recurrent)
        du = new_empty(saved.u, self.B, self.T, self.H) if needs[0] else None
        dh = empty_like(self.h_like) if needs[1] else None
        is_alone = stream is not None and self.device.type == "cuda"
        gradients = kept.run((*saved, dy, dlast), du, dh, product_flags(), is_alone)
        self._keep(stream, kept)
        return du, dh, gradients

    def _make_chunk(self, u: Tensor) -> Chunk:
        """Allocate what a backward pass over a chunk of steps writes."""
        return self.tier.chunk(self.inputs, self.steps, u.view(self.B, self.T, self.H))  # only uses the shape

    def _make_pass(self, u: Tensor, own: AttnRNNWeights) -> WholePass:
        chunk = self._make_chunk(u)
        assert isinstance(chunk, DividedChunk)
        return WholePass(chunk, u, self.T, self.is_time_first, own.recurrent)

    def _go_back_in_chunks(
        self,
        saved: CellSaved,
        own: AttnRNNWeights,
        dy: Maybe,
        dlast: Maybe,
    ) -> tuple[Tensor, Tensor, list[Maybe]]:
        """Do what `go_back` does, with kernels that expect (B, T, H)."""
        first, chunk = saved.first, self._make_chunk(saved.u)
        u, y = map(self._put_rows_first, (saved.u, saved.states))
        dy = torch.zeros_like(u) if dy is None else self._put_rows_first(align(dy))
        du = empty_like(u)
        if dlast is None:
            dh = torch.zeros(self.B, self.H, dtype=torch.float32, device=self.device)
        else:
            dh = dlast.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        values = {"x": u, "y": y, "h0": first, "start": None, "dy": dy, "du": du, "dh": dh, "B": self.B, "T": self.T}
        chunk.load(values, own.recurrent)
        for begin in reversed(range(0, self.T, self.steps)):
            chunk.go_back(begin, min(self.steps, self.T - begin))
        return du, dh, chunk.gradients(own.recurrent)

    def _put_rows_first(self, t: Tensor) -> Tensor:
        """Return (B, T, H) of a tensor in the order of x, contiguous if the backward pass needs that."""
        t = t.transpose(0, 1) if self.is_time_first else t
        return t if self.tier.takes_strides and t.dim() == 3 else t.contiguous().view(self.B, self.T, self.H)

    def _keep(self, stream: int | None, kept: WholePass) -> None:
        """Keep the memory of a pass for the next one on this stream."""
        if stream is None or kept.count_bytes() > heuristics.KEPT_BYTES // 2:
            return
        self.passes = {stream: kept}
        if self.is_listed:
            return
        self.is_listed, self.kept_bytes = True, kept.count_bytes()
        cells = [*(cell for ref in _with_pass if (cell := ref()) is not None), self]
        while len(cells) > heuristics.CELLS_KEPT or sum(cell.kept_bytes for cell in cells) > heuristics.KEPT_BYTES:
            oldest = cells.pop(0)
            oldest.passes, oldest.is_listed = {}, False
        _with_pass.clear()
        _with_pass.extend(map(weakref.ref, cells))


def _is_none(d: Maybe) -> bool:
    return d is None
