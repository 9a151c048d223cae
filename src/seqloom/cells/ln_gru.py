"""The GRU with layer normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.cells._parts import apply_mask, empty
from seqloom.cells.gru import GRUCell
from seqloom.core.cell import State


class LNGRUCell(GRUCell, name="ln_gru", year=2016, idea="gru", parent="gru"):
    """The GRU with layer normalisation of both products, for each gate separately.

        r  = sigmoid(N(W_r x) + N(U_r h))
        z  = sigmoid(N(W_z x) + N(U_z h))
        n  = tanh(N(W_n x) + r * N(U_n h))
        h' = (1 - z) * n + z * h                N: LayerNorm over the H units of one gate

    The products have no bias; N has one. State: h (B, H). Ba et al. 2016, arXiv 1607.06450.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        update_bias: Initial bias of z; larger values make the cell keep its state longer. None initialises it like the
            other biases.

    Example:
        >>> cell = seqloom.LNGRUCell(4, 8, update_bias=1.0)
        >>> cell(torch.randn(3, 4)).shape  # one step: (B, D) -> (B, H)
        torch.Size([3, 8])
    """

    def __init__(self, input_size: int, hidden_size: int, update_bias: float | None = None) -> None:
        super().__init__(input_size, hidden_size, bias=True, update_bias=update_bias)
        self.scale_ih = empty(3 * hidden_size)
        self.scale_hh = empty(3 * hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "scale_hh"):
            nn.init.ones_(self.scale_ih)
            nn.init.ones_(self.scale_hh)

    def project(self, x: Tensor) -> Tensor:
        return normalise(F.linear(x, self.weight_ih), self.scale_ih, self.bias_ih, self.hidden_size)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        x_r, x_z, x_n = x.chunk(3, -1)
        u = F.linear(apply_mask(h, mask), self.weight_hh)
        h_r, h_z, h_n = normalise(u, self.scale_hh, self.bias_hh, self.hidden_size).chunk(3, -1)
        r = torch.sigmoid(x_r + h_r)
        z = torch.sigmoid(x_z + h_z)
        n = torch.tanh(x_n + r * h_n)
        return {"r": r, "z": z, "n": n}


def normalise(a: Tensor, scale: Tensor, shift: Tensor | None, hidden: int) -> Tensor:
    """Normalise each gate's `hidden` units of a product (..., gates * hidden)."""
    parts = [F.layer_norm(part, (hidden,)) for part in a.split(hidden, -1)]
    a = torch.cat(parts, -1) * scale
    return a if shift is None else a + shift
