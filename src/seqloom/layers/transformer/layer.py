"""The Transformer: stacked layers of attention and feed-forward networks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Unpack, cast

import torch
from torch import Tensor, nn

from seqloom.attention import ATTENTIONS
from seqloom.attention.dense import Attention
from seqloom.attention.parts import Aside, Lengths, State, check_input, check_state, mask_steps, real_steps
from seqloom.attention.position import INPUT_POSITIONS, POSITIONS, Position
from seqloom.core.errors import InputError, UserError, UserTypeError
from seqloom.core.plurals import shorten
from seqloom.kernels.fused import is_traced
from seqloom.layers.formats import SequencesT
from seqloom.layers.layer import Layer, StateT, select_rows
from seqloom.layers.linear.layer import Mixer
from seqloom.layers.transformer.block import Block, TransformerLayer

AttentionKind = str | Callable[..., nn.Module]


class Transformer(Layer):
    """Transformer: stacked layers of self-attention, optional attention to a memory, and a feed-forward network.

    An encoder by default; a language model with `causal=True`; a decoder with `causal=True` and `memory_size`.
    Vaswani et al. 2017, arXiv 1706.03762.

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        dim: Width of input and output, D.
        heads: Attention heads; dim must be a multiple.
        num_layers: Number of layers.
        causal: Whether steps attend to earlier steps only; `step` then runs a stream.
        memory_size: Width of the memory that the layers attend to; None for no memory.
        attention: "dense", "local", "linear", "performer", "linformer", the name of a linear recurrence such as
            "gated_deltanet", or a function that builds an attention, such as `functools.partial(LocalAttention,
            pattern=64)`. It is called with dim, heads and causal, and with those of position, dropout and bias that it
            takes. A list is taken in turn: `["gated_deltanet", "gated_deltanet", "dense"]` gives every third layer
            dense attention.
        position: Position encoding: "sinusoidal" or "learned" (added to the input); "rotary", "alibi", "relative" or
            "xl" (inside the attention); a module; or None.
        block: Norm, feed-forward network and dropout of the layers.

    Raises:
        ValueError: If a name is unknown, or attention and position do not fit together.

    Example:
        >>> layer = seqloom.Transformer(8, heads=2, causal=True, position="rotary")
        >>> y, state = layer(torch.randn(3, 5, 8))  # (B, T, D) -> (B, T, D)
        >>> y_next, state = layer.step(torch.randn(3, 8), state)
        >>> y.shape, y_next.shape
        (torch.Size([3, 5, 8]), torch.Size([3, 8]))
    """

    renamed: ClassVar = {"layers": "num_layers"}

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        num_layers: int = 2,
        *,
        causal: bool = False,
        memory_size: int | None = None,
        attention: AttentionKind | Sequence[AttentionKind] = "dense",
        position: str | nn.Module | None = None,
        block: Block = Block(),
    ) -> None:
        super().__init__()
        kinds = [attention] if isinstance(attention, str) or callable(attention) else list(attention)
        if not kinds:
            raise UserError(f"attention must name at least one kind, got {attention!r}")
        self.input_size = self.output_size = dim
        self.causal, self.memory_size = causal, memory_size
        self.position, inner = _split_position(position, dim)
        self.layers = nn.ModuleList()
        makers = [_find_attention(kind) for kind in kinds]
        _check_position(inner, makers, kinds)
        for i in range(num_layers):
            own = _make_attention(makers[i % len(makers)], dim, heads, causal, inner, block)
            cross = None
            if memory_size is not None:
                cross = Attention(dim, heads, dropout=block.weight_dropout, bias=block.bias, memory_size=memory_size)
            self.layers.append(TransformerLayer(own, block, cross))
        self.norm = nn.LayerNorm(dim, block.eps, bias=block.bias) if block.norm == "pre" else nn.Identity()
        self.state_size = 1 + sum(self.layer_at(i).state_size for i in range(num_layers))

    def layer_at(self, index: int) -> TransformerLayer:
        return cast(TransformerLayer, self.layers[index])

    def forward(
        self,
        x: SequencesT,
        state: State | None = None,
        lengths: Lengths = None,
        *,
        memory: Tensor | None = None,
        memory_lengths: Lengths = None,
        mask: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[SequencesT, State | None]:
        """Run the layers over sequences.

        Args:
            x: (B, T, D), or another format that `Layer` takes.
            state: What an earlier call returned, to continue from there. It includes the keys and values of the memory,
                which then need not be passed again.
            lengths: (B,), the real steps of each row.
            memory: (B, S, memory_size), for a Transformer with `memory_size`.
            memory_lengths: (B,), the real steps of each row of the memory.
            mask: Mask of the self-attention, see `Attention`.
            reset: (B, T), True where a new sequence begins; for linear recurrences in place of attention, and x
                (B, T, D).

        Returns:
            y: (B, T, D), 0 past each row's length.
            state: The number of steps so far (B,), then the keys and values of each layer; None if not causal
                (an empty tuple while `torch.jit.trace` records, which cannot return None).
        """
        if not (isinstance(x, Tensor) and x.dim() == 3 and not x.is_nested and self.batch_first):
            run = partial(self._run, memory=memory, memory_lengths=memory_lengths, mask=mask)
            if reset is not None:
                raise InputError("reset needs an input (B, T, D)")
            return self.in_format(run, x, state, lengths)
        return self._run(x, state, lengths, memory, memory_lengths, mask, reset)

    def _run(
        self,
        x: Tensor,
        state: State | None,
        lengths: Lengths,
        memory: Tensor | None = None,
        memory_lengths: Lengths = None,
        mask: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, State | None]:
        """Run on (B, T, D)."""
        check_input(x, self.input_size, self)
        check_state(state, self.state_size, x)
        if memory is not None and self.memory_size is None:
            raise InputError("a memory was given to a Transformer without one; build it with memory_size=")
        real = real_steps(lengths, x)
        count = x.new_zeros(x.shape[0], dtype=torch.long) if state is None else state[0]
        x = mask_steps(x, real)  # NaN there would come back through a norm as a gradient
        if self.position is not None:
            at = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
            at = at if state is None else at + count.unsqueeze(1)
            x = self.position(
                x, at if real is None else at.masked_fill(~real, 0)
            )  # position 0 for padding, which may lie past a learned table
        ends: list[Tensor] = [count + (x.shape[1] if real is None else real.sum(1))]
        left = () if state is None else state[1:]
        for i in range(len(self.layers)):
            layer = self.layer_at(i)
            own, left = (left[: layer.state_size], left[layer.state_size :]) if left else (None, left)
            x, end = layer(x, own, lengths, memory=memory, memory_lengths=memory_lengths, mask=mask, reset=reset)
            ends += end or ()
        if self.causal:
            return mask_steps(self.norm(x), real), tuple(ends)
        return mask_steps(self.norm(x), real), () if is_traced() else None  # a trace cannot return None

    def step(self, x: Tensor, state: State | None = None, **memory: Unpack[Aside]) -> tuple[Tensor, State]:
        """Run one time step of a stream: x (B, D) to y (B, D) and the state; `memory` as in `forward`."""
        if not self.causal:
            raise InputError("step: a Transformer with causal=False needs the whole sequence")
        y, state = self(x.unsqueeze(1), state, **memory)
        return y.squeeze(1), cast(State, state)


class Projected(Layer):
    """A linear map to the width of a Transformer, and the Transformer: y = layer(W x + b)."""

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

    def select(self, state: StateT, rows: Tensor) -> StateT:
        return select_rows(self.layer, state, rows)


def _split_position(position: str | nn.Module | None, dim: int) -> tuple[nn.Module | None, str | Position | None]:
    """Return the module that is added to the input and the encoding inside the attentions; one of them is None."""
    if isinstance(position, str) and position not in (*INPUT_POSITIONS, *POSITIONS):
        raise UserError(f"position must be one of {', '.join((*INPUT_POSITIONS, *POSITIONS))}, got {position!r}")
    if isinstance(position, Position) or (isinstance(position, str) and position in POSITIONS):
        return None, position
    return (INPUT_POSITIONS[position](dim) if isinstance(position, str) else position), None


def _find_attention(attention: AttentionKind) -> Callable[..., nn.Module]:
    """Return the function that builds an attention of this name; a function stays as it is."""
    if not isinstance(attention, str):
        if isinstance(attention, nn.Module) or attention.__module__ == "builtins":
            raise UserTypeError(
                f"attention must be a name, or a function that builds a module, got {shorten(repr(attention))}"
            )
        return attention
    known: dict[str, Callable[..., nn.Module]] = {**ATTENTIONS, **Mixer.registry}
    if attention not in known:
        raise UserError(f"attention must be one of {', '.join(known)}, or a function, got {attention!r}")
    return known[attention]


def _check_position(
    position: str | Position | None, makers: Sequence[Callable[..., nn.Module]], kinds: Sequence[AttentionKind]
) -> None:
    if position is None or any("position" in inspect.signature(make).parameters for make in makers):
        return
    names = ", ".join(repr(kind) for kind in kinds)
    raise UserError(f"attention {names} takes no position; take one of {', '.join(INPUT_POSITIONS)} for the input")


def _make_attention(
    make: Callable[..., nn.Module],
    dim: int,
    heads: int,
    causal: bool,
    position: str | Position | None,
    block: Block,
) -> nn.Module:
    takes = inspect.signature(make).parameters
    settings = {"position": position, "dropout": block.weight_dropout, "bias": block.bias}
    return make(dim, heads, causal=causal, **{name: value for name, value in settings.items() if name in takes})
