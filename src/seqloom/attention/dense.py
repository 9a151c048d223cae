"""Multi-head attention of every query to every key, in the same sequence or in a memory."""

from __future__ import annotations

import math
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from seqloom.attention.parts import Aside, Heads, Lengths, State, check_input, mask_steps, real_steps, softmax, weigh
from seqloom.attention.position import Position, make_position
from seqloom.core.errors import InputError, UserTypeError


class Attention(Heads):
    """Multi-head attention, computed by torch's scaled_dot_product_attention.

        Q, K, V = W_q x, W_k m, W_v m          m = x, or a memory
        y = W_o softmax(Q K^T / sqrt(d)) V     in each head of d features

    State of a causal layer: the keys and values so far, (B, kv_heads, S, d) each, and which of them are not padding,
    (B, S). State of a layer that read a memory: those of the memory. Vaswani et al. 2017, arXiv 1706.03762.

    Args:
        dim: Number of features of input and output, D.
        heads: Number of heads; divides `dim`.
        kv_heads: Number of key and value heads; divides `heads`. Fewer than `heads` lets groups of queries share keys
            (Ainslie et al. 2023, arXiv 2305.13245). Default: `heads`.
        causal: Let each step attend only to itself and earlier steps.
        position: "rotary", "alibi", "relative", "xl" or a `Position`.
        dropout: Dropout probability of the attention weights in training.
        bias: Add a bias to the four products.
        memory_size: Number of features of a memory; `dim` by default.

    Raises:
        UserError: If the heads do not divide the features, or the position is unknown.

    Example:
        >>> attention = seqloom.Attention(16, heads=4, causal=True, position="rotary")
        >>> y, state = attention(torch.randn(2, 10, 16))  # (B, T, D)
        >>> y, state = attention.step(torch.randn(2, 16), state)  # the next step
        >>> y.shape
        torch.Size([2, 16])
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
        """Attend within a sequence or to a memory.

        Args:
            x: (B, T, D).
            state: The state that a causal layer returned for the preceding steps, or that of a memory.
            lengths: (B,), the real steps of each row; the output is 0 after them.
            memory: (B, S, memory_size), to attend to instead of x. Pass it once, then pass the returned state.
            memory_lengths: (B,), the real steps of the memory.
            mask: (T, S), (B, T, S) or (B, heads, T, S), where S includes the keys of the state. Either bool, True for
                pairs that may attend, or numbers to add to the scores. The output of a query that may attend to no key
                is 0.

        Returns:
            The output (B, T, D) and the state; None without causal=True or a memory.

        Raises:
            InputError: If shapes, devices or the combination of arguments do not fit.
        """
        x, real = self.read(x, lengths, state if self.causal else None)  # other layers have the state of a memory
        inputs = self._prepare(x, real, state, memory, memory_lengths, mask)
        y = weigh(
            inputs.q,
            inputs.k,
            inputs.v,
            attn_mask=inputs.mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=inputs.triangle,
            enable_gqa=self.kv_heads != self.heads,
        )
        return mask_steps(self.join(y), real), inputs.state

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
        """Return the attention weights (B, heads, T, S) that `forward` uses; takes the same arguments."""
        x, real = self.read(x, lengths, state if self.causal else None)  # other layers have the state of a memory
        q, k, _, mask, triangle, _ = self._prepare(x, real, state, memory, memory_lengths, mask)
        if triangle:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        s = q @ k.repeat_interleave(self.heads // self.kv_heads, 1).mT / math.sqrt(self.head_size)
        if mask is None or mask.dtype == torch.bool:
            a = softmax(s, mask)
        else:
            a = softmax(s + mask.clamp(min=torch.finfo(s.dtype).min / 2), mask != -torch.inf)
        return a if real is None else a * real[:, None, :, None]

    def step(self, x: Tensor, state: State | None = None, **aside: Unpack[Aside]) -> tuple[Tensor, State | None]:
        """Run one step of a causal layer, or one query to a memory: (B, D) -> (B, D), state.

        Args:
            x: (B, D).
            state: The state of the preceding steps, or of the memory.
            aside: Further arguments of `forward`, such as `memory`.

        Raises:
            InputError: If the layer is neither causal nor has a memory.
        """
        if not self.causal and state is None and aside.get("memory") is None:
            raise InputError("step: an Attention with causal=False needs the whole sequence or a memory")
        y, state = self(x.unsqueeze(1), state, **aside)
        return y.squeeze(1), state

    def _prepare(
        self,
        x: Tensor,
        real: Tensor | None,
        state: State | None,
        memory: Tensor | None,
        memory_lengths: Lengths,
        mask: Tensor | None,
    ) -> _AttentionInputs:
        if memory is not None and self.causal:
            raise InputError("an Attention with causal=True takes no memory; construct one with causal=False")
        if memory_lengths is not None and memory is None:
            raise InputError("memory_lengths need a memory; pass memory= too")
        q = self.split(self.q(x))
        if self.causal:
            return self._prepare_causal(x, q, real, state, mask)
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
            k, v, known = state[0].to(q.dtype), state[1].to(q.dtype), state[2]  # autocast may have ended meanwhile
        j = torch.arange(k.shape[2], device=x.device).unsqueeze(0)
        allowed = None if known is None else known[:, None, None]
        q, mask = self._apply_positions(q, at, j, allowed, mask)
        return _AttentionInputs(q, k, v, mask, state=state)

    def _prepare_causal(
        self, x: Tensor, q: Tensor, real: Tensor | None, state: State | None, mask: Tensor | None
    ) -> _AttentionInputs:
        """Prepare a causal layer, in which each step attends to itself and earlier ones."""
        i = j = _range(x)
        new = _all(x) if real is None else real
        if state is None:
            k, v = self._keys(x, j)
            known, triangle = new, mask is None and (self.position is None or not self.position.has_bias)
            allowed = None  # padding comes after every real step
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
        q, mask = self._apply_positions(q, i, j, allowed, mask)
        return _AttentionInputs(q, k, v, mask, triangle, (k, v, known))

    def _keys(self, m: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.split(self.k(m)), self.split(self.v(m))
        return (k if self.position is None else self.position.key(k, at)), v

    def _apply_positions(
        self, q: Tensor, i: Tensor, j: Tensor, allowed: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Apply positions to queries and combine biases and masks into one mask."""
        bias = None
        if self.position is not None:
            bias = self.position.bias(q, i, j)
            q = self.position.query(q, i)
        if mask is not None:
            mask = mask.unsqueeze(1) if mask.dim() == 3 else mask
            if not mask.is_floating_point() and mask.dtype != torch.bool:
                raise UserTypeError(
                    f"mask must be bool (True: may attend) or floating point (added to scores), got {mask.dtype}"
                )
            if mask.dtype == torch.bool:
                allowed = mask if allowed is None else allowed & mask
            else:
                bias = mask if bias is None else bias + mask
        if bias is not None:
            bias = bias.to(q.dtype)
            allowed = bias if allowed is None else torch.where(allowed, bias, -torch.inf)
        return q, allowed


class _AttentionInputs(NamedTuple):
    """Arguments of torch's function, and the new state."""

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
