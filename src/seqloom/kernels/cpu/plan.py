"""A prepared call of the CPU engine: a stack of cells over sequences, in one node of the graph.

A plan belongs to one stack of cells with its weights and to one shape of the input. All that does not change from call
to call is decided and checked when it is made, so that a call allocates, multiplies the input by the weights, and calls
the engine. Its owner compares what it depends on at every call (`layers/recurrent/plans.py`).
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.checks import read_moved, read_saved
from seqloom.core.memory import empty, empty_like, new_empty
from seqloom.kernels import heuristics
from seqloom.kernels.attn_rnn_plain import WEIGHT_NAMES
from seqloom.kernels.cpu.engine import CELLS, TYPES, Args, load_library, record_size, split_threads
from seqloom.kernels.cpu.kept_memory import LEAST_BYTES, kept_memory
from seqloom.kernels.cpu.kernels import CONTEXT_FLAGS
from seqloom.kernels.stack import Stack

# The cells that have a plan: the names of the two tensors that multiply the input, and the engine's weights.
PLANNED = {
    **dict.fromkeys(("rnn", "gru", "lstm"), (("weight_ih", "bias_ih"), ("weight_hh", "bias_hh"))),
    "attn_rnn": (("weight_u", "bias_u"), WEIGHT_NAMES),
}
# The settings of these cells that are known here; a cell with another one has equations that are not.
SETTINGS = {"bias", "nonlinearity", "reset_after", "update_bias", "proj_size", "forget_bias"}
SETTINGS |= {"heads", "context", "norm", "gate_bias", "slots", "initial", "input_norm"}
Maybe = Tensor | None

_address, _is_contiguous = Tensor.data_ptr, Tensor.is_contiguous
_empty_like, _linear = empty_like, torch._C._nn.linear
_keep_like = kept_memory.allocate_like  # for what no caller sees; new pages are in the cache, old gradients are not


def why_not_plan(cell: Cell) -> str | None:
    """Return why a cell has no plan; None if it has one."""
    if cell.name not in PLANNED:
        return f"cell {cell.name or type(cell).__name__!r} has no prepared call"
    known = {"self", "input_size", "hidden_size", *SETTINGS}
    unknown = [name for name in inspect.signature(type(cell).__init__).parameters if name not in known]
    unknown += [name for name in cell.__dict__.get("_names", ()) if name not in sum(PLANNED[cell.name], ())]
    if unknown:
        return f"{unknown[0]} has no prepared call"
    if getattr(cell, "slots", 1) > 1 or getattr(cell, "proj_size", 0) or getattr(cell, "input_norm", False):
        return "slots, projections and normalised inputs have no prepared call"
    if cell.__dict__.get("learned_states") or not {"start", "initial_state", "project"}.isdisjoint(cell.__dict__):
        return "the initial state is learned or computed"
    engine = load_library()
    return engine if isinstance(engine, str) else None


@dataclass(frozen=True, eq=False)
class Part:
    """One cell in one direction: its place among the weights of the stack, and the arguments that do not change."""

    cell: Cell
    number: int  # of the cell in the engine
    weight: int | None  # places among the weights: of the matrix and the bias that multiply the input
    bias: int | None
    own: tuple[int | None, ...]  # of the engine's weights
    settings: bytes  # the engine's arguments without an address
    record: Maybe  # like what is saved for the backward; None: it computes that again
    width: int  # of the projected input
    gx_like: Tensor
    is_large: bool  # whether the projected input is in memory that is kept


class StackPlan:
    """Run a stack of cells over inputs of one shape.

    Args:
        stack: The cells, and the form of the input.
        weights: All weights of the stack.
    """

    backend = "cpu"

    def __init__(self, stack: Stack, weights: Sequence[Tensor]) -> None:
        engine, first = load_library(), stack.cells[0]
        assert not isinstance(engine, str)
        self.run_engine: Any = engine.seqloom_run
        self.stack, self.ways, self.batch_first = stack, stack.ways, stack.is_batch_first
        self.T, self.B, self.H, self.dtype = stack.T, stack.B, first.hidden_size, weights[0].dtype
        self.rows, self.type_number = stack.shape[:-1], TYPES[self.dtype]
        self.copies_output = self.ways == 1 and not self.batch_first  # in training
        # without memory: empty_like is faster than empty
        self.like = empty((), dtype=self.dtype, device="cpu")
        self.y_like = self.like.expand(*self.rows, self.H)
        self.h_shapes = stack.state_shapes
        self.h_like, self.states = self.like.expand(self.h_shapes[0]), len(self.h_shapes)
        self.split = split_threads(self.B, self.H)
        self.parts = [self._prepare(i, weights) for i in range(len(stack.cells))]
        self.layers = [self.parts[i : i + self.ways] for i in range(0, len(self.parts), self.ways)]
        self.addresses, self.shapes = list(map(_address, weights)), [w.shape for w in weights]
        self.templates = self._fill_templates(self.addresses)
        self.step = self.B * self.H * self.dtype.itemsize  # bytes between the states of two cells
        start = first.initial_state(new_empty(weights[0].detach(), self.B, 1))
        self.starts: State = ()  # zeros
        if any(bool(s.any()) for s in start):
            self.starts = stack.start(weights[0].detach())

    def _prepare(self, index: int, weights: Sequence[Tensor]) -> Part:
        cell, names, backwards = self.stack.cells[index], self.stack.names[index], index % self.ways == 1
        (weight, bias), own = PLANNED[cell.name]
        args = Args(self.B, self.T, self.H, self.split.columns, slots=1)
        args.time_first, args.backwards = not self.batch_first, backwards
        if cell.name == "attn_rnn":
            args.heads, args.parts = cell.heads, sum(CONTEXT_FLAGS[part] for part in cell.context)
            args.kind = int(cell.norm)
        elif cell.name == "rnn":
            args.kind = int(cell.nonlinearity == "relu")
        places = tuple(names.get(name) for name in own)
        size = record_size(cell.name, self.dtype, args) * self.B * self.T
        record = self.like.expand(size) if size * self.dtype.itemsize <= heuristics.SAVED_BYTES else None
        width = self.H if weight not in names else len(weights[names[weight]])
        return Part(
            cell,
            CELLS.index(cell.name),
            names.get(weight),
            names.get(bias),
            places,
            bytes(args),
            record,
            width,
            self.like.expand(*self.rows, width),
            self.T * self.B * width * self.dtype.itemsize >= LEAST_BYTES,
        )

    def _fill_templates(self, addresses: Sequence[int]) -> list[bytes]:
        """Return the engine's arguments for each part, with the addresses of its weights."""
        templates = []
        for part in self.parts:
            args = Args.from_buffer_copy(part.settings)
            for i, place in enumerate(part.own):
                if place is not None:
                    args.w[i] = addresses[place]
            templates.append(bytes(args))
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
            x: Of the plan's shape and type, contiguous.
            states: h, or h and c, (cells, B, H) each and contiguous; empty for the initial state.
            weights: All weights, those of the plan.
            train: Whether something needs a gradient.
            lengths: (B,) int64, the real steps of each row, which no other code changes; None if all are real.

        Returns:
            The output and the last state, in torch's form.
        """
        if train:
            y, *end = _StackScan.apply(self, x, lengths, len(states), *states, *weights)
        else:
            y, end, _ = self.go_forward(x, states, weights, False, lengths)
        return y, end[0] if self.states == 1 else tuple(end)

    def go_forward(
        self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], train: bool, lengths: Maybe
    ) -> tuple[Tensor, list[Tensor], list[Maybe]]:
        """Return the output, the last states, and what the backward needs of each cell: x, gx, y, c, the record."""
        threads = self.split.threads
        saved: list[Maybe] = []
        states = states or self.starts
        end = [_empty_like(self.h_like) for _ in range(self.states)]
        at_start, at_end, offset = [_address(s) for s in states], [_address(s) for s in end], 0
        templates = iter(self.templates)  # the owner has compared the addresses
        for layer in self.layers:
            outputs = []
            for part in layer:
                gx = x if part.weight is None else self._project(part, x, weights, train)
                y = _keep_like(self.y_like) if train and self.copies_output else _empty_like(self.y_like)
                if lengths is not None:
                    y.zero_()  # the engine writes real steps only
                c = _keep_like(self.y_like) if train and self.states == 2 else None
                record = _keep_like(part.record) if train and part.record is not None else None
                args = _read_arguments(next(templates), lengths, c, record)
                args.x, args.y = _address(gx), _address(y)
                s0, s1 = args.s0, args.s1
                for k, place in enumerate(at_end):
                    s1[k] = place + offset
                for k, place in enumerate(at_start):
                    s0[k] = place + offset
                if train:
                    saved += (x, gx, y, c, record)
                if self.run_engine(part.number, 0, self.type_number, threads, ctypes.byref(args)):
                    raise MemoryError(_describe_memory(self, part))
                outputs.append(y)
                offset += self.step
            x = y if self.ways == 1 else torch.cat(outputs, -1)
        return x, end, saved

    def _project(self, part: Part, x: Tensor, weights: Sequence[Tensor], train: bool) -> Tensor:
        """Return the product of the input and a cell's weight, with its bias."""
        assert part.weight is not None
        weight, bias = weights[part.weight], None if part.bias is None else weights[part.bias]
        if not (train and part.is_large):
            return _linear(x, weight, bias)
        gx = _keep_like(part.gx_like)
        rows, products = x.view(-1, x.shape[-1]), gx.view(-1, part.width)
        if bias is None:
            torch.mm(rows, weight.t(), out=products)
        else:
            torch.addmm(bias, rows, weight.t(), out=products)
        return gx

    def go_back(
        self,
        ctx: Any,  # noqa: ANN401  # the context of _StackScan
        saved: Sequence[Any],
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        dy: Maybe,
        dend: Sequence[Maybe],
    ) -> tuple[Maybe, list[Maybe], list[Maybe]]:
        """Return the gradients of x, the states and the weights."""
        needs, lengths = ctx.needs_input_grad, ctx.lengths
        needs_x, needs_states, needs_weights = needs[1], needs[4 : 4 + len(states)], needs[4 + len(states) :]
        threads, templates = self.split.threads, self.templates
        # FSDP and ZeRO-3 free the weights after the forward pass, and bring them back elsewhere
        if list(map(_address, weights)) != self.addresses or not all(map(_is_contiguous, weights)):
            weights = read_moved(weights, self.shapes, self.dtype, self.like.device)
            templates = self._fill_templates(list(map(_address, weights)))
        gradients: list[Maybe] = [None] * len(weights)
        before = states or self.starts
        dstart = [_empty_like(self.h_like) if n else None for n in needs_states]
        dend = [None if d is None else d.contiguous() for d in dend]
        at_end = [(k, _address(d)) for k, d in enumerate(dend) if d is not None]
        at_dstart = [(k, _address(d)) for k, d in enumerate(dstart) if d is not None]
        at_start = [(k, _address(s)) for k, s in enumerate(before)]
        index = len(self.parts)
        for number in range(len(self.layers) - 1, -1, -1):
            layer, dx = self.layers[number], None
            for way in range(self.ways - 1, -1, -1):
                index -= 1
                part, offset = layer[way], index * self.step
                x, gx, y, c, record = saved[5 * index : 5 * index + 5]
                args, own = _read_arguments(templates[index], lengths, c, record), None
                if dy is not None:
                    own = dy if self.ways == 1 else dy.narrow(-1, way * self.H, self.H)
                    own = own.contiguous()
                    args.dy = _address(own)
                dgx = _empty_like(part.gx_like) if part.weight is None else _keep_like(part.gx_like)
                if lengths is not None:
                    dgx.zero_()
                    x = x if number else self.stack.clear_padding(x, lengths)  # 0 times NaN would be NaN
                args.x, args.y, args.dx = _address(gx), _address(y), _address(dgx)
                for places, pairs in ((args.s0, at_start), (args.ds1, at_end), (args.ds0, at_dstart)):
                    for k, place in pairs:
                        places[k] = place + offset
                dw = args.dw
                for i, own_place in enumerate(part.own):
                    if own_place is not None:
                        d = gradients[own_place] = _empty_like(weights[own_place])
                        dw[i] = _address(d)
                if self.run_engine(part.number, 1, self.type_number, threads, ctypes.byref(args)):
                    raise MemoryError(_describe_memory(self, part))
                more = dgx
                if part.weight is not None:
                    flat = dgx.view(-1, part.width)
                    if needs_weights[part.weight]:
                        gradients[part.weight] = flat.t().mm(x.reshape(-1, x.shape[-1]))
                    if part.bias is not None and needs_weights[part.bias]:
                        gradients[part.bias] = flat.sum(0)
                    if number or needs_x:
                        more = flat.mm(weights[part.weight]).view(*self.rows, -1)
                dx = more if dx is None else dx + more
            dy = dx
        return dy if needs_x else None, dstart, gradients


def _read_arguments(template: bytes, lengths: Maybe, c: Maybe = None, record: Maybe = None) -> Any:  # noqa: ANN401  # fields of ctypes have any type
    """Return the engine's arguments of one part, with the addresses of what is there."""
    args = Args.from_buffer_copy(template)
    if lengths is not None:
        args.lengths = _address(lengths)
    if c is not None:
        args.c = _address(c)
    if record is not None:
        args.saved = _address(record)
    return args


def _describe_memory(plan: StackPlan, part: Part) -> str:
    name = part.cell.name
    return f"the CPU engine could not allocate memory for {name} with batch {plan.B} and hidden size {plan.H}"


class _StackScan(torch.autograd.Function):
    """x, the states, the weights -> the output and the last states of a stack."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # takes any attribute
        plan: StackPlan,
        x: Tensor,
        lengths: Maybe,
        k: int,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        y, end, saved = plan.go_forward(x, tensors[:k], tensors[k:], True, lengths)
        ctx.plan, ctx.k, ctx.lengths = plan, k, lengths
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, *tensors, *saved)
        if plan.copies_output:
            y = y.clone()  # as torch's, which callers may change in place
        return y, *end

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  # has what forward set
        dy: Maybe,
        *dend: Maybe,
    ) -> tuple[Maybe, ...]:
        plan, k = ctx.plan, ctx.k
        x, *tensors = read_saved(ctx)
        count = len(tensors) - 5 * len(plan.parts)
        states, weights, saved = tensors[:k], tensors[k:count], tensors[count:]
        if torch.is_grad_enabled():  # a second derivative is wanted
            dx, *rest = plan.stack.differentiate(x, states, weights, (dy, *dend), lengths=ctx.lengths)
            return None, dx, None, None, *rest
        dx, dstates, dweights = plan.go_back(ctx, saved, states, weights, dy, dend)
        return None, dx, None, None, *dstates, *dweights
