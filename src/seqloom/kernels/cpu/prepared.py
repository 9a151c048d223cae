"""A prepared call of the CPU engine for one form of input: a stack of cells over sequences, in one graph node.

It belongs to one stack of cells with its weights and to one shape of the input. Everything that does not change from
call to call is decided and checked at construction, so that a call only allocates, multiplies the input by the weights,
and calls the engine. A layer compares what it depends on at every call (`layers/recurrent/plans.py`); a job of one cell
(`kernels.py`) constructs its own, without the product with the input.
"""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.checks import are_contiguous, read_moved
from seqloom.core.memory import empty, empty_like, new_empty
from seqloom.kernels import heuristics
from seqloom.kernels.attn_rnn_plain import WEIGHT_NAMES
from seqloom.kernels.autograd import Call, Gradients, Maybe, run_prepared
from seqloom.kernels.cpu.engine import CELLS, TYPES, Args, load_library, record_size, split_threads
from seqloom.kernels.cpu.kept_memory import LEAST_BYTES, kept_memory
from seqloom.kernels.stack import ProjectedStack, Stack

# The names of the weights that the engine reads, in its order.
ENGINE_WEIGHTS = {
    **dict.fromkeys(("rnn", "gru", "lstm"), ("weight_hh", "bias_hh")),
    "ln_gru": ("weight_hh", "scale_hh", "bias_hh"),
    "ln_lstm": ("weight_hh", "scale_hh", "bias_hh", "scale_c", "bias_c"),
    "attn_rnn": WEIGHT_NAMES,
}
# Cells whose `project` is a product: the names of its matrix and bias.
INPUT_WEIGHTS = {
    **dict.fromkeys(("rnn", "gru", "lstm"), ("weight_ih", "bias_ih")),
    "attn_rnn": ("weight_u", "bias_u"),
}
CONTEXT_FLAGS = {"h": 1, "x": 2, "h+x": 4, "h*x": 8}  # as in csrc/attn_rnn.hpp
# The settings of these cells that are supported here; a cell with any other setting has different equations.
SETTINGS = {"bias", "nonlinearity", "reset_after", "update_bias", "proj_size", "forget_bias"}
SETTINGS |= {"heads", "context", "norm", "gate_bias", "slots", "initial", "input_norm"}

_address, _empty_like, _linear = Tensor.data_ptr, empty_like, torch._C._nn.linear


def _find_place(name: str) -> int:
    """Return where an argument of the engine is among its numbers: an array is filled faster than a structure."""
    place: int = getattr(Args, name).offset // 8
    return place


_AT_X, _AT_Y, _AT_C, _AT_SAVED, _AT_W = map(_find_place, ("x", "y", "c", "saved", "w"))
_AT_LENGTHS, _AT_RESET, _AT_MASK, _AT_KEEP = map(_find_place, ("lengths", "reset", "mask", "keep"))
_AT_S0, _AT_S1, _AT_START = map(_find_place, ("s0", "s1", "start"))
_AT_DX, _AT_DY, _AT_DW = map(_find_place, ("dx", "dy", "dw"))
_AT_INPUT, _AT_INPUT_W = map(_find_place, ("input", "input_w"))
_AT_DINPUT, _AT_DINPUT_W = map(_find_place, ("dinput", "dinput_w"))
_AT_DS0, _AT_DS1, _AT_DSTART = map(_find_place, ("ds0", "ds1", "dstart"))


def _choose_memory(like: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that allocates a tensor like this one: in memory that is kept between calls if it is large."""
    return _empty_like if like.numel() * like.itemsize < LEAST_BYTES else kept_memory.allocate_like


def why_not_stack(cell: Cell) -> str | None:
    """Return why a layer of this cell has no prepared call; None if it has one."""
    if cell.name not in INPUT_WEIGHTS:
        return f"cell {cell.name or type(cell).__name__!r} has no prepared call"
    known = {"self", "input_size", "hidden_size", *SETTINGS}
    unknown = [name for name in inspect.signature(type(cell).__init__).parameters if name not in known]
    read = (*INPUT_WEIGHTS[cell.name], *ENGINE_WEIGHTS[cell.name])
    unknown += [name for name in cell.__dict__.get("_names", ()) if name not in read]
    if unknown:
        return f"{unknown[0]} has no prepared call"
    if getattr(cell, "slots", 1) > 1 or getattr(cell, "proj_size", 0) or getattr(cell, "input_norm", False):
        return "slots, projections and normalised inputs have no prepared call"
    if cell.__dict__.get("learned_states") or not {"start", "initial_state", "project"}.isdisjoint(cell.__dict__):
        return "the initial state is learned or computed"
    engine = load_library()
    return engine if isinstance(engine, str) else None


class CPUSaved(NamedTuple):
    """What the backward pass needs of each cell: its input, the input's product, outputs, second state and record."""

    inputs: tuple[Maybe, ...]
    products: tuple[Maybe, ...]
    outputs: tuple[Maybe, ...]
    seconds: tuple[Maybe, ...]
    records: tuple[Maybe, ...]


@dataclass(frozen=True, eq=False)
class CellPart:
    """One cell in one direction: the indices of its weights in the stack, and the arguments that do not change."""

    cell: Cell
    number: int  # number of the cell in the engine
    weight: int | None  # indices of the matrix and the bias of the input among the weights
    bias: int | None
    own: tuple[int | None, ...]  # indices of the engine's weights
    settings: array[int]  # the engine's arguments that are not addresses
    record: Maybe  # template of what is saved for the backward pass; None: it is recomputed
    width: int  # width of the projected input
    gx_like: Tensor
    keep_gx: Callable[[Tensor], Tensor]  # allocate a projected input and a record
    keep_record: Callable[[Tensor], Tensor]
    is_whole: bool  # whether the engine computes the product with the input, too


class PreparedStack:
    """Run a stack of cells over inputs of one shape.

    Args:
        stack: The cells, and the form of the input; `ProjectedStack` if that is what `project` returned.
        weights: All weights of the stack.
    """

    backend = "cpu"

    def __init__(self, stack: Stack, weights: Sequence[Tensor]) -> None:
        engine, first = load_library(), stack.cells[0]
        assert not isinstance(engine, str)
        self.run_engine: Any = engine.seqloom_run
        self.stack, self.ways, self.batch_first = stack, stack.ways, stack.is_batch_first
        self.T, self.B, self.H, self.dtype = stack.T, stack.B, first.hidden_size, weights[0].dtype
        self.slots = getattr(first, "slots", 1)  # for the engine, a row with m slots is m rows
        self.lines = self.B * self.slots  # the engine's rows
        self.rows, self.type_number = stack.shape[:-1], TYPES[self.dtype]
        self.copies_output = self.ways == 1 and not self.batch_first  # copied in training
        # without memory: empty_like is faster than empty
        self.like = empty((), dtype=self.dtype, device="cpu")
        self.y_like = self.like.expand(*(self.rows if self.slots == 1 else (self.lines, self.T)), self.H)
        # for buffers that no caller sees: new pages are in the cache, old gradients are not
        self.keep_y = _choose_memory(self.y_like)
        self.h_shapes = stack.state_shapes
        self.h_like, self.states = self.like.expand(self.h_shapes[0]), len(self.h_shapes)
        self.split = split_threads(self.lines, self.H, self.slots)
        self.parts = [self._prepare(i, weights) for i in range(len(stack.cells))]
        self.layers = [self.parts[i : i + self.ways] for i in range(0, len(self.parts), self.ways)]
        self.addresses = self._find_addresses(weights)
        self.shapes = [None if w is None else w.shape for w in weights]
        self.templates = self._fill_templates(self.addresses)
        self.step = self.lines * self.H * self.dtype.itemsize  # bytes between the states of two cells
        self.starts: State = ()  # zeros
        if not isinstance(stack, ProjectedStack):
            start = first.initial_state(new_empty(weights[0].detach(), self.B, 1))
            if any(bool(s.any()) for s in start):
                self.starts = stack.start(weights[0].detach())

    def _prepare(self, index: int, weights: Sequence[Tensor]) -> CellPart:
        cell, names, backwards = self.stack.cells[index], self.stack.names[index], index % self.ways == 1
        is_projected = isinstance(self.stack, ProjectedStack)
        weight, bias = (None, None) if is_projected else INPUT_WEIGHTS[cell.name]
        args = Args(self.lines, self.T, self.H, self.split.columns, slots=self.slots)
        args.time_first, args.backwards = not self.batch_first, backwards
        if cell.name == "attn_rnn":
            args.heads, args.parts = cell.heads, sum(CONTEXT_FLAGS[part] for part in cell.context)
            args.kind = int(cell.norm)
        elif cell.name == "rnn":
            args.kind = int(cell.nonlinearity == "relu")
        own = tuple(names.get(name) for name in ENGINE_WEIGHTS[cell.name])
        size = record_size(cell.name, self.dtype, args) * self.lines * self.T
        record = self.like.expand(size) if size * self.dtype.itemsize <= heuristics.SAVED_BYTES else None
        width = self.stack.shape[-1] if is_projected else self.H
        width = len(weights[names[weight]]) if weight in names else width
        place, place_b = names.get(weight) if weight else None, names.get(bias) if bias else None
        is_whole = False
        if place is not None:
            rows, inputs = self.T * self.B + heuristics.INPUT_PRODUCT_ROWS, weights[place].shape[1]
            is_whole = rows * inputs * width <= heuristics.INPUT_PRODUCT_NUMBERS
            args.inputs, args.width = is_whole * inputs, width
        return CellPart(
            cell,
            CELLS.index(cell.name),
            place,
            place_b,
            own,
            array("Q", bytes(args)),
            record,
            width,
            gx_like := self.like.expand(*self.y_like.shape[:-1], width),
            _choose_memory(gx_like),
            _empty_like if record is None else _choose_memory(record),
            is_whole,
        )

    def _fill_templates(self, addresses: Sequence[int]) -> list[array[int]]:
        """Return the engine's arguments for each part, with the addresses of its weights."""
        templates = []
        for part in self.parts:
            args = part.settings[:]
            for i, place in enumerate(part.own):
                if place is not None:
                    args[_AT_W + i] = addresses[place]
            for i, place in enumerate((part.weight, part.bias)):
                if part.is_whole and place is not None:
                    args[_AT_INPUT_W + i] = addresses[place]
            templates.append(args)
        return templates

    def run(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        train: bool,
        lengths: Maybe = None,
    ) -> tuple[Tensor, Any]:
        """Run the stack.

        Args:
            x: Of the prepared shape and type, contiguous.
            states: h, or h and c, (cells, B, H) each and contiguous; empty for the initial state.
            weights: All weights that this was prepared for.
            train: Whether something needs a gradient.
            lengths: (B,) int64, the real steps of each row, which nobody else changes; None if all are real.

        Returns:
            The output and the last state, in torch's form.
        """
        call = Call(x, states, weights, lengths=lengths, train=train)
        y, *end = run_prepared(self, call) if train else self.forward(call)[0]
        return y, end[0] if self.states == 1 else tuple(end)

    def _list_constants(self, call: Call) -> Sequence[tuple[int, Tensor]]:
        """Return what all cells read besides states, with one row for each slot, and its places in the arguments."""
        if call.lengths is None and call.reset is None and call.mask is None and not call.keep:
            return ()
        given = (_AT_LENGTHS, call.lengths), (_AT_RESET, call.reset), (_AT_MASK, call.mask)
        found: list[tuple[int, Tensor]] = [(place, self._split_slots(t)) for place, t in given if t is not None]
        many = (k if self.slots == 1 else k.transpose(1, 2).reshape(self.y_like.shape) for k in call.keep)
        return found + list(enumerate(many, _AT_KEEP))

    def _fill(
        self,
        index: int,
        template: array[int],
        call: Call,
        constants: Sequence[tuple[int, Tensor]],
        x: Tensor,
        part: Sequence[Any],  # of what is saved
    ) -> array[int]:
        """Return the engine's arguments that both passes of a cell have."""
        _, gx, y, c, record = part
        args = template[:]
        args[_AT_X], args[_AT_Y], args[_AT_INPUT] = _address(gx), _address(y), _address(x)
        if c is not None:
            args[_AT_C] = _address(c)
        if record is not None:
            args[_AT_SAVED] = _address(record)
        for place, t in constants:
            args[place] = _address(t)
        if states := call.states or self.starts:
            for k, t in enumerate(states, _AT_S0):
                args[k] = _address(t) + index * self.step
        if call.starts:
            for k, t in enumerate(call.starts, _AT_START):
                args[k] = _address(t) + index * self.step
        return args

    def _describe_memory(self, part: CellPart) -> str:
        name = part.cell.name
        return f"the CPU engine could not allocate memory for {name} with batch {self.B} and hidden size {self.H}"

    def forward(self, call: Call) -> tuple[tuple[Tensor, ...], CPUSaved | None]:
        """Return the output and the last states, and what the backward pass needs."""
        train, x = call.train, call.x
        end = [_empty_like(self.h_like) for _ in range(self.states)]
        constants = self._list_constants(call)
        saved: list[tuple[Maybe, ...]] = []
        for number, layer in enumerate(self.layers):
            outputs = []
            for part in layer:
                gx = self._split_slots(x) if part.weight is None else self._project(part, x, call.weights, train)
                y = self.keep_y(self.y_like) if train and self.copies_output else _empty_like(self.y_like)
                if call.lengths is not None:
                    y.zero_()  # the engine writes real steps only
                c = self.keep_y(self.y_like) if train and self.states == 2 else None
                record = part.keep_record(part.record) if train and part.record is not None else None
                index = len(saved)
                saved.append((x if number else None, gx, y, c, record))
                args = self._fill(index, self.templates[index], call, constants, x, saved[-1])
                for k, t in enumerate(end, _AT_S1):
                    args[k] = _address(t) + index * self.step
                if self.run_engine(part.number, 0, self.type_number, self.split.threads, args.tobytes()):
                    raise MemoryError(self._describe_memory(part))
                outputs.append(y)
            x = y if self.ways == 1 else torch.cat(outputs, -1)
        if self.slots > 1:
            x = x.unflatten(0, (-1, self.slots)).sum(1)
        elif train and self.copies_output:
            x = x.clone()  # as torch's, which callers may change in place
        return (x, *end), CPUSaved(*zip(*saved, strict=True)) if train else None

    def _split_slots(self, t: Tensor) -> Tensor:
        """Return one row for each slot of (B, ...)."""
        return t if self.slots == 1 else t.repeat_interleave(self.slots, 0)

    def _project(self, part: CellPart, x: Tensor, weights: Sequence[Tensor], train: bool) -> Tensor:
        """Return the product of the input and a cell's weight, with its bias."""
        assert part.weight is not None
        if part.is_whole:
            return _empty_like(part.gx_like)  # the engine writes it
        weight, bias = weights[part.weight], None if part.bias is None else weights[part.bias]
        if not train or part.keep_gx is _empty_like:
            return _linear(x, weight, bias)
        gx = part.keep_gx(part.gx_like)
        rows, products = x.view(-1, x.shape[-1]), gx.view(-1, part.width)
        if bias is None:
            torch.mm(rows, weight.t(), out=products)
        else:
            torch.addmm(bias, rows, weight.t(), out=products)
        return gx

    def backward(self, call: Call, saved: CPUSaved, grads: Sequence[Maybe], needs: Gradients) -> Gradients:
        """Return the gradients of x, the states, the weights and the states after a reset."""
        dy, *dend = [None if d is None else d.contiguous() for d in grads]
        weights, templates = call.weights, self.templates
        # FSDP and ZeRO-3 free the weights after the forward pass, and restore them at other addresses
        if self._find_addresses(weights) != self.addresses or not are_contiguous(weights):
            weights = read_moved(weights, self.shapes, self.dtype, self.like.device)
            templates = self._fill_templates(self._find_addresses(weights))
        constants = self._list_constants(call)
        gradients: list[Maybe] = [None] * len(weights)
        dstates = [_empty_like(self.h_like) if n else None for n in needs.states] if needs.states else []
        dstarts = [_empty_like(self.h_like) for _ in call.starts] if call.starts else []
        ends = [*enumerate(dend, _AT_DS1), *enumerate(dstates, _AT_DS0), *enumerate(dstarts, _AT_DSTART)]
        if dy is not None and self.slots > 1:
            dy = self._split_slots(dy)
        parts = list(zip(*saved, strict=True))
        for number in range(len(self.layers) - 1, -1, -1):
            dx = None
            for way in range(self.ways - 1, -1, -1):
                index = number * self.ways + way
                part = self.parts[index]
                x: Any = parts[index][0] if number else call.x
                args, own = self._fill(index, templates[index], call, constants, x, parts[index]), None
                if dy is not None:
                    own = dy if self.ways == 1 else dy.narrow(-1, way * self.H, self.H)
                    own = own.contiguous()
                    args[_AT_DY] = _address(own)
                dgx = _empty_like(part.gx_like) if part.weight is None else part.keep_gx(part.gx_like)
                if call.lengths is not None:
                    dgx.zero_()
                args[_AT_DX] = _address(dgx)
                for place, d in ends:
                    if d is not None:
                        args[place] = _address(d) + index * self.step
                for place, weight in enumerate(part.own, _AT_DW):
                    if weight is not None:
                        d = gradients[weight] = _empty_like(weights[weight])
                        args[place] = _address(d)
                more = dgx
                if part.is_whole:
                    for place, weight in enumerate((part.weight, part.bias), _AT_DINPUT_W):
                        if weight is not None and needs.weights[weight]:
                            d = gradients[weight] = _empty_like(weights[weight])
                            args[place] = _address(d)
                    if number or needs.x:
                        more = _empty_like(x)
                        args[_AT_DINPUT] = _address(more)
                if self.run_engine(part.number, 1, self.type_number, self.split.threads, args.tobytes()):
                    raise MemoryError(self._describe_memory(part))
                if part.weight is not None and not part.is_whole:
                    if not number and call.lengths is not None:  # padding may be NaN, and 0 times NaN is NaN
                        x = self.stack.clear_padding(x, call.lengths)
                    more = self._differentiate_product(part, x, dgx, weights, gradients, needs, bool(number))
                dx = more if dx is None else dx + more
            dy = dx
        if dy is not None and self.slots > 1:
            dy = dy.unflatten(0, (-1, self.slots)).sum(1)
        return Gradients(dy if needs.x else None, dstates, gradients, dstarts)

    def _differentiate_product(
        self,
        part: CellPart,
        x: Tensor,
        dgx: Tensor,
        weights: Sequence[Any],
        gradients: list[Maybe],
        needs: Gradients,
        is_inner: bool,
    ) -> Tensor:
        """Write the gradients of weight_ih and bias_ih, and return that of the input if it is needed."""
        assert part.weight is not None
        flat = dgx.view(-1, part.width)
        if needs.weights[part.weight]:
            gradients[part.weight] = flat.t().mm(x.reshape(-1, x.shape[-1]))
        if part.bias is not None and needs.weights[part.bias]:
            gradients[part.bias] = flat.sum(0)
        return flat.mm(weights[part.weight]).view(*self.rows, -1) if is_inner or needs.x else dgx

    def differentiate(self, call: Call, grads: Sequence[Maybe]) -> Gradients:
        """Return the gradients by the reference loop, with a graph."""
        return self.stack.find_gradients(call, grads)

    @staticmethod
    def _find_addresses(weights: Sequence[Any]) -> list[int]:
        return [0 if w is None else _address(w) for w in weights]
