"""Transformers that read long sequences in segments with a memory, or that contain a recurrence."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from seqloom.attention.parts import Lengths, State, check_input, check_state
from seqloom.cells.lookup import find_cell
from seqloom.core.arguments import Checked
from seqloom.core.checks import read_lengths
from seqloom.core.errors import UserError
from seqloom.core.renamed import CLASSES, rename_names
from seqloom.layers.formats import SequencesT
from seqloom.layers.layer import Layer
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.layers.transformer.block import Block
from seqloom.layers.transformer.layer import Transformer

__getattr__ = rename_names(__name__, CLASSES)


class RecurrentMixer(nn.Module, metaclass=Checked):
    """A recurrent cell in place of a self-attention, with a state of fixed size.

    Use it as `Transformer(..., causal=True, attention=RecurrentMixer)`, or with settings as
    `attention=functools.partial(RecurrentMixer, cell="gru")`.

    Args:
        dim: Width of input and output, D.
        heads: Attention heads, for cells that have them.
        cell: The recurrent cell.
        causal: Must be True.
        **settings: Further settings of the cell, or of `Recurrent`.

    Example:
        >>> layer = seqloom.Transformer(8, heads=2, causal=True, attention=seqloom.RecurrentMixer)
        >>> layer(torch.randn(3, 5, 8))[0].shape  # (B, T, D) -> (B, T, D)
        torch.Size([3, 5, 8])
    """

    def __init__(
        self, dim: int, heads: int = 4, *, cell: str = "attn_rnn", causal: bool = True, **settings: object
    ) -> None:
        super().__init__()
        if not causal:
            raise UserError("RecurrentMixer reads from left to right; take causal=True")
        self.input_size = self.output_size = dim
        self.causal = True
        self.layer = _make_recurrent(cell, dim, {"heads": heads}, settings)
        self.state_size = len(_start(self.layer, torch.zeros(1, dim)))

    def forward(self, x: Tensor, state: State | None = None, lengths: Lengths = None) -> tuple[Tensor, State]:
        """Run the cell over x (B, T, D): outputs (B, T, D), and the cell's state, (B, 1, ...) each."""
        return _run(self.layer, x, state, lengths)


class Segmented(Layer):
    """Base class of causal Transformers that process a sequence `segment` steps at a time.

    Where a segment starts depends only on the number of steps so far, so streaming matches running the whole sequence.
    """

    def __init__(self, inner: Transformer, segment: int) -> None:
        super().__init__()
        if segment < 1:
            raise UserError(f"segment must be at least 1 step, got {segment}")
        self.inner, self.segment, self.causal = inner, segment, True
        self.input_size = self.output_size = inner.input_size

    def pieces(self, x: Tensor, lengths: Lengths, done: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield slices of x that end with segments, and the lengths inside each, after `done` steps of a segment."""
        lengths = None if lengths is None else read_lengths(lengths, x.shape[0], x.shape[1], x.device)
        start = 0
        while start < x.shape[1]:
            size = min(self.segment - done % self.segment, x.shape[1] - start)
            yield x[:, start : start + size], None if lengths is None else (lengths - start).clamp(0, size)
            start, done = start + size, done + size

    def forward(self, x: SequencesT, state: State | None = None, lengths: Lengths = None) -> tuple[SequencesT, State]:
        """Run over x, (B, T, D) or another format of `Layer`; return y in the same format, and the state."""
        if isinstance(x, Tensor) and x.dim() == 3 and not x.is_nested and self.batch_first:
            return self.run(x, state, lengths)
        return self.in_format(self.run, x, state, lengths)

    def run(self, x: Tensor, state: State | None, lengths: Lengths) -> tuple[Tensor, State]:
        """Run on (B, T, D)."""
        raise NotImplementedError


class TransformerXL(Segmented):
    """Transformer-XL: each segment also attends to the last steps before it, in every layer.

    No gradient flows into these steps. Earlier ones have an influence only through the layers.
    Dai et al. 2019, arXiv 1901.02860.

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        dim: Width of input and output, D.
        heads: Attention heads; dim must be a multiple.
        num_layers: Number of Transformer layers.
        segment: Steps in a segment.
        memory: Steps before a segment that it attends to; a multiple of `segment`, 0 for none.
        position: Position encoding inside the attention: "xl", "rotary", "alibi" or "relative".
        block: Norm, feed-forward network and dropout of the layers.

    Example:
        >>> layer = seqloom.TransformerXL(8, heads=2, segment=4, memory=4)
        >>> y, state = layer(torch.randn(3, 10, 8))  # (B, T, D) -> (B, T, D)
        >>> y.shape
        torch.Size([3, 10, 8])
    """

    renamed: ClassVar = {"layers": "num_layers"}

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        num_layers: int = 2,
        *,
        segment: int = 64,
        memory: int = 64,
        position: str = "xl",
        block: Block = Block(),
    ) -> None:
        super().__init__(Transformer(dim, heads, num_layers, causal=True, position=position, block=block), segment)
        if memory < 0 or memory % segment:
            raise UserError(f"memory must be a multiple of segment, got memory={memory}, segment={segment}")
        if self.inner.position is not None:
            raise UserError(f"position {position!r} does not fit a memory that moves; take 'xl', 'rotary' or 'alibi'")
        self.memory, self.state_size = memory, self.inner.state_size

    def run(self, x: Tensor, state: State | None, lengths: Lengths) -> tuple[Tensor, State]:
        """Run on (B, T, D). The state is that of `Transformer`, with at most memory + segment steps."""
        check_input(x, self.input_size, self)
        check_state(state, self.state_size, x)
        outputs = []
        for piece, inside in self.pieces(x, lengths, 0 if state is None else _count_steps(state)):
            if state is not None and _count_steps(state) % self.segment == 0:
                state = self._trim_state(state)
            y, state = self.inner(piece, state, inside)
            outputs.append(y)
        return torch.cat(outputs, 1), cast(State, state)

    def _trim_state(self, state: State) -> State:
        """Return the last `memory` steps of the state, detached."""
        first = max(_count_steps(state) - self.memory, 0)
        caches = [s.detach()[:, first:] if s.dim() == 2 else s.detach()[:, :, first:] for s in state[1:]]
        return (state[0], *caches)


class MemoryTransformer(Segmented):
    """A Transformer that sees one segment at a time and has a recurrent cell as its memory.

        M_0     = the cell's first state                 `slots` rows
        Y_s     = Transformer(X_s, memory=M_s)           causal within the segment s
        M_(s+1) = the cell's state after reading Y_s

    Gradients flow through M, so that it learns what later segments need.

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        dim: Width of input and output, D.
        heads: Attention heads; dim must be a multiple.
        num_layers: Number of Transformer layers.
        segment: Steps in a segment.
        slots: Rows of the memory, for the cell "attn_rnn"; other cells have one row.
        cell: The recurrent cell.
        position: Position encoding, see `Transformer`.
        block: Norm, feed-forward network and dropout of the layers.

    Example:
        >>> layer = seqloom.MemoryTransformer(8, heads=2, segment=4, slots=2)
        >>> y, state = layer(torch.randn(3, 10, 8))  # (B, T, D) -> (B, T, D)
        >>> y.shape
        torch.Size([3, 10, 8])
    """

    renamed: ClassVar = {"layers": "num_layers"}

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        num_layers: int = 2,
        *,
        segment: int = 64,
        slots: int = 8,
        cell: str = "attn_rnn",
        position: str | nn.Module | None = "rotary",
        block: Block = Block(),
    ) -> None:
        inner = Transformer(dim, heads, num_layers, causal=True, memory_size=dim, position=position, block=block)
        super().__init__(inner, segment)
        self.memory = _make_recurrent(cell, dim, {"heads": heads, "slots": slots}, {})
        self.cell_state = len(_start(self.memory, torch.zeros(1, dim)))
        self.state_size = self.cell_state + inner.state_size

    def run(self, x: Tensor, state: State | None, lengths: Lengths) -> tuple[Tensor, State]:
        """Run on (B, T, D). The state has the tensors of the cell, (B, 1, ...) each, then those of the Transformer."""
        check_input(x, self.input_size, self)
        check_state(state, self.state_size, x)
        r, inner = None, None
        if state is not None:
            r, inner = state[: self.cell_state], state[self.cell_state :]
        outputs = []
        for piece, inside in self.pieces(x, lengths, 0 if inner is None else _count_steps(inner)):
            r = _start(self.memory, piece[:, 0]) if r is None else r
            if inner is None or _count_steps(inner) == self.segment:
                M = r[0].flatten(1).unflatten(1, (-1, self.input_size))
                y, inner = self.inner(piece, None, inside, memory=M)
            else:
                y, inner = self.inner(piece, inner, inside)
            _, r = _run(self.memory, y, r, inside)
            outputs.append(y)
        return torch.cat(outputs, 1), (*cast(State, r), *cast(State, inner))


def _count_steps(state: State) -> int:
    """Return the number of steps S in the first layer's cache; the state is (count, keys (B, heads, S, d), ...)."""
    return state[1].shape[2]


def _make_recurrent(cell: str, dim: int, optional: dict[str, Any], settings: dict[str, Any]) -> Recurrent:
    """Return a layer of this cell; `optional` settings that the cell does not have are left out."""
    known = inspect.signature(find_cell(cell).__init__).parameters
    optional = {name: value for name, value in optional.items() if name in known}
    return Recurrent(cell, dim, dim, batch_first=True, **(optional | settings))


def _start(layer: Recurrent, x: Tensor) -> State:
    """Return the first state of a one-layer Recurrent, batch first: (B, 1, ...)."""
    return tuple(s.unsqueeze(1) for s in layer.cell_at(0).start(x))


def _run(layer: Recurrent, x: Tensor, state: State | None, lengths: Lengths) -> tuple[Tensor, State]:
    """Run a one-layer Recurrent, whose states are (1, B, ...), with states (B, 1, ...)."""
    hx = None if state is None else tuple(s.transpose(0, 1) for s in state)
    y, end = layer(x, hx if hx is None or len(hx) > 1 else hx[0], lengths)
    return y, tuple(s.transpose(0, 1) for s in ((end,) if isinstance(end, Tensor) else end))
