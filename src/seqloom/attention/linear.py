"""Linear attention: a product of features instead of a softmax, in time O(T)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seqloom.attention.features import Elu
from seqloom.attention.parts import Heads, Lengths, State, mask_steps, pad_end, split_parts, take_first
from seqloom.core.errors import UserError
from seqloom.core.job import clone_part


class LinearAttention(Heads):
    """Linear attention: keys and values are summed once, and every query reads the sums.

        S = sum_j phi(k_j) v_j^T
        z = sum_j phi(k_j)
        y_i = W_o (phi(q_i) S / phi(q_i) z)

    A causal layer sums over j <= i: within a chunk of steps as a matrix, across chunks as a running sum. Its state is
    S (B, heads, F, d) and z (B, heads, F) for F features, of constant size.
    Katharopoulos et al. 2020, arXiv 2006.16236.

    Args:
        dim: Number of features of input and output, D.
        heads: Number of heads; divides `dim`.
        causal: Let each step attend only to itself and earlier steps.
        chunk: Steps that a causal layer computes together; affects speed and memory only.
        bias: Add a bias to the four products.

    Raises:
        UserError: If the heads do not divide `dim`, or `chunk` is below 1.

    Example:
        >>> attention = seqloom.LinearAttention(16, heads=4, causal=True)
        >>> y, state = attention(torch.randn(2, 100, 16))  # (B, T, D)
        >>> y, state = attention.step(torch.randn(2, 16), state)  # the next step
        >>> y.shape
        torch.Size([2, 16])
    """

    state_size = 2

    def __init__(self, dim: int, heads: int = 4, *, causal: bool = False, chunk: int = 64, bias: bool = True) -> None:
        super().__init__(dim, heads, causal, bias)
        if chunk < 1:
            raise UserError(f"chunk must be at least 1 step, got {chunk}")
        self.chunk = chunk
        self.phi: Any = Elu()  # has query(q) and key(k, causal)

    def forward(self, x: Tensor, state: State | None = None, lengths: Lengths = None) -> tuple[Tensor, State | None]:
        """Attend within a sequence.

        Args:
            x: (B, T, D).
            state: The state that a causal layer returned for the preceding steps.
            lengths: (B,), the real steps of each row; the output is 0 after them.

        Returns:
            The output (B, T, D), and the state; None without causal=True.
        """
        x, real = self.read(x, lengths, state)
        q, k, v = self._parts(x, real)
        if self.causal:
            y, state = self._scan_chunks(q, k, v, state)
            return mask_steps(self.join(y), real), state
        S = k.mT @ v  # (B, heads, features, d)
        z = k.sum(2)
        y = _divide(q @ S, q @ z.unsqueeze(-1))
        return mask_steps(self.join(y), real), None

    def weights(self, x: Tensor, lengths: Lengths = None) -> Tensor:
        """Return the attention weights (B, heads, T, T), for inspection: memory grows with T^2."""
        x, real = self.read(x, lengths)
        q, k, _ = self._parts(x, real)
        s = (q @ k.mT).tril() if self.causal else q @ k.mT
        a = _divide(s, s.sum(-1, keepdim=True))
        return a if real is None else a * real[:, None, :, None]

    def _parts(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (self.split(product(x)) for product in (self.q, self.k, self.v))
        if real is not None and not self.causal:  # phi may scale by the largest key, which must be a real one
            k = torch.where(real[:, None, :, None], k, k[:, :, :1])
        q, k = self.phi.query(q), self.phi.key(k, self.causal)
        return q, (k if real is None else k * real[:, None, :, None]), v

    def _scan_chunks(self, q: Tensor, k: Tensor, v: Tensor, state: State | None) -> tuple[Tensor, State]:
        T = q.shape[2]
        exporting = torch.compiler.is_exporting()  # T is then unknown and must not be compared with the chunk
        c = self.chunk if exporting else min(self.chunk, T)
        n = (T + c - 1) // c + int(exporting)  # int: torch 2.8 adds no bool to a symbolic size
        q, k, v = (split_parts(pad_end(t, n * c - T, -2), c, 2) for t in (q, k, v))  # (B, heads, n, c, .)
        start = (None, None) if state is None else state
        S, z = _sum_chunks(k.mT @ v, start[0]), _sum_chunks(k.sum(3), start[1])
        A, S_before, z_before = (q @ k.mT).tril(), S[:, :, :-1].to(q.dtype), z[:, :, :-1].to(q.dtype)
        y = _divide(A @ v + q @ S_before, A.sum(-1, keepdim=True) + q @ z_before.unsqueeze(-1))
        return take_first(y.flatten(2, 3), T, 2), (clone_part(S[:, :, -1]), clone_part(z[:, :, -1]))


def _sum_chunks(s: Tensor, start: Tensor | None) -> Tensor:
    """Return the sums before each chunk and after the last: (B, heads, n, ...) -> (B, heads, n + 1, ...).

    In float32 at least: a sum in bfloat16 stops growing after a few hundred steps.
    """
    s = s.to(torch.promote_types(s.dtype, torch.float32))
    start = torch.zeros_like(s[:, :, 0]) if start is None else start.to(s.dtype)
    return torch.cat([start.unsqueeze(2), s], 2).cumsum(2)


def _divide(y: Tensor, sums: Tensor) -> Tensor:
    """Return y / sums, and 0 where a sum is 0."""
    return y / torch.where(sums == 0, torch.ones_like(sums), sums)
