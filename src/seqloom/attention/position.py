"""Positions: added to the input, or applied inside the attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from seqloom.core.errors import InputError, UserError


def sinusoid(at: Tensor, dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the sinusoidal encoding of positions: (...) -> (..., dim).

        PE(p, 2i)     = sin(p / 10000^(2i / dim))
        PE(p, 2i + 1) = cos(p / 10000^(2i / dim))

    PE(p + k) is PE(p) rotated by angles that depend only on k. Vaswani et al. 2017, arXiv 1706.03762.
    """
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    i = torch.arange((dim + 1) // 2, device=at.device, dtype=exact)
    angle = at.to(exact).unsqueeze(-1) * torch.exp(-math.log(10000.0) * 2 * i / dim)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :dim].to(dtype)


class Sinusoidal(nn.Module):
    """Add sinusoids, x + PE(position), for any length; without parameters."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        """Add the encoding of positions `at`, (B, T) or (1, T), to x (B, T, D)."""
        return x + sinusoid(at, self.dim, x.dtype)


class Learned(nn.Module):
    """Add a learned vector for each of `max_length` positions."""

    def __init__(self, dim: int, max_length: int = 512) -> None:
        super().__init__()
        self.max_length = max_length
        self.table = nn.Parameter(torch.randn(max_length, dim) * 0.02)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        """Add the encoding of positions `at`, (B, T) or (1, T), to x (B, T, D)."""
        if x.shape[1] > self.max_length:
            raise InputError(self._too_long(x.shape[1]))
        if not torch.compiler.is_compiling() and at.device.type == "cpu" and at.numel() and at.shape[0] == x.shape[0]:
            last = int(at.max())
            if last >= self.max_length:
                raise InputError(self._too_long(last + 1))
        return x + self.table[at]

    def _too_long(self, steps: int) -> str:
        return (
            f"a sequence of {steps} steps is longer than the table of {self.max_length} learned positions; "
            f"use Learned(dim, max_length={steps}) or Sinusoidal"
        )


class Position(nn.Module):
    """Base class of positions inside an attention; subclasses override `query`, `key` or `bias`.

    `at`, `i` and `j` are the positions of steps, queries and keys, (B, T) or (1, T).
    """

    def __init__(self, heads: int, head_size: int) -> None:
        super().__init__()
        self.heads, self.head_size = heads, head_size

    def query(self, q: Tensor, at: Tensor) -> Tensor:
        """Return queries (B, heads, T, d) with their positions applied."""
        return q

    def key(self, k: Tensor, at: Tensor) -> Tensor:
        """Return keys (B, kv_heads, S, d) with their positions applied."""
        return k

    def bias(self, q: Tensor, i: Tensor, j: Tensor) -> Tensor | None:
        """Return what to add to the scaled scores, (B or 1, heads, T, S), or None; q is before `query`."""
        return None

    @property
    def has_bias(self) -> bool:
        """Whether the class defines `bias`."""
        return type(self).bias is not Position.bias


class Rotary(Position):
    """Rotate pairs of features by angles that grow with the position; products depend only on distances.

    Su et al. 2021, arXiv 2104.09864.
    """

    def __init__(self, heads: int, head_size: int, base: float = 10000.0) -> None:
        super().__init__(heads, head_size)
        if head_size % 2:
            raise UserError(f"rotary positions need an even head size, got {head_size}")
        self.base = base

    def query(self, q: Tensor, at: Tensor) -> Tensor:
        exact = torch.float64 if q.dtype == torch.float64 else torch.float32
        i = torch.arange(self.head_size // 2, device=q.device, dtype=exact)
        angle = at.to(exact).unsqueeze(-1) * self.base ** (-2 * i / self.head_size)
        cos, sin = angle.cos().to(q.dtype).unsqueeze(1), angle.sin().to(q.dtype).unsqueeze(1)  # (B, 1, T, d / 2)
        a, b = q.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def key(self, k: Tensor, at: Tensor) -> Tensor:
        return self.query(k, at)


class ALiBi(Position):
    """Subtract a penalty from the scores that grows with the distance, with a different slope per head.

        bias = -m_h |i - j|,   m_h = 2^(-8 h / heads),  h = 1 .. heads

    Press et al. 2022, arXiv 2108.12409.
    """

    def bias(self, q: Tensor, i: Tensor, j: Tensor) -> Tensor:
        h = torch.arange(1, self.heads + 1, device=q.device, dtype=q.dtype).view(-1, 1, 1)
        return -(2 ** (-8 * h / self.heads)) * _distance(i, j).abs().unsqueeze(1)


class Relative(Position):
    """Add a learned bias for each head and distance; distances above `reach` count as `reach`.

    Raffel et al. 2020, arXiv 1910.10683, with one bucket per distance.
    """

    def __init__(self, heads: int, head_size: int, reach: int = 128) -> None:
        super().__init__(heads, head_size)
        self.reach = reach
        self.table = nn.Parameter(torch.zeros(2 * reach + 1, heads))

    def bias(self, q: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.table[_distance(i, j).clamp(-self.reach, self.reach) + self.reach].permute(0, 3, 1, 2)


class RelativeXL(Position):
    """Score sinusoids of the distance by the query, with learned biases u and v.

        s_ij = (q_i + u) k_j + (q_i + v) W PE(i - j),   over sqrt(d)

    Dai et al. 2019, arXiv 1901.02860.
    """

    def __init__(self, heads: int, head_size: int) -> None:
        super().__init__(heads, head_size)
        self.u = nn.Parameter(torch.zeros(heads, 1, head_size))
        self.v = nn.Parameter(torch.zeros(heads, 1, head_size))
        self.W = nn.Linear(heads * head_size, heads * head_size, bias=False)

    def query(self, q: Tensor, at: Tensor) -> Tensor:
        return q + self.u

    def bias(self, q: Tensor, i: Tensor, j: Tensor) -> Tensor:
        T, S = i.shape[1], j.shape[1]
        far = torch.arange(-S, T + S, device=q.device)  # all possible distances i - j
        r = self.W(sinusoid(far, self.heads * self.head_size, q.dtype)).unflatten(-1, (self.heads, -1))
        s = (q + self.v) @ r.permute(1, 2, 0) / math.sqrt(self.head_size)  # (B, heads, T, distances)
        index = (_distance(i, j) + S).clamp(0, far.shape[0] - 1).unsqueeze(1)
        return s.gather(-1, index.expand(q.shape[0], self.heads, T, S))


def _distance(i: Tensor, j: Tensor) -> Tensor:
    """Return i - j, (B, T, S)."""
    return i.unsqueeze(-1) - j.unsqueeze(-2)


INPUT_POSITIONS: dict[str, type[nn.Module]] = {"sinusoidal": Sinusoidal, "learned": Learned}
POSITIONS: dict[str, type[Position]] = {"rotary": Rotary, "alibi": ALiBi, "relative": Relative, "xl": RelativeXL}


def make_position(position: str | Position | None, heads: int, head_size: int) -> Position | None:
    """Return a position by name, or the one passed in.

    Raises:
        UserError: If the name is unknown.
    """
    if not isinstance(position, str):
        return position
    if position not in POSITIONS:
        raise UserError(f"position must be one of {', '.join(POSITIONS)}, got {position!r}")
    return POSITIONS[position](heads, head_size)
