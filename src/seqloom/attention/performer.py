"""Softmax attention approximated with random features, in time O(T)."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.attention.features import Positive, Random, Trigonometric
from seqloom.attention.linear import LinearAttention
from seqloom.attention.parts import Lengths, State
from seqloom.core.errors import InputError, UserError

KINDS: dict[str, type[Random]] = {"positive": Positive, "trigonometric": Trigonometric}


class PerformerAttention(LinearAttention):
    """`LinearAttention` with random features whose product is exp(q k / sqrt(d)) on average.

    Outputs approach those of `Attention` with the same weights as `features` grows.
    Choromanski et al. 2021, arXiv 2009.14794.

    Args:
        dim: Number of features of input and output, D.
        heads: Number of heads; divides `dim`.
        features: Number of random directions.
        kind: "positive" or "trigonometric" features.
        redraw: Draw new features every `redraw` forward calls in training; 0 keeps them.
        causal: Let each step attend only to itself and earlier steps.
        chunk: Steps that a causal layer computes together; affects speed and memory only.
        bias: Add a bias to the four products.

    Raises:
        UserError: If `kind` is unknown, or the heads do not divide `dim`.

    Example:
        >>> attention = seqloom.PerformerAttention(16, heads=4, features=64)
        >>> y, _ = attention(torch.randn(2, 100, 16))  # (B, T, D)
        >>> y.shape
        torch.Size([2, 100, 16])
    """

    phi: Random

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        *,
        features: int = 256,
        kind: str = "positive",
        redraw: int = 0,
        causal: bool = False,
        chunk: int = 64,
        bias: bool = True,
    ) -> None:
        if kind not in KINDS:
            raise UserError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        super().__init__(dim, heads, causal=causal, chunk=chunk, bias=bias)
        self.redraw, self.calls = redraw, 0
        self.phi = KINDS[kind](self.head_size, features)

    def forward(self, x: Tensor, state: State | None = None, lengths: Lengths = None) -> tuple[Tensor, State | None]:
        """Attend within a sequence, as `LinearAttention.forward` does; draw new features as `redraw` requires."""
        if self.redraw and self.training and state is None and not torch.compiler.is_compiling():
            if self.redraw > 1 and torch._C._current_graph_task_id() != -1:  # checkpointing repeats the forward pass
                raise InputError(f"redraw={self.redraw} under gradient checkpointing counts calls twice; use 1 or 0")
            self.calls += 1
            if self.calls % self.redraw == 0:
                self.phi.redraw()
        return super().forward(x, state, lengths)
