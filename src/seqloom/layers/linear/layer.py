"""The base classes of linear recurrences: layers that can replace a self-attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from seqloom.attention.parts import check_state
from seqloom.core.cell import State
from seqloom.core.checks import check_heads
from seqloom.core.errors import DtypeError, InputError, UserError
from seqloom.core.job import zero_padding
from seqloom.kernels.linear.bound import run_step
from seqloom.kernels.linear.choice import is_recording
from seqloom.kernels.linear.dispatch import NAMES, run_linear
from seqloom.kernels.linear.job import make_job
from seqloom.layers.formats import SequencesT
from seqloom.layers.layer import Layer
from seqloom.layers.linear.parts import ShortConv


@dataclass(frozen=True, eq=False)
class Terms:
    """What a layer computes from its input for the kernels: queries, keys, values and gates of every step.

    The recurrence of each head, with the state S (K, V); `LinearJob` documents it in full:

        S' = exp(decay) S + k (v - S^T erase)^T
        y  = S'^T q

    Attributes:
        q: Queries, (B, T, heads, K).
        k: Keys, (B, T * writes, heads, K).
        v: Values, (B, T * writes, heads, V).
        decay: Logarithms of the decay, (B, T * writes, heads) or (B, T * writes, heads, K); None for no decay.
        erase: Keys of what is erased before a write, (B, T * writes, heads, K); None to erase nothing.
        beta: Rates of the delta rule, (B, T * writes, heads), instead of `erase`; or None.
        writes: Writes for each output: 1, or more for products of several transitions.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor | None = None
    erase: Tensor | None = None
    beta: Tensor | None = None
    writes: int = 1


class Mixer(Layer):
    """Base class of linear recurrences over x (B, T, D), causal, with a state of `state_size` tensors.

    A subclass has `name=` and defines `mix(x, state, lengths, reset) -> (y, state)`. It is listed in `MIXERS`, which
    makes it available as a named layer, as `attention=` of `Transformer` and as `cell=` of `Hybrid`.
    """

    registry: ClassVar[dict[str, type[Mixer]]] = {}
    renamed: ClassVar = {"conv": "kernel_size"}
    state_size: int
    conv: nn.Module | None

    def __init_subclass__(cls, name: str = "", **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if name:
            Mixer.registry[name] = cls

    def __init__(self, dim: int, heads: int, causal: bool) -> None:
        super().__init__()
        if not causal:
            raise UserError(f"{type(self).__name__} reads from left to right; take causal=True")
        check_heads(heads, dim, "dim")
        self.input_size = self.output_size = dim
        self.heads, self.causal = heads, True

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None, reset: Tensor | None) -> tuple[Tensor, State]:
        """Run on x (B, T, D) with 0 past each row's length."""
        raise NotImplementedError

    def run(
        self, x: Tensor, state: State | None, lengths: Tensor | None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        check_state(state, self.state_size, x)
        return self.mix(x, state, lengths, reset)

    def convolve(
        self, u: Tensor, state: State | None, lengths: Tensor | None, reset: Tensor | None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return u after the convolution, if there is one, its new state, and the rest of the layer's state."""
        left = list(state or ())
        if self.conv is None:
            return u, [], left
        u, end = self.conv(zero_padding(u, lengths), left.pop(0) if left else None, lengths, reset)
        return u, [end], left

    def forward(
        self,
        x: SequencesT,
        state: State | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        reset: Tensor | None = None,
    ) -> tuple[SequencesT, State | None]:
        """Run the layer over sequences.

        Args:
            x: (B, T, D), or another format that `Layer` takes.
            state: What an earlier call returned, to continue from there; None at the start.
            lengths: (B,), the real steps of each row.
            reset: (B, T), True where a new sequence begins: the state is emptied before that step. For x (B, T, D).

        Returns:
            y: (B, T, D), 0 past each row's length.
            state: The state after each row's last real step.
        """
        if reset is None:
            return super().forward(x, state, lengths)
        if not isinstance(x, Tensor) or tuple(reset.shape) != tuple(x.shape[:2]):
            raise InputError(f"reset must be (B, T) for an input (B, T, D), got shape {tuple(reset.shape)}")
        flags = reset.bool() if self.batch_first else reset.bool().transpose(0, 1)
        return self.in_format(partial(self.run, reset=flags), x, state, lengths)


class LinearMixer(Mixer):
    """Base class of recurrences with a matrix state (heads, K, V).

    A subclass has the products `W_qkv` and `W_o` and a `norm`, optionally a gate `W_g` and a convolution, and defines
    `terms`; or it defines `project` and `finish`, too. State: the inputs of the convolution, S in float32 at least, and
    what `terms` adds to it.

    Args:
        dim: Width of input and output, D.
        heads: Heads; dim must be a multiple.
        causal: Must be True.
        kernel: "auto", or the name of a kernel.
        key_size: Channels of a key in each head, K; 0 for dim / heads.
        value_size: Channels of a value in each head, V; 0 for dim / heads.
    """

    norm: nn.Module
    W_qkv: nn.Linear
    W_o: nn.Linear

    def __init__(self, dim: int, heads: int, causal: bool, kernel: str, key_size: int = 0, value_size: int = 0) -> None:
        super().__init__(dim, heads, causal)
        if kernel not in NAMES:
            raise UserError(f"kernel must be one of {', '.join(NAMES)}, got {kernel!r}")
        self.kernel, self.conv = kernel, None
        self.key_size = head_size(dim, heads, key_size, "key_size")
        self.value_size = head_size(dim, heads, value_size, "value_size")
        self.state_size = 1

    def add_conv(self, width: int, taps: int, bias: bool = False) -> None:
        """Add a convolution over the last `taps` steps of `width` channels; 0 taps for none."""
        if taps < 0 or taps == 1:
            raise UserError(f"kernel_size must be 0 or at least 2 steps, got {taps}")
        self.conv = ShortConv(width, taps, bias) if taps else None
        self.state_size += taps > 0

    def project(self, x: Tensor) -> Tensor:
        """Return the input of the convolution, (B, T, C)."""
        return self.W_qkv(x)

    def terms(self, x: Tensor, u: Tensor) -> Terms:
        """Return the terms of the recurrence, from the input x and the convolved projection u."""
        raise NotImplementedError

    def finish(self, y: Tensor, x: Tensor, u: Tensor, terms: Terms) -> Tensor:
        """Return the layer's output (B, T, D) from y (B, T, heads, V), which is in float32 at least."""
        gate = self._modules.get("W_g")
        y = self.norm(y) if gate is None else self.norm(y, self.split(gate(x)))
        return self.W_o(y.flatten(2).to(x.dtype))

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None, reset: Tensor | None) -> tuple[Tensor, State]:
        u, ends, left = self.convolve(self.project(x), state, lengths, reset)
        terms = self.terms(x, u)
        y, S = self.recur(terms, read_float_state(left[0] if left else None), lengths, reset)
        return self.finish(y, x, u, terms).to(x.dtype), (*ends, S)

    def recur(self, t: Terms, S: Tensor | None, lengths: Tensor | None, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run the recurrence, and return its outputs (B, T, heads, V) and its last state."""
        is_step = t.q.shape[1] == 1 and S is not None and lengths is None and reset is None
        if is_step and self.kernel in ("auto", "cpu") and not is_recording():
            assert S is not None
            result = run_step(t.q, t.k, t.v, t.decay, t.erase, t.beta, S, t.writes)
            if result is not None:
                return result
        job = make_job(t.q, t.k, t.v, t.decay, t.erase, S, beta=t.beta, lengths=lengths, reset=reset, writes=t.writes)
        return run_linear(job, self.kernel)

    def split(self, t: Tensor) -> Tensor:
        """(B, T, heads d) -> (B, T, heads, d)."""
        return t.unflatten(-1, (self.heads, -1))

    def extra_repr(self) -> str:
        return f"{self.input_size}, heads={self.heads}, key_size={self.key_size}, value_size={self.value_size}"


def read_float_state(state: Tensor | None) -> Tensor | None:
    """Return a state, after checking that it is of a real floating-point type."""
    if state is not None and not state.is_floating_point():
        raise DtypeError(f"the state must be a floating-point tensor, got {state.dtype}")
    return state


def head_size(dim: int, heads: int, size: int, name: str) -> int:
    """Return the size of a head: `size`, or dim / heads if it is 0."""
    if size < 0:
        raise UserError(f"{name} must be positive, or 0 for dim / heads, got {size}")
    return size or dim // heads


def wide(t: Tensor) -> Tensor:
    """Convert t to float32; float64 stays float64."""
    return t.to(torch.promote_types(t.dtype, torch.float32))
