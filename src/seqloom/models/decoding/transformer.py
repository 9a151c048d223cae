"""The second half of N to M, by attention alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.layers.transformer.layer import Transformer
from seqloom.models.checks import check_width
from seqloom.models.decoding.recurrent import Carried
from seqloom.models.embed import Embed, Head
from seqloom.models.encode import Memory


class TransformerDecoder(nn.Module):
    """A causal Transformer that looks at the source: `Transformer(dim, causal=True, memory_size=...)`.

    `tied` takes the embedding as the head's weights, `dropout` acts before the head.
    """

    def __init__(self, embed: Embed, layer: Transformer, *, dropout: float = 0.0, tied: bool = False) -> None:
        super().__init__()
        if not layer.causal or layer.memory_size is None:
            raise UserError(
                "TransformerDecoder takes a Transformer with causal=True and memory_size=, the encoder's width"
            )
        check_width(layer, embed.output_size, "the embedding")
        self.embed, self.layer = embed, layer
        self.head = Head(layer.output_size, embed, tied=tied, dropout=dropout)

    def start(self, memory: Memory) -> Carried:
        """What stands before the first token: the layer reads the memory at its first step, once."""
        return Carried(memory, None)

    def forward(self, tokens: Tensor, memory: Memory) -> tuple[Tensor, None]:
        """tokens (B, T) -> logits of the token after each (B, T, V); `align` says where it looked."""
        y, _ = self.layer(self.embed(tokens), memory=memory.values, memory_lengths=memory.lengths)
        return self.head(y), None

    def step(self, tokens: Tensor, carried: Carried) -> tuple[Tensor, Carried]:
        """tokens (N,) -> logits (N, V)."""
        memory, aside = carried.memory, {}
        if carried.layer is None:
            each = len(tokens) // len(memory.values)
            aside["memory"] = memory.values.repeat_interleave(each, 0)
            if memory.lengths is not None:
                aside["memory_lengths"] = memory.lengths.repeat_interleave(each, 0)
        y, state = self.layer.step(self.embed(tokens), carried.layer, **aside)
        return self.head(y), Carried(memory, state)

    def select(self, carried: Carried, rows: Tensor) -> Carried:
        """The same sources, other rows of each. What was read from the memory is alike in these, and stays."""
        state: Any = carried.layer
        if state is None:
            return carried
        if len(rows) != len(state[0]):
            return Carried(carried.memory, self.layer.select(state, rows))
        kept, left = [state[0].index_select(0, rows)], state[1:]
        for i in range(len(self.layer.layers)):
            own, whole = self.layer.layer_at(i).own_size, self.layer.layer_at(i).state_size
            kept += [s.index_select(0, rows) for s in left[:own]] + list(left[own:whole])
            left = left[whole:]
        return Carried(carried.memory, tuple(kept))

    def align(self, tokens: Tensor, memory: Memory) -> Tensor:
        """tokens (B, T) -> where each step looked (B, T, S): the mean over the heads of the last layer but one.

        Of all layers it is the one that looks most like an alignment (Garg et al. 2019, arXiv 1909.02074).
        """
        cross = self.layer.layer_at(max(0, len(self.layer.layers) - 2)).cross
        assert cross is not None
        asked: list[Tensor] = []
        with torch.no_grad():
            hook = cross.register_forward_pre_hook(lambda _, given: asked.append(given[0]))
            try:
                self(tokens, memory)
            finally:
                hook.remove()
            return cross.weights(asked[0], memory=memory.values, memory_lengths=memory.lengths).mean(1)
