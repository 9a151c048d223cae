"""FastGRNN: one pair of matrices for gate and candidate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import State
from seqloom.core.errors import UserError


class FastGRNNCell(GatedCell, name="fast_grnn", year=2019, idea="one gate", parent="fast_rnn"):
    """A gate and a candidate from the same matrices, with different biases.

        z  = sigmoid(W x + U h + b_z)
        n  = tanh(W x + U h + b_n)
        h' = (sigmoid(zeta) * (1 - z) + sigmoid(nu)) * n + z * h

    State: h (B, H). Kusupati et al. 2019, FastGRNN: a fast, accurate, stable and tiny kilobyte sized gated recurrent
    neural network, arXiv 1901.02358.

    torchrecurrent 0.2.5 has tanh for the gate z unless nonlinearity="sigmoid" is passed; the paper has sigmoid.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add the biases b_z and b_n.
        zeta: Initial value of zeta, which is learned.
        nu: Initial value of nu, which is learned.
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, zeta: float = 1.0, nu: float = -4.0
    ) -> None:
        super().__init__(input_size, hidden_size, bias=False)
        self.zeta, self.nu = zeta, nu
        self.bias_ih = empty(2 * hidden_size) if bias else None
        self.scale_z = empty(1)
        self.scale_n = empty(1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "scale_n"):
            nn.init.constant_(self.scale_z, self.zeta)
            nn.init.constant_(self.scale_n, self.nu)

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        if self.bias_ih is None:
            raise UserError("cannot set a gate bias: the cell was constructed with bias=False")
        with torch.no_grad():
            self.bias_ih[: self.hidden_size] = bias

    def project(self, x: Tensor) -> Tensor:
        a = F.linear(x, self.weight_ih)
        a = torch.cat([a, a], -1)
        return a if self.bias_ih is None else a + self.bias_ih

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        x_z, x_n = x.chunk(2, -1)
        Uh = self.product(apply_mask(h, mask))
        z = torch.sigmoid(x_z + Uh)
        n = torch.tanh(x_n + Uh)
        return {"z": z, "n": n}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        z, n = self.gates(x, state, mask).values()
        h = (torch.sigmoid(self.scale_z) * (1 - z) + torch.sigmoid(self.scale_n)) * n + z * h
        return h, (h,)
