"""Forms of AttnRNN that studies compare with the published one, by name."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.cells.attn_rnn import AttnRNNCell
from seqloom.cells.lookup import find_cell
from seqloom.core.cell import Cell, State


class ReadingQuery(AttnRNNCell):
    """AttnRNN whose query also reads the input: q = W_q h + W_x x, with one slot."""

    def __init__(self, input_size: int, hidden_size: int, **settings: Any) -> None:  # of AttnRNNCell
        super().__init__(input_size, hidden_size, **settings)
        self.weight_x = nn.Parameter(torch.empty(hidden_size, input_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "weight_x"):
            nn.init.kaiming_uniform_(self.weight_x, a=math.sqrt(5))  # as torch.nn.Linear

    def project(self, x: Tensor) -> Tensor:
        return torch.cat([super().project(x), F.linear(x, self.weight_x)], -1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        u, r = x.chunk(2, -1)
        (h,) = state
        seen = h if mask is None else h * mask
        rows = {"h": h, "x": u, "h+x": h + u, "h*x": h * u}
        C = torch.stack([rows[part] for part in self.context], 1)  # (B, rows, H)
        q = F.linear(seen, self.weight_q, self.bias_q) + r
        s = self.split_heads(q.unsqueeze(1) * C).sum(-1) / math.sqrt(self.hidden_size // self.heads)
        a = torch.softmax(s, 1)  # (B, rows, heads)
        aC = self.join_heads((a.unsqueeze(-1) * self.split_heads(C)).sum(1))
        o = F.gelu(F.linear(aC, self.weight_o, self.bias_o))
        g = torch.sigmoid(F.linear(torch.cat([seen, o], -1), self.weight_g, self.bias_g))
        return {"a": a, "o": o, "g": g}


class ScaledResidual(AttnRNNCell):
    """AttnRNN whose residual has a learned scale: n = LayerNorm(o + s * h)."""

    def __init__(self, input_size: int, hidden_size: int, **settings: Any) -> None:  # of AttnRNNCell
        super().__init__(input_size, hidden_size, **settings)
        self.scale_h = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "scale_h"):
            nn.init.ones_(self.scale_h)

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        _, o, g = self.gates(x, state, mask).values()
        n = F.layer_norm(o + self.scale_h * h, (self.hidden_size,), self.scale_n, self.bias_n)
        h = g * n + (1 - g) * h
        return self.output((h,)), (h,)


@dataclass(frozen=True)
class Variant:
    """A cell and its settings."""

    cell: str | type[Cell]
    settings: dict[str, Any] = field(default_factory=dict)


THREE_ROWS = ("x", "h+x", "h*x")
VARIANTS = {
    "attn_rnn_norm": Variant("attn_rnn", {"input_norm": True}),
    "attn_rnn_16": Variant("attn_rnn", {"heads": 16, "context": THREE_ROWS}),
    "attn_rnn_norm_16": Variant("attn_rnn", {"input_norm": True, "heads": 16, "context": THREE_ROWS}),
    "attn_rnn_query": Variant(ReadingQuery),
    "attn_rnn_scale": Variant(ScaledResidual),
}


def find_variant(model: str | type[Cell]) -> Variant:
    """Return the variant of this name, or the cell of this name as it is."""
    known = VARIANTS.get(model) if isinstance(model, str) else None
    return known or Variant(model)


def find_kind(model: str) -> type[Cell]:
    """Return the class of the cell of a variant or a cell."""
    return find_cell(find_variant(model).cell)
