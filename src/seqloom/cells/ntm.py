"""The Neural Turing Machine."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.cells._parts import apply_mask, empty, init_linear
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError

SHIFTS = 3  # a head moves one row back, stays, or moves one row forward
WEIGHT_PARTS = (3, 4)  # indices of the state tensors that are weights over rows
MIN_WEIGHT = 1e-4  # keeps the logarithm of a learned initial weight finite


class NTMCell(Cell, name="ntm", year=2014, idea="memory", parent="lstm"):
    """An LSTM controller with a memory M of N rows that it reads and writes by attention.

        r   = w_r M                                         what was read last
        h   = LSTM([x, r], h, c)
        k, beta, gate, s, gamma = W_head h                  for each of the two heads
        v   = softmax(beta cos(k, M))                       content: rows like k
        v   = gate v + (1 - gate) w                         or where the head was
        v   = v (*) s                                       moved by s, a circular convolution
        w'  = v^gamma / sum(v^gamma)                        sharpened
        M'  = M * (1 - w_w e^T) + w_w a^T                   erase e, add a
        y   = W_y [h, w_r' M']

    State: controller h and c, (B, H) each; memory M (B, N, W); weights w_r and w_w, (B, N) each.
    Graves et al. 2014, arXiv 1410.5401.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        rows: Number of memory rows, N; at least 3.
        width: Size of a memory row, W.

    Raises:
        UserError: If the memory is too small.

    Example:
        >>> y, (h, c, M, w_r, w_w) = seqloom.scan(seqloom.NTMCell(4, 8, rows=16), torch.randn(3, 10, 4))
        >>> M.shape
        torch.Size([3, 16, 16])
    """

    def __init__(self, input_size: int, hidden_size: int, rows: int = 32, width: int = 16) -> None:
        super().__init__(input_size, hidden_size)
        if rows < SHIFTS or width < 1:
            raise UserError(f"rows must be at least {SHIFTS} and width at least 1, got rows={rows}, width={width}")
        self.rows, self.width = rows, width
        self.head = (width, 1, 1, SHIFTS, 1)  # k, beta, gate, s, gamma
        self.weight_ih = empty(4 * hidden_size, input_size)
        self.bias_ih = empty(4 * hidden_size)
        self.weight_hh = empty(4 * hidden_size, hidden_size)
        self.weight_rh = empty(4 * hidden_size, width)
        self.weight_head = empty(2 * sum(self.head) + 2 * width, hidden_size)
        self.bias_head = empty(2 * sum(self.head) + 2 * width)
        self.weight_y = empty(hidden_size, hidden_size + width)
        self.bias_y = empty(hidden_size)
        self.bias_memory = empty(rows, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight, bias in (
            (self.weight_ih, self.bias_ih),
            (self.weight_hh, None),
            (self.weight_rh, None),
            (self.weight_head, self.bias_head),
            (self.weight_y, self.bias_y),
        ):
            init_linear(weight, bias)
        nn.init.uniform_(self.bias_memory, -0.1, 0.1)

    def initial_state(self, x: Tensor) -> State:
        B, H, N = x.shape[0], self.hidden_size, self.rows
        h, w = x.new_zeros(B, H), x.new_zeros(B, N)
        w = w + F.one_hot(torch.zeros((), dtype=torch.long, device=x.device), N).to(x.dtype)
        return h, torch.zeros_like(h), self.bias_memory.to(x.dtype).expand(B, -1, -1), w, w

    def state_of(self, index: int, parameter: Tensor) -> Tensor:
        """Learn weights over rows as logits, so that training cannot make one negative."""
        return torch.softmax(parameter, -1) if index in WEIGHT_PARTS else parameter

    def parameter_of(self, index: int, state: Tensor) -> Tensor:
        return torch.log(state + MIN_WEIGHT) if index in WEIGHT_PARTS else state

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_ih, self.bias_ih)

    def read(self, w: Tensor, M: Tensor) -> Tensor:
        return (w.unsqueeze(-1) * M).sum(1)

    def address(self, p: Tensor, M: Tensor, w: Tensor) -> Tensor:
        """Return the new weights (B, N) of a head with parameters p and old weights w."""
        k, beta, gate, s, gamma = p.split(self.head, -1)
        k = torch.tanh(k).unsqueeze(1)
        cos = (k * M).sum(-1) * torch.rsqrt((k * k).sum(-1) * (M * M).sum(-1) + 1e-12)
        v = torch.softmax(F.softplus(beta) * cos, -1)
        gate = torch.sigmoid(gate)
        v = gate * v + (1 - gate) * w
        back, stay, on = torch.softmax(s, -1).split(1, -1)
        v = back * _roll(v, -1) + stay * v + on * _roll(v, 1)
        v = torch.exp((1 + F.softplus(gamma)) * torch.log(v + 1e-8))
        return v / v.sum(-1, keepdim=True)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h, c, M, w_r, w_w = state
        r = self.read(w_r, M)
        lstm = x + F.linear(apply_mask(h, mask), self.weight_hh) + F.linear(r, self.weight_rh)
        i, f, g, o = lstm.chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        head = sum(self.head)
        p_r, p_w, e, a = F.linear(h, self.weight_head, self.bias_head).split((head, head, self.width, self.width), -1)
        w_w = self.address(p_w, M, w_w)
        w_r = self.address(p_r, M, w_r)
        return {"h": h, "c": c, "w_r": w_r, "w_w": w_w, "e": torch.sigmoid(e), "a": torch.tanh(a)}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        M = state[2]
        h, c, w_r, w_w, e, a = self.gates(x, state, mask).values()
        w = w_w.unsqueeze(-1)
        M = M * (1 - w * e.unsqueeze(1)) + w * a.unsqueeze(1)
        after = (h, c, M, w_r, w_w)
        return self.output(after), after

    def output(self, state: State) -> Tensor:
        h, _, M, w_r, _ = state
        return F.linear(torch.cat([h, self.read(w_r, M)], -1), self.weight_y, self.bias_y)


def _roll(v: Tensor, by: int) -> Tensor:
    """Rotate v by one row; with split, because ONNX cannot export torch.roll here."""
    N = v.shape[-1]
    front, end = v.split((N - 1, 1) if by > 0 else (1, N - 1), -1)
    return torch.cat([end, front], -1)
