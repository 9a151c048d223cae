"""The closed-form continuous-time network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import State


class CfCCell(GatedCell, name="cfc", year=2022, idea="differential", parent="ltc"):
    """A closed form of a liquid network: a gate that depends on the time that has passed.

        b  = 1.7159 tanh(0.666 (W x + U h))        the backbone, with the numbers of the authors' code
        p  = tanh(W_p b)
        q  = tanh(W_q b)
        s  = sigmoid((W_a b) * dt + W_b b)
        h' = (1 - s) * p + s * q

    dt comes from the layer's `timespans` argument and is 1 without it. State: h (B, H). Hasani et al. 2022, Closed-form
    continuous-time neural networks, doi 10.1038/s42256-022-00556-7.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to every product.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.weight_b = empty(4 * hidden_size, hidden_size)
        self.bias_b = empty(4 * hidden_size) if bias else None
        self.reset_parameters()

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None, dt: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        b = 1.7159 * torch.tanh(0.666 * (x + self.product(apply_mask(h, mask))))
        p, q, t_a, t_b = F.linear(b, self.weight_b, self.bias_b).chunk(4, -1)
        s = torch.sigmoid((t_a if dt is None else t_a * dt.unsqueeze(-1)) + t_b)
        return {"b": b, "p": torch.tanh(p), "q": torch.tanh(q), "s": s}

    def step(
        self, x: Tensor, state: State, mask: Tensor | None = None, dt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        _, p, q, s = self.gates(x, state, mask, dt).values()
        h = (1 - s) * p + s * q
        return h, (h,)
