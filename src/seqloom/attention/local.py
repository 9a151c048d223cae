"""Attention to a window, to global steps and to random blocks, in time and memory O(T window)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.attention.dense import Attention
from seqloom.attention.parts import Heads, Lengths, State, mask_steps, pad_end, split_parts, take_first, weigh
from seqloom.attention.pattern import Pattern
from seqloom.attention.position import Position, RelativeXL, make_position
from seqloom.core.errors import UserError


class LocalAttention(Heads):
    """Sparse attention: `Attention` masked by a `Pattern`, computed in blocks without a T x T matrix.

    The parameters have the same names as those of `Attention`. State of a causal layer: keys and values of the last
    `window` steps and of the global steps, and the number of steps so far; its size is constant.

    Args:
        dim: Number of features of input and output, D.
        heads: Number of heads; divides `dim`.
        pattern: Which steps attend to which; an int is a window: the number of steps to each side.
        kv_heads: Number of key and value heads; divides `heads`. Default: `heads`.
        causal: Let each step attend only to itself and earlier steps.
        position: "rotary", "alibi", "relative", "xl" or a `Position`.
        dropout: Dropout probability of the attention weights in training.
        bias: Add a bias to the four products.

    Raises:
        UserError: If the pattern has no causal form, or cannot be combined with the position.

    Example:
        >>> pattern = seqloom.Pattern(window=8, global_steps=[0])
        >>> attention = seqloom.LocalAttention(16, heads=4, pattern=pattern)
        >>> y, _ = attention(torch.randn(2, 1000, 16))  # (B, T, D)
        >>> y.shape
        torch.Size([2, 1000, 16])
    """

    state_size = 5

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        *,
        pattern: Pattern | int = 128,
        kv_heads: int | None = None,
        causal: bool = False,
        position: str | Position | None = None,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__(dim, heads, causal, bias, kv_heads)
        self.pattern = Pattern(pattern) if isinstance(pattern, int) else pattern
        if causal:
            self.pattern.check_causal()
        self.position = make_position(position, heads, self.head_size)
        if isinstance(self.position, RelativeXL) and (self.pattern.global_steps or self.pattern.random_blocks):
            raise UserError(
                "position 'xl' works with a window only, without global or random steps; use 'rotary' or 'relative'"
            )
        self.dropout = dropout

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
        B, T = x.shape[:2]
        at = torch.arange(T, device=x.device).unsqueeze(0)
        seen = None if state is None else state[4]
        at = at if seen is None else at + seen.unsqueeze(1)
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        k = k if self.position is None else self.position.key(k, at)
        if not self.causal:
            y = self._attend_blocks(_Rows(q, k, v, at, real), *self._columns(k, v))
            return mask_steps(self.join(self._global_rows(y, q, k, v, at, real)), real), None
        count = x.new_full((B,), T, dtype=torch.long) if real is None else real.sum(1)
        rows = _Rows(q, k, v, at, real) if state is None else self._prepend(state, q, k, v, at, real)
        g = self._global_keys(state, k, v, at, count)
        y = self._attend_blocks(rows, *g)[:, :, -T:]
        return mask_steps(self.join(y), real), (
            *self._last_keys(rows, count, T),
            *g,
            count if seen is None else seen + count,
        )

    def weights(self, x: Tensor, lengths: Lengths = None) -> Tensor:
        """Return the attention weights (B, heads, T, T), for inspection: memory grows with T^2."""
        with torch.device("meta"):  # these weights are replaced and must not advance the random state
            dense = Attention(self.input_size, self.heads, kv_heads=self.kv_heads)
        dense.q, dense.k, dense.v, dense.position = self.q, self.k, self.v, self.position
        return dense.weights(x, lengths=lengths, mask=self.pattern.mask(x.shape[1], self.causal).to(x.device))

    def _attend_blocks(self, rows: _Rows, k_g: Tensor, v_g: Tensor) -> Tensor:
        """Attend from each block of queries to its blocks of keys and to global steps: (B, heads, T, d)."""
        T, S, b = rows.q.shape[2], rows.k.shape[2], self.pattern.block
        n = (T + b - 1) // b
        # An export does not know whether n is 1. A single block of queries attends to all keys.
        n, several = (n + 1, True) if torch.compiler.is_exporting() else (n, n > 1)
        numbers = self._key_blocks(n, several, rows.q.device)
        q = _split_blocks(rows.q, n, b if several else T)  # (B, n, b, heads, d)
        k, v = (_split_blocks(t, n, b if several else S) for t in (rows.k, rows.v))
        index = numbers.clamp(0, n - 1).flatten()
        k, v = (split_parts(t.index_select(1, index), numbers.shape[1], 1).flatten(0, 1).flatten(1, 2) for t in (k, v))
        if self.pattern.global_steps:
            k, v = (
                torch.cat([k, _repeat_blocks(k_g, n)], 1),
                torch.cat([v, _repeat_blocks(v_g, n)], 1),
            )  # (B n, columns, heads, d)
        i, j, allowed = self._pairs(rows, numbers, several)
        q, k, v = q.flatten(0, 1).transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        y = self._attend(q, k, v, i.flatten(0, 1), j.flatten(0, 1), allowed.flatten(0, 1).unsqueeze(1))
        y = y.transpose(1, 2).reshape(rows.q.shape[0], n * q.shape[2], self.heads, self.head_size)
        return take_first(y, T, 1).transpose(1, 2)

    def _key_blocks(self, n: int, several: bool, device: torch.device) -> Tensor:
        """Return the indices of the key blocks of each query block, (n, blocks).

        Computed on the device unless blocks are random, so that a CUDA graph can record it.
        """
        if not several:
            return torch.zeros(1, 1, dtype=torch.long, device=device)
        if self.pattern.random_blocks:
            return torch.tensor(self.pattern.blocks(n, self.causal), device=device)
        reach = -(-self.pattern.window // self.pattern.block)
        near = torch.arange(-reach, 1 + reach * (not self.causal), device=device)
        return torch.arange(n, device=device).unsqueeze(1) + near

    def _pairs(self, rows: _Rows, numbers: Tensor, several: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the positions of queries (B, n, b) and keys (B, n, columns), and which pairs may attend."""
        p, B, T, S = self.pattern, rows.q.shape[0], rows.q.shape[2], rows.k.shape[2]
        if several:
            step = torch.arange(p.block, device=numbers.device)
            i = (
                torch.arange(numbers.shape[0], device=numbers.device).unsqueeze(1) * p.block + step
            )  # relative to the first row
            j = (numbers.unsqueeze(-1) * p.block + step).flatten(1)
        else:
            j = torch.arange(S, device=numbers.device).unsqueeze(0)
            i = j[:, S - T :]
        far = i[0].unsqueeze(1) - j[0]  # (b, columns); blocks differ in their random keys only
        local = (far >= 0) & (far <= p.window) if self.causal else far.abs() <= p.window
        if p.random_blocks and several:
            local[:, -p.random_blocks * p.block :] = True
        usable = (j >= 0) & (j < S)
        if rows.real is not None:
            usable = usable & rows.real[:, j.clamp(0, S - 1)]  # (B, n, columns)
        start = rows.at[:, :1].unsqueeze(-1)
        allowed, i, j = usable.unsqueeze(-2) & local, start + i, start + j  # from the start of the sequence
        if p.global_steps:  # in separate columns
            g = torch.tensor(p.global_steps, device=numbers.device)
            sees_g = g <= i.unsqueeze(-1) if self.causal else self._real_globals(rows, g)
            allowed = allowed & ~torch.isin(j, g).unsqueeze(-2)
            allowed = torch.cat([allowed.expand(B, -1, -1, -1), sees_g.expand(B, *i.shape[1:], -1)], -1)
            j = torch.cat([j, g.expand(*j.shape[:2], -1)], -1)
        return i.expand(B, -1, -1), j.expand(B, -1, -1), allowed.expand(B, *allowed.shape[-3:])

    def _real_globals(self, rows: _Rows, g: Tensor) -> Tensor:
        T = rows.q.shape[2]
        real = (g < T).unsqueeze(0) if rows.real is None else rows.real[:, g.clamp(max=T - 1)] & (g < T)
        return real[:, None, None]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, i: Tensor, j: Tensor, allowed: Tensor) -> Tensor:
        if self.position is not None:
            bias = self.position.bias(q, i, j)
            q = self.position.query(q, i)
            allowed = allowed if bias is None else torch.where(allowed, bias.to(q.dtype), -torch.inf)
        drop = self.dropout if self.training else 0.0
        return weigh(q, k, v, attn_mask=allowed, dropout_p=drop, enable_gqa=self.kv_heads != self.heads)

    def _columns(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        g = torch.tensor(self.pattern.global_steps, device=k.device, dtype=torch.long).clamp(max=k.shape[2] - 1)
        return k.index_select(2, g), v.index_select(2, g)

    def _global_rows(self, y: Tensor, q: Tensor, k: Tensor, v: Tensor, at: Tensor, real: Tensor | None) -> Tensor:
        """Replace the outputs of global steps, which attend to all steps."""
        T = q.shape[2]
        g = torch.tensor([s for s in self.pattern.global_steps if s < T], device=q.device, dtype=torch.long)
        if not len(g):
            return y
        allowed = torch.ones_like(at, dtype=torch.bool) if real is None else real
        full = self._attend(q.index_select(2, g), k, v, g.unsqueeze(0), at, allowed[:, None, None])
        return y.index_copy(2, g, full)

    def _prepend(self, state: State, q: Tensor, k: Tensor, v: Tensor, at: Tensor, real: Tensor | None) -> _Rows:
        """Put the keys and values of the state in front, with dummy queries if there are several blocks."""
        w = self.pattern.window
        k, v = torch.cat([state[0], k], 2), torch.cat([state[1], v], 2)
        at = torch.cat([at[:, :1] + torch.arange(-w, 0, device=at.device), at], 1)
        real = at >= 0 if real is None else (at >= 0) & F.pad(real, (w, 0), value=True)
        several = torch.compiler.is_exporting() or q.shape[2] > self.pattern.block
        return _Rows(F.pad(q, (0, 0, w, 0)) if several else q, k, v, at, real)

    def _global_keys(self, state: State | None, k: Tensor, v: Tensor, at: Tensor, count: Tensor) -> State:
        """Return keys and values of the global steps so far, (B, heads, G, d) each."""
        g = torch.tensor(self.pattern.global_steps, device=k.device, dtype=torch.long)
        t = (g - at[:, :1]).expand(k.shape[0], -1)  # index among the new steps
        new = ((t >= 0) & (t < count.unsqueeze(1)))[:, None, :, None]
        index = t.clamp(0, k.shape[2] - 1)[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[3])
        old = (torch.zeros_like(index, dtype=k.dtype),) * 2 if state is None else state[2:4]
        return tuple(torch.where(new, t.gather(2, index), o) for t, o in zip((k, v), old, strict=True))

    def _last_keys(self, rows: _Rows, count: Tensor, T: int) -> State:
        """Return keys and values of each row's last `window` real steps, padded with zeros in front."""
        w = self.pattern.window
        front = rows.k.shape[2] - T
        k, v = (t if front else F.pad(t, (0, 0, w, 0)) for t in (rows.k, rows.v))
        index = (count.unsqueeze(1) + torch.arange(w, device=count.device))[:, None, :, None]
        return tuple(t.gather(2, index.expand(-1, t.shape[1], -1, t.shape[3])) for t in (k, v))


class _Rows(NamedTuple):
    """Queries, keys and values (B, heads, T, d), their positions (B or 1, T) and which are real."""

    q: Tensor
    k: Tensor
    v: Tensor
    at: Tensor
    real: Tensor | None


def _split_blocks(t: Tensor, n: int, b: int) -> Tensor:
    """(B, heads, T, d) -> (B, n, b, heads, d), padded with zeros."""
    t = t.transpose(1, 2)
    return split_parts(pad_end(t, n * b - t.shape[1], -3), b, 1)


def _repeat_blocks(g: Tensor, n: int) -> Tensor:
    """(B, heads, G, d) -> (B n, G, heads, d)."""
    return g.transpose(1, 2).unsqueeze(1).expand(-1, n, -1, -1, -1).flatten(0, 1)
