"""Softmax attention in time O(T), with random features."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.attention.features import Positive, Random, Trigonometric
from seqloom.attention.linear import LinearAttention
from seqloom.attention.parts import Lengths, State
from seqloom.core.errors import InputError, UserError

KINDS: dict[str, type[Random]] = {"positive": Positive, "trigonometric": Trigonometric}


class PerformerAttention(LinearAttention):
    """`LinearAttention` with features whose product is, in the mean, exp(q k / sqrt(d)).

    So its outputs come near those of `Attention` with the same weights as `features` grows.
    `kind` is "positive" or "trigonometric". `redraw` draws new features every so many forward calls
    in training; 0 keeps them. Choromanski et al. 2021, arXiv 2009.14794.
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
        """(B, T, D) -> (B, T, D), state; steps past a row's length get zeros."""
        if self.redraw and self.training and state is None and not torch.compiler.is_compiling():
            if self.redraw > 1 and torch._C._current_graph_task_id() != -1:  # a checkpoint computes a forward again
                raise InputError(f"redraw={self.redraw} under gradient checkpointing counts calls twice; take 1 or 0")
            self.calls += 1
            if self.calls % self.redraw == 0:
                self.phi.redraw()
        return super().forward(x, state, lengths)
