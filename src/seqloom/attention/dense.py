"""Every query looks at every key: multi-head attention to oneself or to a memory."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.attention.parts import Heads, Lengths, State, check_input, mask_steps, real_steps, softmax, weigh
from seqloom.attention.position import Position, make_position
from seqloom.core.errors import InputError, UserTypeError


class Attention(Heads):
    """Multi-head attention, over torch's scaled_dot_product_attention.

        Q, K, V = W_q x, W_k m, W_v m          m = x, or a memory
        y = W_o softmax(Q K^T / sqrt(d)) V     in each head of d features

    `kv_heads` below `heads` lets groups of queries share keys (Ainslie et al. 2023, arXiv 2305.13245).
    `position` is "rotary", "alibi", "relative", "xl" or a Position. The state of a causal one are
    the keys and values so far and which are real; of one with a memory, those of the memory.
    Vaswani et al. 2017, arXiv 1706.03762.
    """

    state_size = 3

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        *,
        kv_heads: int | None = None,
        causal: bool = False,
        position: str | Position | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        memory_size: int | None = None,
    ) -> None:
        super().__init__(dim, heads, causal, bias, kv_heads, memory_size)
        self.position = make_position(position, heads, self.head_size)
        self.dropout = dropout

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        lengths: Lengths = None,
        *,
        memory: Tensor | None = None,
        memory_lengths: Lengths = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, State | None]:
        """(B, T, D) -> (B, T, D), state.

        `mask`, True where a query may look or numbers to add to the scores, fits (T, S), (B, T, S)
        or (B, heads, T, S); S counts the keys of the state too. A query that may look nowhere gets
        zeros, and so does a step past its row's length. A memory is read once: the state that
        comes back stands for it in later calls.
        """
        x, real = self.read(x, lengths, state if self.causal else None)  # else a memory's
        look = self._look(x, real, state, memory, memory_lengths, mask)
        y = weigh(
            look.q,
            look.k,
            look.v,
            attn_mask=look.mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=look.triangle,
            enable_gqa=self.kv_heads != self.heads,
        )
        return mask_steps(self.join(y), real), look.state

    def weights(
        self,
        x: Tensor,
        state: State | None = None,
        lengths: Lengths = None,
        *,
        memory: Tensor | None = None,
        memory_lengths: Lengths = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """What `forward` weighs the values with: (B, heads, T, S)."""
        x, real = self.read(x, lengths, state if self.causal else None)  # else a memory's
        q, k, _, mask, triangle, _ = self._look(x, real, state, memory, memory_lengths, mask)
        if triangle:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        s = q @ k.repeat_interleave(self.heads // self.kv_heads, 1).mT / math.sqrt(self.head_size)
        if mask is None or mask.dtype == torch.bool:
            a = softmax(s, mask)
        else:
            a = softmax(s + mask.clamp(min=torch.finfo(s.dtype).min / 2), mask != -torch.inf)
        return a if real is None else a * real[:, None, :, None]

    def step(self, x: Tensor, state: State | None = None, **aside: Any) -> tuple[Tensor, State | None]:
        """One query, (B, D) -> (B, D), state: the next step of a causal one, or any of a memory."""
        if not self.causal and state is None and aside.get("memory") is None:
            raise InputError("step: an Attention with causal=False needs the whole sequence, or a memory")
        y, state = self(x.unsqueeze(1), state, **aside)
        return y.squeeze(1), state

    def _look(
        self,
        x: Tensor,
        real: Tensor | None,
        state: State | None,
        memory: Tensor | None,
        memory_lengths: Lengths,
        mask: Tensor | None,
    ) -> _Look:
        if memory is not None and self.causal:
            raise InputError("a memory was given to an Attention with causal=True; make one with causal=False")
        if memory_lengths is not None and memory is None:
            raise InputError("memory_lengths were given without a memory")
        q = self.split(self.q(x))
        if self.causal:
            return self._back(x, q, real, state, mask)
        at = _range(x)
        if memory is not None:
            check_input(memory, self.memory_size, self.k, "memory")
            known = real_steps(memory_lengths, memory, "memory_lengths")
            k, v = self._keys(mask_steps(memory, known), _range(memory))
            state = (k, v, _all(memory) if known is None else known)
        elif state is None:
            known = real
            k, v = self._keys(x, at)
        else:
            k, v, known = state[0].to(q.dtype), state[1].to(q.dtype), state[2]  # autocast may have been left
        j = torch.arange(k.shape[2], device=x.device).unsqueeze(0)
        allowed = None if known is None else known[:, None, None]
        return self._placed(q, k, v, at, j, allowed, mask)._replace(state=state)

    def _back(self, x: Tensor, q: Tensor, real: Tensor | None, state: State | None, mask: Tensor | None) -> _Look:
        """A causal one: from each step at those before it."""
        i = j = _range(x)
        new = _all(x) if real is None else real
        if state is None:
            k, v = self._keys(x, j)
            known, triangle = new, mask is None and (self.position is None or not self.position.has_bias)
            allowed = None  # padding stands at the end, where no real step looks
        else:
            i = j = state[2].sum(1, keepdim=True) + i
            k, v = self._keys(x, j)
            k, v = torch.cat([state[0], k], 2), torch.cat([state[1], v], 2)
            known, triangle = torch.cat([state[2], new], 1), False
            j = torch.cat([state[2].cumsum(1) - 1, j], 1)
            allowed = known[:, None, None]
        if not triangle:
            T, S = x.shape[1], k.shape[2]
            before = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
            allowed = before if allowed is None else allowed & before
        return self._placed(q, k, v, i, j, allowed, mask)._replace(triangle=triangle, state=(k, v, known))

    def _keys(self, m: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.split(self.k(m)), self.split(self.v(m))
        return (k if self.position is None else self.position.key(k, at)), v

    def _placed(
        self, q: Tensor, k: Tensor, v: Tensor, i: Tensor, j: Tensor, allowed: Tensor | None, mask: Tensor | None
    ) -> _Look:
        """Positions and masks brought together into what torch takes."""
        bias = None
        if self.position is not None:
            bias = self.position.bias(q, i, j)
            q = self.position.query(q, i)
        if mask is not None:
            mask = mask.unsqueeze(1) if mask.dim() == 3 else mask
            if not mask.is_floating_point() and mask.dtype != torch.bool:
                raise UserTypeError(f"mask must be True where a query may look, or numbers to add, got {mask.dtype}")
            if mask.dtype == torch.bool:
                allowed = mask if allowed is None else allowed & mask
            else:
                bias = mask if bias is None else bias + mask
        if bias is not None:
            bias = bias.to(q.dtype)
            allowed = bias if allowed is None else torch.where(allowed, bias, -torch.inf)
        return _Look(q, k, v, allowed)


class _Look(NamedTuple):
    """Arguments for torch's function, and the state that follows."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None = None
    triangle: bool = False
    state: State | None = None


def _range(x: Tensor) -> Tensor:
    return torch.arange(x.shape[1], device=x.device).unsqueeze(0)


def _all(x: Tensor) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
