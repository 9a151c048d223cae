"""Layers from recurrence to attention, each with its theoretical costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from seqloom.attention import Attention, LinearAttention, LocalAttention
from seqloom.kernels.linear.chunk import SCALAR_CHUNK
from seqloom.layers.hybrid import Hybrid
from seqloom.layers.linear.gated_deltanet import GatedDeltaNet
from seqloom.layers.linear.lru import LRU
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.layers.tcn import TCN

WINDOW = CHUNK = 64  # steps: window of local attention, chunk of linear attention
HEADS, KERNEL = 4, 3

Count = Callable[[int, int], float]  # for T steps and d features
Steps = tuple[str, Callable[[int], int]]  # for T steps


@dataclass(frozen=True)
class Form:
    """A causal layer of width d and its counts for T steps.

    work: multiply-adds of the products, forward. keeps: numbers saved for the backward, up to a factor.
    steps: sequential steps. path: longest path from input 0 to output T - 1.
    layers: number of stacked layers needed to connect both.
    """

    name: str
    make: Callable[[int, int], nn.Module]  # d, T
    longest: int  # largest T to measure
    time: str
    work: Count
    memory: str
    keeps: Count
    steps: Steps
    path: Steps
    layers: Callable[[int], int] = lambda _: 1
    deep: Callable[[int, int, int], nn.Module] | None = None  # (d, T, layers); None: stack `make`

    def stack(self, d: int, T: int, layers: int) -> nn.Module:
        return self.deep(d, T, layers) if self.deep else _LayerStack(*(self.make(d, T) for _ in range(layers)))


class _LayerStack(nn.Sequential):
    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        for layer in self:
            x, _ = layer(x)
        return x, None


class ExplicitAttention(Attention):
    """Self-attention as in the equations: the weight matrix is computed and saved for the backward."""

    def forward(self, x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return self.join(self.weights(x) @ self.split(self.v(x))), None


def _recurrent(cell: str, d: int, T: int) -> nn.Module:
    return Recurrent(cell, d, d, batch_first=True)


def _tcn(d: int, T: int, blocks: int) -> nn.Module:
    return TCN(d, d, blocks, KERNEL)


def windows(T: int) -> int:
    """Return the number of windows from the first step to the last."""
    return -(-(T - 1) // WINDOW)


def blocks(T: int) -> int:
    """Return the number of TCN blocks with which the last output sees T steps."""
    return max(1, math.ceil(math.log2((T - 1) / (2 * (KERNEL - 1)) + 1)))


ONE: Steps = ("1", lambda _: 1)
ALL: Steps = ("T", lambda T: T)
CHUNKS: Steps = ("T / c", lambda T: -(-T // SCALAR_CHUNK))
LOG: Steps = ("2 log T", lambda T: 2 * blocks(T))


def _delta_work(d: int) -> float:
    """Return the products of a step of Gated DeltaNet.

    Projections, convolution and gates; scores, triangular system and its inverse in each chunk; the state.
    """
    C = SCALAR_CHUNK
    return 5 * d * d + (12 + 2 * HEADS) * d + 5 * C * d + 3 * d * d / HEADS + HEADS * (C * C - 1) / 3


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
    Form(  # the loop saves the window of every step
        *("RNN + attention", lambda d, T: Recurrent("rnn_attention", d, d, batch_first=True, window=T), 2048),
        *("T d^2 + T^2 d", lambda T, d: 4 * T * d * d + 2 * T * T * d),
        *("T^2 d", lambda T, d: T * T * d),
        *(ALL, ("2", lambda _: 2)),
    ),
    Form(
        *("self-attention as written", lambda d, _: ExplicitAttention(d, HEADS, causal=True), 2048),
        *("T^2 d + T d^2", lambda T, d: 4 * T * d * d + 2 * T * T * d),
        *("T^2 heads + T d", lambda T, d: HEADS * T * T + 4 * T * d),
        *(ONE, ONE),
    ),
    Form(  # nothing is computed above the diagonal
        *("self-attention fused", lambda d, _: Attention(d, HEADS, causal=True), 8192),
        *("T^2 d + T d^2", lambda T, d: 4 * T * d * d + T * T * d),
        *("T d", lambda T, d: T * d),
        *(ONE, ONE),
    ),
    Form(  # a block of queries attends to two blocks of keys
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
        *("Gated DeltaNet", lambda d, _: GatedDeltaNet(d, HEADS, kernel="chunk"), 8192),
        *("T d^2", lambda T, d: T * _delta_work(d)),
        *("T d", lambda T, d: T * d),
        *(CHUNKS, CHUNKS),
    ),
    Form(
        *("LRU", lambda d, _: LRU(d), 16384),
        *("T d^2", lambda T, d: 5 * T * d * d),
        *("T d", lambda T, d: T * d),
        *(("log T", lambda T: math.ceil(math.log2(T))), ALL),
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
        *("hybrid", lambda d, _: Hybrid(d, d, 1, heads=HEADS, kernel_size=KERNEL), 8192),
        *("T^2 d + T d^2", lambda T, d: (1 + KERNEL + 4 + 6) * T * d * d + T * T * d),
        *("T d", lambda T, d: T * d),
        *(ALL, ONE),
    ),
)
