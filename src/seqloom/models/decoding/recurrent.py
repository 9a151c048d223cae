"""A recurrent decoder with attention to the source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from seqloom.attention.score import SCORES, Score, attend
from seqloom.core.cell import State
from seqloom.core.errors import UserError
from seqloom.layers.layer import select_rows
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.models.checks import check_causal, check_width
from seqloom.models.embed import Embed, Head
from seqloom.models.encode import Memory

FEEDS = (None, "output", "context")


@dataclass(frozen=True)
class DecoderState:
    """The state of a decoder between steps. The memory has B rows, the rest N, N / B for each source."""

    memory: Memory
    layer: Tensor | State | None
    output: Tensor | None = None  # (N, H): input or query of the next step


class RecurrentDecoder(nn.Module):
    """A causal layer that reads the target so far and predicts its next token.

        attention=None    x_t = [e_t, c]         o_t = y_t                  c: the source's summary
        feed=None         x_t = e_t              o_t = tanh(W [y_t, c_t])   c_t = attend(y_t)
        feed="output"     x_t = [e_t, o_t-1]     o_t = tanh(W [y_t, c_t])   c_t = attend(y_t)
        feed="context"    x_t = [e_t, c_t]       o_t = tanh(W [y_t, c_t])   c_t = attend(y_t-1)

    with y_t = layer(x_1 .. x_t) and P(w_t+1) = softmax(U o_t + b).

    The first state of a recurrent layer is tanh of a linear map of the source's summary.

    Args:
        embed: Embedding of the target tokens.
        layer: A causal layer with batch_first=True, with the input size of x_t.
        memory_size: The encoder's output size.
        attention: The name of a score in seqloom.attention.score, a Score, or None.
        feed: None attends for all steps at once, without a loop over time; "output" is the input feeding of Luong
            et al. 2015 (arXiv 1508.04025); "context" is Bahdanau et al. 2015 (arXiv 1409.0473).
        dropout: Dropout before the head.
        tied: Whether U is the embedding's table.
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
        self.score = _make_score(attention, H, memory_size)
        wide = E if tied and self.score is not None else H
        beside = memory_size if attention is None or feed == "context" else wide if feed else 0
        check_width(layer, E + beside, f"embedding {E} + other inputs {beside}")
        self.join = None if self.score is None else nn.Linear(H + memory_size, wide)
        self.head = Head(wide, embed, tied=tied, dropout=dropout)
        self.bridge = _Bridge(memory_size, layer) if isinstance(layer, Recurrent) else None

    def start(self, memory: Memory) -> DecoderState:
        """Return the state before the first token."""
        state = None if self.bridge is None else self.bridge(memory.summary, self.layer)
        if self.feed == "output":
            assert self.join is not None
            return DecoderState(
                memory, state, memory.summary.new_zeros(memory.summary.shape[0], self.join.out_features)
            )
        if self.feed == "context":
            first = state if isinstance(state, Tensor) or state is None else state[0]
            zeros = memory.summary.new_zeros(memory.summary.shape[0], self.hidden_size)
            return DecoderState(memory, state, zeros if first is None else first[-1])
        return DecoderState(memory, state)

    def forward(self, tokens: Tensor, memory: Memory) -> tuple[Tensor, Tensor | None]:
        """Map tokens (B, T) to logits of the next token (B, T, V), and the attention (B, T, S) or None."""
        e, carried = self.embed(tokens), self.start(memory)
        if self.feed is None:
            y, _ = self.layer(self._append_summary(e, memory), carried.layer)
            o, weights = self._output(y, memory)
            return self.head(o), weights
        outputs, looks = [], []
        for e_t in e.unbind(1):
            o_t, a, carried = self._step(e_t, carried)
            outputs.append(o_t)
            looks.append(a)
        return self.head(torch.stack(outputs, 1)), torch.cat([a for a in looks if a is not None], 1)

    def align(self, tokens: Tensor, memory: Memory) -> Tensor | None:
        """Return the attention (B, T, S) of each step for tokens (B, T); None without attention."""
        return self(tokens, memory)[1]

    def step(self, tokens: Tensor, carried: DecoderState) -> tuple[Tensor, DecoderState]:
        """Map tokens (N,) to logits (N, V), and the new state."""
        o, _, carried = self._step(self.embed(tokens), carried)
        return self.head(o), carried

    def select(self, carried: DecoderState, rows: Tensor) -> DecoderState:
        """Return the state of other rows of the same sources; all rows of a source share its memory."""
        output = None if carried.output is None else carried.output.index_select(0, rows)
        return replace(carried, layer=select_rows(self.layer, carried.layer, rows), output=output)

    def _step(self, e: Tensor, carried: DecoderState) -> tuple[Tensor, Tensor | None, DecoderState]:
        """Map e (N, E) to o (N, H), the attention (B, N / B, S) and the new state."""
        memory, B = carried.memory, carried.memory.values.shape[0]
        if self.feed is None:
            x = self._append_summary(e.unflatten(0, (B, -1)), memory).flatten(0, 1)
            y, state = self.layer.step(x, carried.layer)
            o, a = self._output(y.unflatten(0, (B, -1)), memory)
            return o.flatten(0, 1), a, DecoderState(memory, state)
        assert carried.output is not None
        if self.feed == "output":
            y, state = self.layer.step(torch.cat([e, carried.output], -1), carried.layer)
            o, a = self._output(y.unflatten(0, (B, -1)), memory)
            return o.flatten(0, 1), a, DecoderState(memory, state, o.flatten(0, 1))
        c, a = self._attend(carried.output.unflatten(0, (B, -1)), memory)
        y, state = self.layer.step(torch.cat([e, c.flatten(0, 1)], -1), carried.layer)
        o = self._join(y, c.flatten(0, 1))
        return o, a, DecoderState(memory, state, y)

    def _append_summary(self, e: Tensor, memory: Memory) -> Tensor:
        """Append the source's summary to e (B, T, E) if there is no attention."""
        if self.score is not None:
            return e
        return torch.cat([e, memory.summary.to(e.dtype).unsqueeze(1).expand(-1, e.shape[1], -1)], -1)

    def _output(self, y: Tensor, memory: Memory) -> tuple[Tensor, Tensor | None]:
        """Map y (B, Q, H) to o (B, Q, H) and the attention (B, Q, S)."""
        if self.score is None:
            return y, None
        c, a = self._attend(y, memory)
        return self._join(y, c), a

    def _attend(self, y: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        assert self.score is not None
        return attend(self.score(y, memory.values), memory.values, memory.lengths)

    def _join(self, y: Tensor, c: Tensor) -> Tensor:
        assert self.join is not None
        return torch.tanh(self.join(torch.cat([y, c], -1)))


def _make_score(attention: str | Score | None, query_size: int, key_size: int) -> Score | None:
    if attention is None or isinstance(attention, Score):
        return attention
    if attention not in SCORES:
        raise UserError(f"attention must be one of {', '.join(SCORES)}, a Score or None; got {attention!r}")
    return SCORES[attention](query_size, key_size)


class _Bridge(nn.Module):
    """Map the source's summary to the memory of a recurrent layer; other states have their usual initial values."""

    def __init__(self, memory_size: int, layer: Recurrent) -> None:
        super().__init__()
        self.cells = len(layer.cells)
        self.linear = nn.Linear(memory_size, self.cells * int(layer.output_size))

    def forward(self, summary: Tensor, layer: Recurrent) -> Tensor | State:
        h = torch.tanh(self.linear(summary)).unflatten(-1, (self.cells, -1)).transpose(0, 1).contiguous()
        starts = [layer.cell_at(i).start(summary) for i in range(self.cells)]
        states = [torch.stack(parts) for parts in zip(*starts, strict=True)]
        memory = layer.cell_at(0).memory
        if states[memory].dim() > h.dim():  # a memory of several rows: all start from the same summary
            h = h.unsqueeze(-2).expand(states[memory].shape)
        states[memory] = h
        return tuple(states) if len(states) > 1 else h
