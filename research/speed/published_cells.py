"""Cells from the literature, written as a user would write them, for benchmarks and tests of the compiler."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom import Cell

State = tuple[Tensor, ...]


class Leaky(Cell):
    """h' = h + a (tanh(W_x x + W_h h + b) - h), the cell of docs/tutorials/own-cell.md."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.w_x = nn.Linear(input_size, hidden_size)
        self.w_h = nn.Linear(hidden_size, hidden_size, bias=False)
        self.a = nn.Parameter(torch.full((hidden_size,), 0.1))

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        (h,) = state
        h = h + self.a * (torch.tanh(self.w_x(x) + self.w_h(h)) - h)
        return h, (h,)


class MGU(Cell):
    """Minimal gated unit (Zhou et al. 2016): f = sigmoid(W_f x + U_f h), h' = h + f (tanh(W_n x + U_n (f h)) - h)."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.w = nn.Linear(input_size, 2 * hidden_size)
        self.u_f = nn.Linear(hidden_size, hidden_size, bias=False)
        self.u_n = nn.Linear(hidden_size, hidden_size, bias=False)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        (h,) = state
        x_f, x_n = self.w(x).chunk(2, -1)
        f = torch.sigmoid(x_f + self.u_f(h))
        h = h + f * (torch.tanh(x_n + self.u_n(f * h)) - h)
        return h, (h,)


class GateAfterMGU(Cell):
    """Minimal gated unit with the gate after the product, as torch.nn.GRU has it: tanh(W_n x + f (U_n h))."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.w, self.u = nn.Linear(input_size, 2 * hidden_size), nn.Linear(hidden_size, 2 * hidden_size)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        (h,) = state
        (x_f, x_n), (u_f, u_n) = self.w(x).chunk(2, -1), self.u(h).chunk(2, -1)
        f = torch.sigmoid(x_f + u_f)
        h = h + f * (torch.tanh(x_n + f * u_n) - h)
        return h, (h,)


class JANET(Cell):
    """Forget gate only (van der Westhuizen and Lasenby 2018): h' = sigmoid(s) h + (1 - sigmoid(s - beta)) tanh(n)."""

    beta = 1.0

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.w = nn.Linear(input_size, 2 * hidden_size)
        self.u = nn.Linear(hidden_size, 2 * hidden_size, bias=False)

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        s, n = (self.w(x) + self.u(h if mask is None else h * mask)).chunk(2, -1)
        h = torch.sigmoid(s) * h + (1 - torch.sigmoid(s - self.beta)) * torch.tanh(n)
        return h, (h,)


class LEM(Cell):
    """Long expressive memory (Rusch et al. 2022): two states, each moved by a gate of its own."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.w = nn.Linear(input_size, 4 * hidden_size)
        self.v = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.v_z = nn.Linear(hidden_size, hidden_size, bias=False)

    def initial_state(self, x: Tensor) -> State:
        return x.new_zeros(len(x), self.hidden_size), x.new_zeros(len(x), self.hidden_size)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, z = state
        x_1, x_2, x_z, x_y = self.w(x).chunk(4, -1)
        v_1, v_2, v_z = self.v(y).chunk(3, -1)
        g_1, g_2 = torch.sigmoid(x_1 + v_1), torch.sigmoid(x_2 + v_2)
        z = (1 - g_1) * z + g_1 * torch.tanh(x_z + v_z)
        y = (1 - g_2) * y + g_2 * torch.tanh(x_y + self.v_z(z))
        return y, (y, z)


class CoRNN(Cell):
    """Coupled oscillators (Rusch and Mishra 2021): position y and velocity z, both multiplied by weights."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.dt, self.gamma, self.eps = 0.042, 2.7, 4.7
        self.inner = nn.Linear(input_size + 2 * hidden_size, hidden_size)

    def initial_state(self, x: Tensor) -> State:
        return x.new_zeros(len(x), self.hidden_size), x.new_zeros(len(x), self.hidden_size)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, z = state
        z = z + self.dt * (torch.tanh(self.inner(torch.cat((x, z, y), -1))) - self.gamma * y - self.eps * z)
        y = y + self.dt * z
        return y, (y, z)


class SLSTM(Cell):
    """The sLSTM of xLSTM (Beck et al. 2024), one head: exponential gates, a normaliser and a running maximum."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.w = nn.Linear(input_size, 4 * hidden_size)
        self.u = nn.Linear(hidden_size, 4 * hidden_size, bias=False)

    def initial_state(self, x: Tensor) -> State:
        zero = x.new_zeros(len(x), self.hidden_size)
        return zero, zero, torch.ones_like(zero), zero

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        h, c, n, m = state
        i, f, z, o = (self.w(x) + self.u(h)).chunk(4, -1)
        kept = F.logsigmoid(f) + m
        m = torch.maximum(kept, i)
        f, i = torch.exp(kept - m), torch.exp(i - m)
        c, n = f * c + i * torch.tanh(z), f * n + i
        h = torch.sigmoid(o) * c / n
        return h, (h, c, n, m)


CELLS: dict[str, type[Cell] | str] = {
    "leaky": Leaky,
    "mgu": MGU,
    "mgu_gate_after": GateAfterMGU,
    "janet": JANET,
    "lem": LEM,
    "cornn": CoRNN,
    "slstm": SLSTM,
} | {name: name for name in ("rnn", "gru", "lstm", "ln_gru", "ln_lstm", "attn_rnn", "indrnn")}
