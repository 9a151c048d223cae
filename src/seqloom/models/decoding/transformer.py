"""A Transformer decoder."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.core.errors import UserError
from seqloom.layers.transformer.layer import Transformer
from seqloom.models.checks import check_width
from seqloom.models.decoding.recurrent import DecoderState
from seqloom.models.embed import Embed, Head
from seqloom.models.encode import Memory


class TransformerDecoder(nn.Module):
    """A causal Transformer that attends to the source.

    Args:
        embed: Embedding of the target tokens.
        layer: `Transformer(dim, causal=True, memory_size=...)`, memory_size the encoder's output size.
        dropout: Dropout before the head.
        tied: Whether the head's weights are the embedding's table.
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

    def start(self, memory: Memory) -> DecoderState:
        """Return the state before the first token; the layer reads the memory once, at its first step."""
        return DecoderState(memory, None)

    def forward(self, tokens: Tensor, memory: Memory) -> tuple[Tensor, None]:
        """Map tokens (B, T) to logits of the next token (B, T, V); `align` computes the attention."""
        y, _ = self.layer(self.embed(tokens), memory=memory.values, memory_lengths=memory.lengths)
        return self.head(y), None

    def step(self, tokens: Tensor, carried: DecoderState) -> tuple[Tensor, DecoderState]:
        """Map tokens (N,) to logits (N, V), and the new state."""
        memory, inputs = carried.memory, {}
        if carried.layer is None:
            each = len(tokens) // len(memory.values)
            inputs["memory"] = memory.values.repeat_interleave(each, 0)
            if memory.lengths is not None:
                inputs["memory_lengths"] = memory.lengths.repeat_interleave(each, 0)
        y, state = self.layer.step(self.embed(tokens), cast(State | None, carried.layer), **inputs)
        return self.head(y), DecoderState(memory, state)

    def select(self, carried: DecoderState, rows: Tensor) -> DecoderState:
        """Return the state of other rows of the same sources; keys and values of the memory stay as they are."""
        state = cast(State | None, carried.layer)
        if state is None:
            return carried
        if len(rows) != len(state[0]):
            return DecoderState(carried.memory, self.layer.select(state, rows))
        tensors, rest = [state[0].index_select(0, rows)], state[1:]
        for i in range(len(self.layer.layers)):
            own, whole = self.layer.layer_at(i).own_size, self.layer.layer_at(i).state_size
            tensors += [s.index_select(0, rows) for s in rest[:own]] + list(rest[own:whole])
            rest = rest[whole:]
        return DecoderState(carried.memory, tuple(tensors))

    def align(self, tokens: Tensor, memory: Memory) -> Tensor:
        """Return the attention (B, T, S) of each step for tokens (B, T): the mean over heads of the last layer but one.

        This layer's attention is closest to an alignment (Garg et al. 2019, arXiv 1909.02074).
        """
        cross = self.layer.layer_at(max(0, len(self.layer.layers) - 2)).cross
        assert cross is not None
        queries: list[Tensor] = []
        with torch.no_grad():
            hook = cross.register_forward_pre_hook(lambda _, inputs: queries.append(inputs[0]))
            try:
                self(tokens, memory)
            finally:
                hook.remove()
            return cross.weights(queries[0], memory=memory.values, memory_lengths=memory.lengths).mean(1)
