"""The ways from recurrence to attention, each with what theory counts of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from seqloom.attention import Attention, LinearAttention, LocalAttention
from seqloom.layers.hybrid import Hybrid
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.layers.tcn import TCN

WINDOW = CHUNK = 64  # of local attention to the past, of linear attention's running sums
HEADS, KERNEL = 4, 3

Count = Callable[[int, int], float]  # for T steps and d features
Steps = tuple[str, Callable[[int], int]]  # for T steps


@dataclass(frozen=True)
class Form:
    """One layer of width d that sees the past alone, and its counts for T steps.

    work: multiply-adds of the products, forward. keeps: numbers kept for the backward, up to a factor.
    steps: what has to happen one after another. path: from the input at 0 to the output at T - 1.
    layers: how many it takes for the one to reach the other; one has to stack as many.
    """

    name: str
    make: Callable[[int, int], nn.Module]  # d, T
    longest: int  # T up to which it is measured
    time: str
    work: Count
    memory: str
    keeps: Count
    steps: Steps
    path: Steps
    layers: Callable[[int], int] = lambda _: 1
    deep: Callable[[int, int, int], nn.Module] | None = None  # d, T, layers; None: one upon the other

    def stack(self, d: int, T: int, layers: int) -> nn.Module:
        return self.deep(d, T, layers) if self.deep else _Stack(*(self.make(d, T) for _ in range(layers)))


class _Stack(nn.Sequential):
    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        for layer in self:
            x, _ = layer(x)
        return x, None


class Written(Attention):
    """Self-attention as it is written: the matrix of weights is made, and kept for the backward."""

    def forward(self, x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return self.join(self.weights(x) @ self.split(self.v(x))), None


def _recurrent(cell: str, d: int, T: int) -> nn.Module:
    return Recurrent(cell, d, d, batch_first=True)


def _tcn(d: int, T: int, blocks: int) -> nn.Module:
    return TCN(d, d, blocks, KERNEL)


def windows(T: int) -> int:
    """From the first step to the last."""
    return -(-(T - 1) // WINDOW)


def blocks(T: int) -> int:
    """Blocks of a TCN whose last output sees T steps."""
    return max(1, math.ceil(math.log2((T - 1) / (2 * (KERNEL - 1)) + 1)))


ONE: Steps = ("1", lambda _: 1)
ALL: Steps = ("T", lambda T: T)
LOG: Steps = ("2 log T", lambda T: 2 * blocks(T))

FORMS = (
    Form(
        *("RNN", partial(_recurrent, "rnn"), 16384),
        *("T d^2", lambda T, d: 2 * T * d * d),
        *("T d", lambda T, d: T * d),
        *(ALL, ALL),
    ),
    Form(
        *("AttnRNN", partial(_recurrent, "attn_rnn"), 16384),
        *("T d^2", lambda T, d: 4 * T * d * d),
        *("T d", lambda T, d: T * d),
        *(ALL, ALL),
    ),
    Form(  # the loop keeps the window of every step
        *("RNN + attention", lambda d, T: Recurrent("rnn_attention", d, d, batch_first=True, window=T), 2048),
        *("T d^2 + T^2 d", lambda T, d: 4 * T * d * d + 2 * T * T * d),
        *("T^2 d", lambda T, d: T * T * d),
        *(ALL, ("2", lambda _: 2)),
    ),
    Form(
        *("self-attention as written", lambda d, _: Written(d, HEADS, causal=True), 2048),
        *("T^2 d + T d^2", lambda T, d: 4 * T * d * d + 2 * T * T * d),
        *("T^2 heads + T d", lambda T, d: HEADS * T * T + 4 * T * d),
        *(ONE, ONE),
    ),
    Form(  # above the diagonal nothing is computed
        *("self-attention fused", lambda d, _: Attention(d, HEADS, causal=True), 8192),
        *("T^2 d + T d^2", lambda T, d: 4 * T * d * d + T * T * d),
        *("T d", lambda T, d: T * d),
        *(ONE, ONE),
    ),
    Form(  # a block of queries looks at two of keys
        *("local attention", lambda d, _: LocalAttention(d, HEADS, causal=True, pattern=WINDOW), 16384),
        *("T w d + T d^2", lambda T, d: 4 * T * d * d + 4 * T * WINDOW * d),
        *("T (d + w)", lambda T, d: T * (d + WINDOW)),
        *(ONE, ("T / w", windows)),
        layers=windows,
    ),
    Form(
        *("linear attention", lambda d, _: LinearAttention(d, HEADS, causal=True, chunk=CHUNK), 16384),
        *("T d^2", lambda T, d: 4 * T * d * d + 2 * T * d * (CHUNK + d // HEADS)),
        *("T d", lambda T, d: T * d),
        *(ONE, ONE),
    ),
    Form(
        *("TCN", lambda d, T: _tcn(d, T, blocks(T)), 8192),
        *("T d^2 log T", lambda T, d: 2 * KERNEL * T * d * d * blocks(T)),
        *("T d log T", lambda T, d: T * d * blocks(T)),
        *(LOG, LOG),
        layers=blocks,
        deep=_tcn,
    ),
    Form(
        *("hybrid", lambda d, _: Hybrid(d, d, 1, heads=HEADS, kernel=KERNEL), 8192),
        *("T^2 d + T d^2", lambda T, d: (1 + KERNEL + 4 + 6) * T * d * d + T * T * d),
        *("T d", lambda T, d: T * d),
        *(ALL, ONE),
    ),
)
