"""Low-rank attention: to a few learned mixtures of the steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from seqloom.attention.parts import Heads, Lengths, State, mask_steps, take_first, weigh
from seqloom.core.errors import InputError, UserError


class LinformerAttention(Heads):
    """Low-rank attention: keys and values of T steps are mixed down to `rank` rows, in time O(T).

        y = W_o softmax(Q (E K)^T / sqrt(d)) (F V)

    E and F, (rank, max_length), are learned and shared by the heads; shorter sequences use their first columns. Every
    row mixes the whole sequence, so there is no causal form and no state. Wang et al. 2020, arXiv 2006.04768.

    Args:
        dim: Number of features of input and output, D.
        heads: Number of heads; divides `dim`.
        rank: Number of mixtures.
        max_length: Longest sequence, in steps.
        causal: Must be False.
        dropout: Dropout probability of the attention weights in training.
        bias: Add a bias to the four products.

    Raises:
        UserError: If `causal` is True, or the heads do not divide `dim`.

    Example:
        >>> attention = seqloom.LinformerAttention(16, heads=4, rank=8, max_length=100)
        >>> y, _ = attention(torch.randn(2, 50, 16), lengths=[50, 30])  # (B, T, D)
        >>> y.shape
        torch.Size([2, 50, 16])
    """

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        *,
        rank: int = 64,
        max_length: int = 512,
        causal: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        if causal:
            raise UserError(
                "causal=True: LinformerAttention mixes the whole sequence and cannot be causal; take LinearAttention"
            )
        super().__init__(dim, heads, causal, bias)
        self.rank, self.max_length, self.dropout = rank, max_length, dropout
        self.E = nn.Parameter(torch.randn(rank, max_length) / math.sqrt(max_length))
        self.F = nn.Parameter(torch.randn(rank, max_length) / math.sqrt(max_length))

    def forward(self, x: Tensor, state: State | None = None, lengths: Lengths = None) -> tuple[Tensor, None]:
        """Attend within a sequence.

        Args:
            x: (B, T, D), T at most `max_length`.
            state: Must be None.
            lengths: (B,), the real steps of each row; the output is 0 after them.

        Returns:
            The output (B, T, D), and None.

        Raises:
            InputError: If the sequence is too long, or a state is passed.
        """
        x, real = self.read(x, lengths, state)
        q, k, v = self._parts(x, real)
        y = weigh(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return mask_steps(self.join(y), real), None

    def weights(self, x: Tensor, lengths: Lengths = None) -> Tensor:
        """Return the attention weights of the mixtures, (B, heads, T, rank)."""
        x, real = self.read(x, lengths)
        q, k, _ = self._parts(x, real)
        a = torch.softmax(q @ k.mT / math.sqrt(self.head_size), -1)
        return a if real is None else a * real[:, None, :, None]

    def _parts(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        T = x.shape[1]
        if self.max_length < T:
            raise InputError(
                f"a sequence of {T} steps is longer than max_length={self.max_length}; "
                f"construct LinformerAttention with max_length={T}"
            )
        q, k, v = self.split(self.q(x)), mask_steps(self.k(x), real), mask_steps(self.v(x), real)
        return q, self.split(take_first(self.E, T, 1) @ k), self.split(take_first(self.F, T, 1) @ v)
