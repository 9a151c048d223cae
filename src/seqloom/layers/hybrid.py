"""Layers that combine convolution, attention and recurrence."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.attention.dense import Attention
from seqloom.attention.parts import check_state
from seqloom.core.cell import State
from seqloom.core.errors import UserError
from seqloom.core.job import zero_padding
from seqloom.core.renamed import CLASSES, rename_names
from seqloom.layers.layer import Layer
from seqloom.layers.linear.layer import Mixer
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.layers.tcn import HINTS, RENAMED, CausalConv

ATTENTION_STATES = 3  # tensors in the state of a causal Attention
__getattr__ = rename_names(__name__, CLASSES)


class Hybrid(Layer):
    """Blocks that mix a convolution, attention and a recurrence with learned weights.

        h0      = P x + p
        n       = norm(h)
        a, b, g = softmax(w)
        h'      = h + dropout(a relu(conv(n)) + b attention(n) + g rnn(n))      in each block
        y       = norm(h)

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        input_size: Features of the input, D.
        hidden_size: Width of the blocks and of the output, H.
        num_layers: Number of blocks.
        cell: The recurrent cell, or a linear recurrence such as "gated_deltanet".
        heads: Attention heads; hidden_size must be a multiple.
        kernel_size: Steps that the convolution sees.
        dropout: Dropout on the output of each block, in training.
        causal: Whether outputs depend on past steps only; if False, all three parts look both ways.

    Example:
        >>> layer = seqloom.Hybrid(8, 16, num_layers=2)
        >>> y, state = layer(torch.randn(3, 5, 8))  # (B, T, D) -> (B, T, H)
        >>> y.shape, layer.shares().shape
        (torch.Size([3, 5, 16]), torch.Size([2, 3]))
    """

    renamed = RENAMED
    keyword_hints = HINTS

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        cell: str = "gru",
        heads: int = 4,
        kernel_size: int = 3,
        dropout: float = 0.0,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.output_size = input_size, hidden_size, hidden_size
        self.causal = causal
        self.project = nn.Linear(input_size, hidden_size)
        self.blocks = nn.ModuleList(
            _Mix(hidden_size, cell, heads, kernel_size, dropout, causal) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(hidden_size)
        self.state_size = num_layers * (1 + ATTENTION_STATES + _count_states(cast(_Mix, self.blocks[0]).rnn))

    def shares(self) -> Tensor:
        """Return the weights (layers, 3) of convolution, attention and recurrence in each block."""
        return torch.stack([torch.softmax(block.w, 0).detach() for block in self.blocks])  # type: ignore[arg-type]

    def run(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State | None]:
        h, after = self.project(x), []
        check_state(state, self.state_size, x)
        size = self.state_size // len(self.blocks)
        for i, block in enumerate(self.blocks):
            h, part = block(h, None if state is None else state[i * size : (i + 1) * size], lengths)
            after += part
        return self.norm(h), tuple(after) if self.causal else None


class _Mix(nn.Module):
    def __init__(self, width: int, cell: str, heads: int, kernel_size: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.conv = CausalConv(width, width, kernel_size)
        self.attention = Attention(width, heads, causal=causal)
        if cell in Mixer.registry:
            self.rnn: nn.Module = Mixer.registry[cell](width, heads, causal=causal)
        else:
            self.rnn = _make_recurrent(cell, width, _direction_size(width, causal), 1, 0.0, not causal)
        self.w = nn.Parameter(torch.zeros(3))
        self.dropout, self.causal = nn.Dropout(dropout), causal

    def forward(self, h: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        past, seen, before = _split_state(state, 1, ATTENTION_STATES)
        n = zero_padding(self.norm(h), lengths)
        a, b, g = torch.softmax(self.w, 0)
        conv, past = _convolve(self.conv, n, past, lengths, self.causal)
        attention, seen = self.attention(n, seen, lengths)
        rnn, now = _recur(self.rnn, n, before, lengths)
        h = h + self.dropout(a * torch.relu(conv) + b * attention + g * rnn)
        return h, [*past, *seen, *now] if self.causal else []


class ConvRNN(Layer):
    """A convolution over neighbouring steps, followed by a recurrence.

        c = relu(conv(x))
        y = rnn(dropout(c))

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        input_size: Features of the input, D.
        hidden_size: Width of the convolution and units of each direction, H.
        num_layers: Stacked recurrent layers.
        cell: The recurrent cell.
        kernel_size: Steps that the convolution sees.
        dropout: Dropout on the convolution and between recurrent layers, in training.
        bidirectional: Whether convolution and recurrence look both ways; outputs are then 2 H wide.

    Example:
        >>> y, state = seqloom.ConvRNN(8, 16, cell="lstm")(torch.randn(3, 5, 8))  # (B, T, D) -> (B, T, H)
        >>> y.shape
        torch.Size([3, 5, 16])
    """

    renamed = RENAMED
    keyword_hints = HINTS

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        cell: str = "gru",
        kernel_size: int = 3,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.bidirectional, self.causal = bidirectional, not bidirectional
        self.conv = CausalConv(input_size, hidden_size, kernel_size)
        self.rnn = _make_recurrent(cell, hidden_size, hidden_size, num_layers, dropout, bidirectional)
        self.dropout = nn.Dropout(dropout)
        self.output_size = self.rnn.output_size
        self.state_size = 1 + _count_states(self.rnn)

    def run(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State | None]:
        check_state(state, self.state_size, x)
        past, before = _split_state(state, 1)
        c, past = _convolve(self.conv, x, past, lengths, self.causal)
        y, now = _recur(self.rnn, self.dropout(torch.relu(c)), before, lengths)
        return y, (*past, *now) if self.causal else None


class RNNThenAttention(Layer):
    """A recurrence, followed by self-attention over its outputs.

        h = rnn(x)
        y = norm(h + dropout(attention(h)))

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        input_size: Features of the input, D.
        hidden_size: Width of the output, H.
        num_layers: Stacked recurrent layers.
        cell: The recurrent cell.
        heads: Attention heads; hidden_size must be a multiple.
        dropout: Dropout on the attention and between recurrent layers, in training.
        causal: Whether outputs depend on past steps only; if False, the recurrence runs in both directions with
            H / 2 units each.

    Example:
        >>> y, state = seqloom.RNNThenAttention(8, 16)(torch.randn(3, 5, 8))  # (B, T, D) -> (B, T, H)
        >>> y.shape
        torch.Size([3, 5, 16])
    """

    renamed: ClassVar = {"layers": "num_layers"}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        cell: str = "gru",
        heads: int = 4,
        dropout: float = 0.0,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.output_size = input_size, hidden_size, hidden_size
        self.causal = causal
        self.rnn = _make_recurrent(
            cell, input_size, _direction_size(hidden_size, causal), num_layers, dropout, not causal
        )
        self.attention = Attention(hidden_size, heads, causal=causal)
        self.norm, self.dropout = nn.LayerNorm(hidden_size), nn.Dropout(dropout)
        self.state_size = ATTENTION_STATES + _count_states(self.rnn)

    def run(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State | None]:
        check_state(state, self.state_size, x)
        seen, before = _split_state(state, ATTENTION_STATES)
        h, now = _recur(self.rnn, x, before, lengths)
        attention, seen = self.attention(h, seen, lengths)
        y = self.norm(h + self.dropout(attention))
        return y, (*seen, *now) if self.causal else None


def _make_recurrent(
    cell: str, width: int, hidden: int, num_layers: int, dropout: float, bidirectional: bool
) -> Recurrent:
    between = dropout if num_layers > 1 else 0.0
    return Recurrent(cell, width, hidden, num_layers, True, True, between, bidirectional)


def _count_states(rnn: nn.Module) -> int:
    if isinstance(rnn, Mixer):
        return rnn.state_size
    assert isinstance(rnn, Recurrent)
    return len(rnn.cell_at(0).initial_state(torch.zeros(1, rnn.input_size)))


def _recur(rnn: nn.Module, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
    """Run a recurrence whose states have the batch first; those of `Recurrent` have the layers first."""
    if isinstance(rnn, Mixer):
        y, now = rnn(x, state, lengths)
        assert now is not None
        return y, now
    before = None if state is None else tuple(s.transpose(0, 1).contiguous() for s in state)
    y, end = rnn(x, before, lengths)
    return y, tuple(s.transpose(0, 1) for s in ((end,) if isinstance(end, Tensor) else end))


def _direction_size(hidden: int, causal: bool) -> int:
    """Return the units of each direction for `hidden` outputs in all."""
    if not causal and hidden % 2:
        raise UserError(f"causal=False needs an even hidden_size, half for each direction; got {hidden}")
    return hidden if causal else hidden // 2


def _convolve(
    conv: CausalConv, x: Tensor, past: State | None, lengths: Tensor | None, causal: bool
) -> tuple[Tensor, Any]:
    """Convolve x (B, T, C), which is 0 past a row's length, over the past or over both sides: (B, T, H)."""
    if causal:
        y, end = conv(x.transpose(1, 2), past and past[0], lengths)
        return y.transpose(1, 2), (end,)
    both = F.pad(x.transpose(1, 2), (conv.past - conv.past // 2, conv.past // 2))
    return conv.conv(both).transpose(1, 2), None


def _split_state(state: State | None, *sizes: int) -> list[State | None]:
    """Split a state into parts of these sizes, followed by the state of the recurrence."""
    if state is None:
        return [None] * (len(sizes) + 1)
    parts: list[State | None] = []
    for size in sizes:
        parts.append(state[:size])
        state = state[size:]
    return [*parts, state]
