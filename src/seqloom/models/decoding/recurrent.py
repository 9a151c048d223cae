"""The second half of N to M, recurrent: a target, token by token, with an eye on the source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from seqloom.attention.score import SCORES, Score, attend
from seqloom.core.errors import UserError
from seqloom.layers.layer import select_rows
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.models.checks import check_causal, check_width
from seqloom.models.embed import Embed, Head
from seqloom.models.encode import Memory

FEEDS = (None, "output", "context")


@dataclass(frozen=True)
class Carried:
    """What a decoder hands from step to step. The memory has B rows; the rest N, N / B for each source."""

    memory: Memory
    layer: Any
    output: Tensor | None = None  # (N, H): what is fed or asked with at the next step


class RecurrentDecoder(nn.Module):
    """A causal layer that reads the target so far and foresees its next token.

        attention=None    x_t = [e_t, c]         o_t = y_t                  c: the source's summary
        feed=None         x_t = e_t              o_t = tanh(W [y_t, c_t])   c_t = attend(y_t)
        feed="output"     x_t = [e_t, o_t-1]     o_t = tanh(W [y_t, c_t])   c_t = attend(y_t)
        feed="context"    x_t = [e_t, c_t]       o_t = tanh(W [y_t, c_t])   c_t = attend(y_t-1)

    with y_t = layer(x_1 .. x_t) and P(w_t+1) = softmax(U o_t + b).

    `attention` is a score by name (seqloom.attention.score) or a Score. feed=None needs no loop
    over time: attention of all steps at once. "output" is the input feeding of Luong et al. 2015
    (arXiv 1508.04025), "context" is Bahdanau et al. 2015 (arXiv 1409.0473). A recurrent layer's first
    state is tanh of a linear map of the source's summary. `memory_size` is the encoder's output size.
    """

    def __init__(
        self,
        embed: Embed,
        layer: nn.Module,
        memory_size: int,
        *,
        attention: str | Score | None = "additive",
        feed: str | None = None,
        dropout: float = 0.0,
        tied: bool = False,
    ) -> None:
        super().__init__()
        check_causal(layer, "RecurrentDecoder")
        if feed not in FEEDS or (feed and attention is None):
            raise UserError(f"feed must be one of {FEEDS}, None without attention; got {feed!r} with {attention!r}")
        self.layer: Any = layer
        E, H = embed.output_size, cast(int, layer.output_size)
        self.embed, self.feed, self.hidden_size = embed, feed, H
        self.score = _score(attention, H, memory_size)
        wide = E if tied and self.score is not None else H
        beside = memory_size if attention is None or feed == "context" else wide if feed else 0
        check_width(layer, E + beside, f"embedding {E} + what stands beside it {beside}")
        self.join = None if self.score is None else nn.Linear(H + memory_size, wide)
        self.head = Head(wide, embed, tied=tied, dropout=dropout)
        self.bridge = _Bridge(memory_size, layer) if isinstance(layer, Recurrent) else None

    def start(self, memory: Memory) -> Carried:
        """What stands before the first token."""
        state = None if self.bridge is None else self.bridge(memory.summary, self.layer)
        if self.feed == "output":
            assert self.join is not None
            return Carried(memory, state, memory.summary.new_zeros(memory.summary.shape[0], self.join.out_features))
        if self.feed == "context":
            first = state if isinstance(state, Tensor) or state is None else state[0]
            zeros = memory.summary.new_zeros(memory.summary.shape[0], self.hidden_size)
            return Carried(memory, state, zeros if first is None else first[-1])
        return Carried(memory, state)

    def forward(self, tokens: Tensor, memory: Memory) -> tuple[Tensor, Tensor | None]:
        """tokens (B, T) -> logits of the token after each (B, T, V), weights (B, T, S) or None."""
        e, carried = self.embed(tokens), self.start(memory)
        if self.feed is None:
            y, _ = self.layer(self._beside(e, memory), carried.layer)
            o, weights = self._output(y, memory)
            return self.head(o), weights
        outputs, looks = [], []
        for e_t in e.unbind(1):
            o_t, a, carried = self._one(e_t, carried)
            outputs.append(o_t)
            looks.append(a)
        return self.head(torch.stack(outputs, 1)), torch.cat([a for a in looks if a is not None], 1)

    def align(self, tokens: Tensor, memory: Memory) -> Tensor | None:
        """tokens (B, T) -> where each step looked (B, T, S); None without attention."""
        return self(tokens, memory)[1]

    def step(self, tokens: Tensor, carried: Carried) -> tuple[Tensor, Carried]:
        """tokens (N,) -> logits (N, V)."""
        o, _, carried = self._one(self.embed(tokens), carried)
        return self.head(o), carried

    def select(self, carried: Carried, rows: Tensor) -> Carried:
        """The same sources, other rows of each: the memory stays where it is, once for all of them."""
        output = None if carried.output is None else carried.output.index_select(0, rows)
        return replace(carried, layer=select_rows(self.layer, carried.layer, rows), output=output)

    def _one(self, e: Tensor, carried: Carried) -> tuple[Tensor, Tensor | None, Carried]:
        """e (N, E) -> o (N, H), weights (B, N / B, S), what follows."""
        memory, B = carried.memory, carried.memory.values.shape[0]
        if self.feed is None:
            x = self._beside(e.unflatten(0, (B, -1)), memory).flatten(0, 1)
            y, state = self.layer.step(x, carried.layer)
            o, a = self._output(y.unflatten(0, (B, -1)), memory)
            return o.flatten(0, 1), a, Carried(memory, state)
        assert carried.output is not None
        if self.feed == "output":
            y, state = self.layer.step(torch.cat([e, carried.output], -1), carried.layer)
            o, a = self._output(y.unflatten(0, (B, -1)), memory)
            return o.flatten(0, 1), a, Carried(memory, state, o.flatten(0, 1))
        c, a = self._attend(carried.output.unflatten(0, (B, -1)), memory)
        y, state = self.layer.step(torch.cat([e, c.flatten(0, 1)], -1), carried.layer)
        o = self._joined(y, c.flatten(0, 1))
        return o, a, Carried(memory, state, y)

    def _beside(self, e: Tensor, memory: Memory) -> Tensor:
        """(B, T, E) -> (B, T, E or E + M)."""
        if self.score is not None:
            return e
        return torch.cat([e, memory.summary.to(e.dtype).unsqueeze(1).expand(-1, e.shape[1], -1)], -1)

    def _output(self, y: Tensor, memory: Memory) -> tuple[Tensor, Tensor | None]:
        """y (B, Q, H) -> o (B, Q, H), weights (B, Q, S)."""
        if self.score is None:
            return y, None
        c, a = self._attend(y, memory)
        return self._joined(y, c), a

    def _attend(self, y: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        assert self.score is not None
        return attend(self.score(y, memory.values), memory.values, memory.lengths)

    def _joined(self, y: Tensor, c: Tensor) -> Tensor:
        assert self.join is not None
        return torch.tanh(self.join(torch.cat([y, c], -1)))


def _score(attention: str | Score | None, query_size: int, key_size: int) -> Score | None:
    if attention is None or isinstance(attention, Score):
        return attention
    if attention not in SCORES:
        raise UserError(f"attention must be one of {', '.join(SCORES)}, a Score or None; got {attention!r}")
    return SCORES[attention](query_size, key_size)


class _Bridge(nn.Module):
    """The source's summary as a recurrent layer's first output; other states start as they always do."""

    def __init__(self, memory_size: int, layer: Recurrent) -> None:
        super().__init__()
        self.cells = len(layer.cells)
        self.linear = nn.Linear(memory_size, self.cells * int(layer.output_size))

    def forward(self, summary: Tensor, layer: Recurrent) -> Any:
        h = torch.tanh(self.linear(summary)).unflatten(-1, (self.cells, -1)).transpose(0, 1).contiguous()
        starts = [layer.cell_at(i).start(summary) for i in range(self.cells)]
        _, *others = (torch.stack(parts) for parts in zip(*starts, strict=True))
        return (h, *others) if others else h
