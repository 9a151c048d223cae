"""AttnRNN: attention between the state and the input."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.cells._parts import apply_mask, empty, init_linear
from seqloom.core.cell import Cell, State
from seqloom.core.checks import check_heads
from seqloom.core.errors import UserError

CONTEXT = ("h", "x", "h+x", "h*x")
EPSILON = 1e-6  # keeps the norm of an input of zeros finite


class AttnRNNCell(Cell, name="attn_rnn", year=2025, idea="memory", parent="gru"):
    """Attention over the state and the input, then one gate.

        u  = W_u x                              only where input_size != hidden_size; else u = x
                                                input_norm=True: u = RMSNorm(W_u x), at the scale of the state
        C  = [h, u, h + u, h * u]               the context: rows that serve as keys and values
        a  = softmax((W_q h) C^T / sqrt(d))     for each head of d units
        o  = gelu(W_o (a C))
        n  = LayerNorm(o + h)                   norm=False: n = o
        g  = sigmoid(W_g [h, o])
        h' = g * n + (1 - g) * h

    Every product has a bias. With `slots` = m > 1 the state is m rows h_1 .. h_m. Each has its own query for the
    3m + 1 rows [h_i, u, h_i + u, h_i * u], and the output is their sum. The two published forms are the default and
    context=("h", "x"), norm=False. State: h (B, H), or (B, m, H) with slots.
    Li 2025, AttnRNN: Attention-Enhanced Recurrent Neural Networks with Residual Gating.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        heads: Number of attention heads; divides `hidden_size`.
        context: The rows that serve as keys and values: some of "h", "x", "h+x", "h*x".
        norm: Normalise the candidate n.
        gate_bias: Initial bias of the gate g; negative values make the cell keep its state longer.
        slots: Number of state rows, m.
        initial: Value of the initial state.
        input_norm: Normalise u to a root mean square of 1, times a learned scale (Zhang & Sennrich 2019, arXiv
            1910.07467), so that the cell does not depend on the scale of its input.

    Raises:
        UserError: If an argument is out of range.

    Example:
        >>> cell = seqloom.AttnRNNCell(4, 8, heads=2)
        >>> h = cell(torch.randn(3, 4))  # one step: (B, D) -> (B, H)
        >>> y, state = seqloom.scan(cell, torch.randn(3, 10, 4), (h,))
        >>> y.shape
        torch.Size([3, 10, 8])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        heads: int = 4,
        context: tuple[str, ...] = CONTEXT,
        norm: bool = True,
        gate_bias: float | None = None,
        slots: int = 1,
        initial: float = 1e-3,
        input_norm: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_heads(heads, hidden_size, "hidden_size")
        if not context or set(context) - set(CONTEXT) or len(set(context)) != len(context):
            raise UserError(f"context must contain some of {CONTEXT}, each once, got {context!r}")
        if slots < 1:
            raise UserError(f"slots must be at least 1, got {slots}")
        self.heads, self.context, self.norm = heads, tuple(context), norm
        self.gate_bias, self.slots, self.initial, self.input_norm = gate_bias, slots, initial, input_norm
        if input_size != hidden_size:
            self.weight_u = empty(hidden_size, input_size)
            self.bias_u = empty(hidden_size)
        if input_norm:
            self.scale_u = empty(hidden_size)
        self.weight_q = empty(hidden_size, hidden_size)
        self.bias_q = empty(hidden_size)
        self.weight_o = empty(hidden_size, hidden_size)
        self.bias_o = empty(hidden_size)
        self.weight_g = empty(hidden_size, 2 * hidden_size)
        self.bias_g = empty(hidden_size)
        if norm:
            self.scale_n = empty(hidden_size)
            self.bias_n = empty(hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for letter in "uqog" if self.input_size != self.hidden_size else "qog":
            init_linear(getattr(self, f"weight_{letter}"), getattr(self, f"bias_{letter}"))
        if self.input_norm:
            nn.init.ones_(self.scale_u)
        if self.norm:
            nn.init.ones_(self.scale_n)
            nn.init.zeros_(self.bias_n)
        if self.gate_bias is not None:
            self.remember(torch.full((self.hidden_size,), -self.gate_bias))

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        with torch.no_grad():
            self.bias_g.copy_(-bias)  # g writes, so a low bias keeps the state

    def initial_state(self, x: Tensor) -> State:
        """Return the constant `initial`; with slots, cosines of that size, since equal slots would stay equal."""
        if self.slots == 1:
            return (x.new_full((x.shape[0], self.hidden_size), self.initial),)
        slot = torch.arange(self.slots, device=x.device).unsqueeze(1)
        unit = torch.arange(self.hidden_size, device=x.device) + 0.5
        h = self.initial * torch.cos(math.pi / self.hidden_size * slot * unit)
        return (h.to(x.dtype).expand(x.shape[0], -1, -1),)

    def project(self, x: Tensor) -> Tensor:
        u = x if self.input_size == self.hidden_size else F.linear(x, self.weight_u, self.bias_u)
        if not self.input_norm:
            return u
        wide = u.to(torch.promote_types(u.dtype, torch.float32))  # squares of half precision overflow
        size = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)
        return (wide * size * self.scale_u).to(u.dtype)

    def output(self, state: State) -> Tensor:
        return state[0] if self.slots == 1 else state[0].sum(1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h, u = state[0], x.unsqueeze(1)
        h = h.unsqueeze(1) if self.slots == 1 else h  # (B, m, H)
        seen = apply_mask(h, None if mask is None else mask.unsqueeze(1))
        rows = {"h": lambda: h, "x": lambda: u, "h+x": lambda: h + u, "h*x": lambda: h * u}
        C = torch.cat([rows[part]() for part in self.context], 1).unsqueeze(1)  # (B, 1, rows, H)
        q = linear_per_slot(seen, self.weight_q, self.bias_q).unsqueeze(2)
        s = self.split_heads(q * C).sum(-1) / math.sqrt(self.hidden_size // self.heads)
        a = torch.softmax(s, 2)  # (B, m, rows, heads)
        aC = self.join_heads((a.unsqueeze(-1) * self.split_heads(C)).sum(2))
        o = F.gelu(linear_per_slot(aC, self.weight_o, self.bias_o))
        g = torch.sigmoid(linear_per_slot(torch.cat([seen, o], -1), self.weight_g, self.bias_g))
        values = {"a": a, "o": o, "g": g}
        return values if self.slots > 1 else {name: t.squeeze(1) for name, t in values.items()}

    def split_heads(self, t: Tensor) -> Tensor:
        """(..., H) -> (..., heads, d), without a reshape, which ONNX cannot export inside a loop."""
        return torch.stack(t.split(self.hidden_size // self.heads, -1), -2)

    def join_heads(self, t: Tensor) -> Tensor:
        """(..., heads, d) -> (..., H)."""
        return torch.cat(t.unbind(-2), -1)

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        _, o, g = self.gates(x, state, mask).values()
        n = F.layer_norm(o + h, (self.hidden_size,), self.scale_n, self.bias_n) if self.norm else o
        h = g * n + (1 - g) * h
        return self.output((h,)), (h,)


def linear_per_slot(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply a linear product to each slot: (B, m, H) -> (B, m, ...).

    Slot by slot: for a 3-D product torch folds batch and slots into one dimension, which fixes the batch size when a
    loop is exported to ONNX.
    """
    return torch.stack([F.linear(slot, weight, bias) for slot in h.unbind(1)], 1)
