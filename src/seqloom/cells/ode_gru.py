"""A GRU in continuous time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._parts import apply_mask, empty, set_gate
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError


class ODEGRUCell(Cell, name="ode_gru", year=2019, idea="differential", parent="gru"):
    """A GRU whose state follows a differential equation between inputs.

        dh/dt = (1 - z) * (n - h)               z, n: GRU gates that read h alone
        h-    = h(t + dt)                       in `substeps` steps of growing length
        h'    = GRU(x, h-)

    A substep of length e is the exponential midpoint rule, which solves the equation exactly for constant z and n:

        m  = n(h) + (h - n(h)) * exp(-(1 - z(h)) e / 2)
        h  = n(m) + (h - n(m)) * exp(-(1 - z(m)) e)

    A substep moves h towards n, so h stays in [-1, 1] as in a GRU, however long the gap is. Substeps end at
    (1 + dt)^(i / substeps) - 1: short ones first, where the state moves most. With default initial weights the error is
    about 2e-4 over a gap of 1 and 1e-2 over 10; twice as many substeps reduce it to a quarter.

    dt comes from the layer's `timespans` argument and is 1 without it, so time steps may be irregular. State: h (B, H).
    The flow is that of GRU-ODE (De Brouwer et al. 2019, arXiv 1905.12374), the jump that of
    ODE-RNN (Rubanova et al. 2019, arXiv 1907.03907).

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        substeps: Number of substeps between two inputs.
        update_bias: Initial bias of z, in the step and in the flow; larger values make the cell keep its state longer.

    Raises:
        UserError: If `substeps` is below 1.

    Example:
        >>> layer = seqloom.Recurrent("ode_gru", 4, 8)
        >>> y, state = layer(torch.randn(10, 3, 4), timespans=torch.rand(10, 3))  # (T, B, D), (T, B)
        >>> y.shape
        torch.Size([10, 3, 8])
    """

    def __init__(self, input_size: int, hidden_size: int, substeps: int = 4, update_bias: float | None = None) -> None:
        super().__init__(input_size, hidden_size)
        if substeps < 1:
            raise UserError(f"substeps must be at least 1, got {substeps}")
        self.substeps = substeps
        self.update_bias = update_bias
        self.weight_ih = empty(3 * hidden_size, input_size)
        self.weight_hh = empty(3 * hidden_size, hidden_size)
        self.bias_ih = empty(3 * hidden_size)
        self.bias_hh = empty(3 * hidden_size)
        self.weight_flow = empty(3 * hidden_size, hidden_size)
        self.bias_flow = empty(3 * hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.uniform_()
        if self.update_bias is not None:
            self.remember(torch.full((self.hidden_size,), self.update_bias))

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        set_gate(1, bias, self.bias_ih, self.bias_hh)
        with torch.no_grad():
            self.bias_flow[self.hidden_size : 2 * self.hidden_size] = bias

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_ih, self.bias_ih)

    def pull(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rate 1 - z at which h moves, and n, where it moves to."""
        r, z, n = F.linear(h, self.weight_flow, self.bias_flow).chunk(3, -1)
        return torch.sigmoid(-z), torch.tanh(torch.sigmoid(r) * n)

    def flow(self, h: Tensor) -> Tensor:
        """Return dh/dt."""
        rate, n = self.pull(h)
        return rate * (n - h)

    def drift(self, h: Tensor, dt: Tensor | None) -> Tensor:
        """Return h after the time dt without an input."""
        spread = torch.log1p(h.new_ones(h.shape[0], 1) if dt is None else dt.unsqueeze(-1))
        now = torch.zeros_like(spread)
        for i in range(self.substeps):
            end = torch.expm1(spread * ((i + 1) / self.substeps))
            e, now = end - now, end
            rate, n = self.pull(h)
            m = n + (h - n) * torch.exp(-rate * (e / 2))
            rate, n = self.pull(m)
            h = n + (h - n) * torch.exp(-rate * e)
        return h

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None, dt: Tensor | None = None) -> dict[str, Tensor]:
        h = self.drift(state[0], dt)
        x_r, x_z, x_n = x.chunk(3, -1)
        h_r, h_z, h_n = F.linear(apply_mask(h, mask), self.weight_hh, self.bias_hh).chunk(3, -1)
        r = torch.sigmoid(x_r + h_r)
        z = torch.sigmoid(x_z + h_z)
        n = torch.tanh(x_n + r * h_n)
        return {"h-": h, "r": r, "z": z, "n": n}

    def step(
        self, x: Tensor, state: State, mask: Tensor | None = None, dt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        h, _, z, n = self.gates(x, state, mask, dt).values()
        h = (1 - z) * n + z * h
        return h, (h,)
