"""Long sequences in segments, with a memory of those before; recurrence inside a Transformer."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from seqloom.attention.parts import Lengths, State, check_input, check_state
from seqloom.cells.lookup import find_cell
from seqloom.core.checks import read_lengths
from seqloom.core.errors import UserError
from seqloom.layers.layer import Layer
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.layers.transformer.block import Block
from seqloom.layers.transformer.layer import Transformer


class Recurrence(nn.Module):
    """A recurrent cell in the place of a self-attention.

    `Transformer(..., causal=True, attention=Recurrence)` is a Transformer whose layers remember with
    AttnRNN, or with another cell: `functools.partial(Recurrence, cell="gru")`. Its state has one
    size whatever the length.
    """

    def __init__(
        self, dim: int, heads: int = 4, *, cell: str = "attn_rnn", causal: bool = True, **settings: Any
    ) -> None:
        super().__init__()
        if not causal:
            raise UserError("Recurrence reads from left to right; take causal=True")
        self.input_size = self.output_size = dim
        self.causal = True
        self.layer = _recurrent(cell, dim, {"heads": heads}, settings)
        self.state_size = len(_start(self.layer, torch.zeros(1, dim)))

    def forward(self, x: Tensor, state: State | None = None, lengths: Lengths = None) -> tuple[Tensor, State]:
        """(B, T, D) -> (B, T, D), state: the cell's, (B, 1, ...) each."""
        return _run(self.layer, x, state, lengths)


class Segmented(Layer):
    """A causal Transformer that takes a sequence `segment` steps at a time.

    Where a segment starts depends on the steps so far alone, so streaming equals the whole.
    """

    def __init__(self, inner: Transformer, segment: int) -> None:
        super().__init__()
        if segment < 1:
            raise UserError(f"segment must be at least 1 step, got {segment}")
        self.inner, self.segment, self.causal = inner, segment, True
        self.input_size = self.output_size = inner.input_size

    def pieces(self, x: Tensor, lengths: Lengths, done: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """x cut where segments end, with the lengths inside each piece; `done` steps of one are behind."""
        lengths = None if lengths is None else read_lengths(lengths, x.shape[0], x.shape[1], x.device)
        start = 0
        while start < x.shape[1]:
            size = min(self.segment - done % self.segment, x.shape[1] - start)
            yield x[:, start : start + size], None if lengths is None else (lengths - start).clamp(0, size)
            start, done = start + size, done + size

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One time step for streaming: (B, D) -> (B, D), state."""
        y, state = self(x.unsqueeze(1), state)
        return y.squeeze(1), cast(State, state)

    def forward(self, x: Any, state: State | None = None, lengths: Lengths = None) -> tuple[Any, State]:
        """(B, T, D) -> (B, T, D), state. Also one sequence (T, D), packed and nested ones; y comes in the form of x."""
        if isinstance(x, Tensor) and x.dim() == 3 and not x.is_nested and self.batch_first:
            return self.run(x, state, lengths)
        return self.in_format(self.run, x, state, lengths)

    def run(self, x: Tensor, state: State | None, lengths: Lengths) -> tuple[Tensor, State]:
        """Run on (B, T, D)."""
        raise NotImplementedError


class TransformerXL(Segmented):
    """Each segment also looks at the last `memory` steps before it, layer by layer.

    No gradient goes into that memory. `memory` is a multiple of `segment`; what lies farther back
    comes only through the layers. Dai et al. 2019, arXiv 1901.02860.
    """

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        layers: int = 2,
        *,
        segment: int = 64,
        memory: int = 64,
        position: str = "xl",
        block: Block = Block(),
    ) -> None:
        super().__init__(Transformer(dim, heads, layers, causal=True, position=position, block=block), segment)
        if memory < 0 or memory % segment:
            raise UserError(f"memory must be a multiple of segment, got memory={memory}, segment={segment}")
        if self.inner.position is not None:
            raise UserError(f"position {position!r} does not fit a memory that moves; take 'xl', 'rotary' or 'alibi'")
        self.memory, self.state_size = memory, self.inner.state_size

    def run(self, x: Tensor, state: State | None, lengths: Lengths) -> tuple[Tensor, State]:
        """(B, T, D) -> (B, T, D), state: see `Transformer`; at most memory + segment steps of it."""
        check_input(x, self.input_size, self)
        check_state(state, self.state_size, x)
        outputs = []
        for piece, inside in self.pieces(x, lengths, 0 if state is None else _held(state)):
            if state is not None and _held(state) % self.segment == 0:
                state = self._cut(state)
            y, state = self.inner(piece, state, inside)
            outputs.append(y)
        return torch.cat(outputs, 1), cast(State, state)

    def _cut(self, state: State) -> State:
        """The last `memory` steps, without their history."""
        first = max(_held(state) - self.memory, 0)
        kept = [s.detach()[:, first:] if s.dim() == 2 else s.detach()[:, :, first:] for s in state[1:]]
        return (state[0], *kept)


class MemoryTransformer(Segmented):
    """A recurrent cell is the memory of a Transformer that sees one segment at a time.

        M_0     = the cell's first state                 `slots` rows
        Y_s     = Transformer(X_s, memory=M_s)           causal within the segment s
        M_(s+1) = the cell's state after reading Y_s

    Gradients go through M, so that it learns what later segments need. The default cell is AttnRNN,
    whose state may have several rows; another gives one.
    """

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        layers: int = 2,
        *,
        segment: int = 64,
        slots: int = 8,
        cell: str = "attn_rnn",
        position: str | nn.Module | None = "rotary",
        block: Block = Block(),
    ) -> None:
        inner = Transformer(dim, heads, layers, causal=True, memory_size=dim, position=position, block=block)
        super().__init__(inner, segment)
        self.memory = _recurrent(cell, dim, {"heads": heads, "slots": slots}, {})
        self.cell_state = len(_start(self.memory, torch.zeros(1, dim)))
        self.state_size = self.cell_state + inner.state_size

    def run(self, x: Tensor, state: State | None, lengths: Lengths) -> tuple[Tensor, State]:
        """(B, T, D) -> (B, T, D), state: the cell's, (B, 1, ...) each, then the Transformer's."""
        check_input(x, self.input_size, self)
        check_state(state, self.state_size, x)
        r, inner = None, None
        if state is not None:
            r, inner = state[: self.cell_state], state[self.cell_state :]
        outputs = []
        for piece, inside in self.pieces(x, lengths, 0 if inner is None else _held(inner)):
            r = _start(self.memory, piece[:, 0]) if r is None else r
            if inner is None or _held(inner) == self.segment:
                M = r[0].flatten(1).unflatten(1, (-1, self.input_size))
                y, inner = self.inner(piece, None, inside, memory=M)
            else:
                y, inner = self.inner(piece, inner, inside)
            _, r = _run(self.memory, y, r, inside)
            outputs.append(y)
        return torch.cat(outputs, 1), (*cast(State, r), *cast(State, inner))


def _held(state: State) -> int:
    """Steps in the first layer's cache: state is (count, keys (B, heads, S, d), ...)."""
    return state[1].shape[2]


def _recurrent(cell: str, dim: int, wished: dict[str, Any], settings: dict[str, Any]) -> Recurrent:
    """One layer of this cell, with those wishes that it knows."""
    known = inspect.signature(find_cell(cell).__init__).parameters
    wished = {name: value for name, value in wished.items() if name in known}
    return Recurrent(cell, dim, dim, batch_first=True, **(wished | settings))


def _start(layer: Recurrent, x: Tensor) -> State:
    """The first state of a one-layer Recurrent, batch first: (B, 1, ...)."""
    return tuple(s.unsqueeze(1) for s in layer.cell_at(0).start(x))


def _run(layer: Recurrent, x: Tensor, state: State | None, lengths: Lengths) -> tuple[Tensor, State]:
    """A one-layer Recurrent, whose states are (1, B, ...), with states (B, 1, ...)."""
    hx = None if state is None else tuple(s.transpose(0, 1) for s in state)
    y, end = layer(x, hx if hx is None or len(hx) > 1 else hx[0], lengths)
    return y, tuple(s.transpose(0, 1) for s in ((end,) if isinstance(end, Tensor) else end))
