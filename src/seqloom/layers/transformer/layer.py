"""Attention and a small network for each step, layer upon layer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from seqloom.attention import ATTENTIONS
from seqloom.attention.dense import Attention
from seqloom.attention.parts import Lengths, State, check_input, check_state, mask_steps, real_steps
from seqloom.attention.position import INPUT_POSITIONS, POSITIONS, Position
from seqloom.core.errors import InputError, UserError
from seqloom.layers.layer import Layer
from seqloom.layers.transformer.block import Block, TransformerLayer


class Transformer(Layer):
    """Layers of self-attention, attention to a memory where there is one, and a small network.

    causal=False, no memory: an encoder. causal=True: a language model, with `step`.
    causal=True and `memory_size`, the width of the memory it looks at: a decoder.
    `attention` is "dense", "local", "linear", "performer", "linformer", or a function that makes
    one: `functools.partial(LocalAttention, pattern=64)`. It is called with dim, heads and causal,
    and with what it takes of position, dropout and bias. `position` is "sinusoidal" or "learned"
    (added to the input), "rotary", "alibi", "relative" or "xl" (told to the attention), or a module.
    Vaswani et al. 2017, arXiv 1706.03762.
    """

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        layers: int = 2,
        *,
        causal: bool = False,
        memory_size: int | None = None,
        attention: str | Callable[..., nn.Module] = "dense",
        position: str | nn.Module | None = None,
        block: Block = Block(),
    ) -> None:
        super().__init__()
        if layers < 1:
            raise UserError(f"layers must be at least 1, got {layers}")
        self.input_size = self.output_size = dim
        self.causal, self.memory_size = causal, memory_size
        self.position, told = _positions(position, dim)
        made: list[nn.Module] = []
        for _ in range(layers):
            own = _make_attention(attention, dim, heads, causal, told, block)
            cross = None
            if memory_size is not None:
                cross = Attention(dim, heads, dropout=block.on_weights, bias=block.bias, memory_size=memory_size)
            made.append(TransformerLayer(own, block, cross))
        self.layers = nn.ModuleList(made)
        self.norm = nn.LayerNorm(dim, block.eps, bias=block.bias) if block.norm == "pre" else nn.Identity()
        self.state_size = 1 + sum(self.layer_at(i).state_size for i in range(layers))

    def layer_at(self, index: int) -> TransformerLayer:
        return cast(TransformerLayer, self.layers[index])

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        lengths: Lengths = None,
        *,
        memory: Tensor | None = None,
        memory_lengths: Lengths = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, State | None]:
        """(B, T, D) -> (B, T, D), state; steps past a row's length get zeros.

        The state of a causal one is the number of steps so far (B,) and each layer's keys and
        values, those of the memory too: with a state, the memory need not be given again.
        `mask` is the self-attention's, see `Attention`. Also one sequence (T, D), packed and nested ones, and
        (T, B, D) if `batch_first` was set to False.
        """
        if not (isinstance(x, Tensor) and x.dim() == 3 and not x.is_nested and self.batch_first):
            aside = partial(self._run, memory=memory, memory_lengths=memory_lengths, mask=mask)
            return self.in_format(aside, x, state, lengths)
        return self._run(x, state, lengths, memory, memory_lengths, mask)

    def _run(
        self,
        x: Tensor,
        state: State | None,
        lengths: Lengths,
        memory: Tensor | None = None,
        memory_lengths: Lengths = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, State | None]:
        """Run on (B, T, D)."""
        check_input(x, self.input_size, self)
        check_state(state, self.state_size, x)
        if memory is not None and self.memory_size is None:
            raise InputError("a memory was given to a Transformer without one; make it with memory_size=")
        real = real_steps(lengths, x)
        count = x.new_zeros(x.shape[0], dtype=torch.long) if state is None else state[0]
        x = mask_steps(x, real)  # NaN there would come back through a norm as a gradient
        if self.position is not None:
            at = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
            at = at if state is None else at + count.unsqueeze(1)
            x = self.position(x, at if real is None else at.masked_fill(~real, 0))  # padding needs no row of a table
        ends: list[Tensor] = [count + (x.shape[1] if real is None else real.sum(1))]
        left = () if state is None else state[1:]
        for i in range(len(self.layers)):
            layer = self.layer_at(i)
            own, left = (left[: layer.state_size], left[layer.state_size :]) if left else (None, left)
            x, end = layer(x, own, lengths, memory=memory, memory_lengths=memory_lengths, mask=mask)
            ends += end or ()
        return mask_steps(self.norm(x), real), tuple(ends) if self.causal else None

    def step(self, x: Tensor, state: State | None = None, **aside: Any) -> tuple[Tensor, State]:
        """One time step for streaming: (B, D) -> (B, D), state; `aside` is what `forward` takes of a memory."""
        if not self.causal:
            raise InputError("step: a Transformer with causal=False needs the whole sequence")
        y, state = self(x.unsqueeze(1), state, **aside)
        return y.squeeze(1), cast(State, state)


class Projected(Layer):
    """y = layer(W x + b); the layer, a Transformer, takes and gives `hidden_size` features."""

    def __init__(self, layer: nn.Module, input_size: int) -> None:
        super().__init__()
        width: int = layer.input_size  # type: ignore[assignment]
        self.input_size, self.hidden_size = input_size, width
        self.output_size: int = layer.output_size  # type: ignore[assignment]
        self.causal = bool(layer.causal)
        self.project = nn.Linear(input_size, width)
        self.layer = layer

    def run(self, x: Tensor, state: State | None, lengths: Lengths) -> tuple[Tensor, State | None]:
        return self.layer(self.project(x), state, lengths)

    def select(self, state: State, rows: Tensor) -> State:
        return self.layer.select(state, rows)  # type: ignore[operator]


def _positions(position: str | nn.Module | None, dim: int) -> tuple[nn.Module | None, str | Position | None]:
    """What is added to the input, and what is told to the attentions."""
    if isinstance(position, str) and position not in (*INPUT_POSITIONS, *POSITIONS):
        raise UserError(f"position must be one of {', '.join((*INPUT_POSITIONS, *POSITIONS))}, got {position!r}")
    if isinstance(position, Position) or (isinstance(position, str) and position in POSITIONS):
        return None, position
    return (INPUT_POSITIONS[position](dim) if isinstance(position, str) else position), None


def _make_attention(
    attention: str | Callable[..., nn.Module],
    dim: int,
    heads: int,
    causal: bool,
    position: str | Position | None,
    block: Block,
) -> nn.Module:
    if isinstance(attention, str) and attention not in ATTENTIONS:
        raise UserError(f"attention must be one of {', '.join(ATTENTIONS)}, or a function, got {attention!r}")
    make: Callable[..., nn.Module] = ATTENTIONS[attention] if isinstance(attention, str) else attention
    takes = inspect.signature(make).parameters
    if position is not None and "position" not in takes:
        raise UserError(
            f"attention {attention!r} takes no position; take one of {', '.join(INPUT_POSITIONS)} for the input"
        )
    settings = {"position": position, "dropout": block.on_weights, "bias": block.bias}
    return make(dim, heads, causal=causal, **{name: value for name, value in settings.items() if name in takes})
