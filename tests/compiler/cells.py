"""Cells for the compiler's tests: those of the benchmarks, and cells with one unusual trait each."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from research.speed.published_cells import JANET, LEM, MGU, SLSTM, CoRNN, GateAfterMGU
from seqloom.core.cell import Cell


def matrix(*sizes):
    return nn.Parameter(torch.randn(*sizes) / math.sqrt(sizes[-1]))


class Leaky(Cell):
    """h = (1 - a) h + a tanh(W [x, h] + b): a concatenation, and a setting."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.alpha = 0.3
        self.inner = nn.Linear(input_size + hidden_size, hidden_size)

    def step(self, x, state):
        (h,) = state
        h = (1 - self.alpha) * h + self.alpha * torch.tanh(self.inner(torch.cat([x, h], -1)))
        return h, (h,)


class HeadsGRU(Cell):
    """A GRU whose recurrent matrices are block-diagonal."""

    def __init__(self, input_size, hidden_size, heads=2):
        super().__init__(input_size, hidden_size)
        self.heads, d = heads, hidden_size // heads
        self.weight_ih = matrix(3 * hidden_size, input_size)
        self.weight_hh = matrix(heads, 3, d, d)

    def project(self, x):
        return F.linear(x, self.weight_ih)

    def step(self, x, state):
        (h,) = state
        split = h.unflatten(-1, (self.heads, -1))
        r, z, n = x.unflatten(-1, (3, self.heads, -1)).unbind(1)
        hr, hz, hn = torch.einsum("bhi,hgoi->gbho", split, self.weight_hh).unbind(0)
        z = torch.sigmoid(z + hz)
        h = ((1 - z) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + z * split).flatten(1)
        return h, (h,)


class FastGRNN(Cell):
    """Kusupati et al. 2018, FastGRNN: one product, two scalar weights."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.W, self.U = matrix(hidden_size, input_size), matrix(hidden_size, hidden_size)
        self.bias_z, self.bias_h = (nn.Parameter(torch.randn(hidden_size)) for _ in range(2))
        self.zeta, self.nu = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(-4.0))

    def step(self, x, state):
        (h,) = state
        a = x @ self.W.t() + h @ self.U.t()
        z, new = torch.sigmoid(a + self.bias_z), torch.tanh(a + self.bias_h)
        h = (torch.sigmoid(self.zeta) * (1 - z) + torch.sigmoid(self.nu)) * new + z * h
        return h, (h,)


class Normed(Cell):
    """h = h + tanh(LayerNorm(x + U h))."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.W, self.U = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, hidden_size, bias=False)
        self.norm = nn.LayerNorm(hidden_size)
        nn.init.normal_(self.norm.weight)

    def project(self, x):
        return self.W(x)

    def step(self, x, state):
        (h,) = state
        h = 0.5 * h + torch.tanh(self.norm(x + self.U(h)))
        return h, (h,)


class Slots(Cell):
    """Softmax attention over slots of a memory (B, slots, H), which is the state."""

    def __init__(self, input_size, hidden_size, slots=3):
        super().__init__(input_size, hidden_size)
        self.slots = slots
        self.query = nn.Linear(input_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size, bias=False)  # a bias would shift all scores alike
        self.write = nn.Linear(2 * hidden_size, hidden_size)
        self.register_buffer("bias", torch.linspace(-1, 1, slots))

    def project(self, x):
        return self.query(x)

    def initial_state(self, x):
        return (x.new_zeros(x.shape[0], self.slots, self.hidden_size),)

    def output(self, state):
        return state[0].mean(1)

    def step(self, x, state):
        (m,) = state
        scores = (self.key(m) * x.unsqueeze(1)).sum(-1) / math.sqrt(self.hidden_size) + self.bias
        p = torch.softmax(scores, -1)
        read = (p.unsqueeze(1) @ m).squeeze(1)
        m = m + p.unsqueeze(-1) * torch.tanh(self.write(torch.cat([x, read], -1))).unsqueeze(1)
        return self.output((m,)), (m,)


class Projected(Cell):
    """The output is no state: y = gelu(V h) of another size."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.output_size = hidden_size + 3
        self.W, self.U = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.V = nn.Linear(hidden_size, self.output_size)

    def output(self, state):
        return F.gelu(self.V(state[0]))

    def step(self, x, state):
        h = F.silu(self.W(x)) + torch.sin(self.U(state[0]))
        return self.output((h,)), (h,)


class TwoSizes(Cell):
    """A state of H units and one of 3."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.up, self.down = nn.Linear(3, hidden_size), nn.Linear(hidden_size, 3)
        self.W = nn.Linear(input_size, hidden_size)

    def project(self, x):
        return self.W(x)

    def initial_state(self, x):
        return x.new_zeros(x.shape[0], self.hidden_size), x.new_ones(x.shape[0], 3)

    def step(self, x, state):
        h, small = state
        h = torch.tanh(x + self.up(small) + 0.5 * h)
        small = F.softplus(self.down(h)) - 0.3 * small
        return h, (h, small)


class Pointwise(Cell):
    """Li et al. 2018, IndRNN, with tanh: no product inside the loop."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.W, self.u = nn.Linear(input_size, hidden_size), nn.Parameter(torch.rand(hidden_size) - 0.2)

    def project(self, x):
        return self.W(x)

    def step(self, x, state):
        h = torch.tanh(x + self.u * state[0])
        return h, (h,)


class Shift(Cell):
    """One state depends on x alone: the input of the step before."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.W, self.U = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, hidden_size)

    def project(self, x):
        return self.W(x)

    def initial_state(self, x):
        return x.new_zeros(x.shape[0], self.hidden_size), x.new_zeros(x.shape[0], self.hidden_size)

    def step(self, x, state):
        h, before = state
        h = torch.sigmoid(before) * h + torch.tanh(self.U(h))
        return h, (h, torch.tanh(x))


class Tied(Cell):
    """One Parameter under two names."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.W, self.one = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.two = nn.Linear(hidden_size, hidden_size)
        self.two.weight = self.one.weight

    def project(self, x):
        return self.W(x)

    def step(self, x, state):
        h = torch.tanh(x + self.two(torch.tanh(self.one(state[0]))))
        return h, (h,)


class PlainTensor(Cell):
    """A tensor that is an attribute, neither a parameter nor a buffer."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.W, self.U = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.__dict__["scale"] = torch.linspace(0.1, 0.9, hidden_size)

    def project(self, x):
        return self.W(x)

    def step(self, x, state):
        scale = self.scale.to(x.dtype)
        h = scale * state[0] + (1 - scale) * torch.tanh(x + self.U(state[0]))
        return h, (h,)


class Ageing(Cell):
    """Che et al. 2018, GRU-D's idea: the state decays with the time since the last step; the span enters twice."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.W, self.U = nn.Linear(input_size + 1, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.rate = nn.Parameter(torch.rand(hidden_size))

    def step(self, x, state, dt=None):
        dt = x.new_ones(x.shape[0]) if dt is None else dt
        h = state[0] * torch.exp(-F.softplus(self.rate) * dt.unsqueeze(-1))
        h = torch.tanh(self.W(torch.cat([x, torch.log1p(dt).unsqueeze(-1)], -1)) + self.U(h))
        return h, (h,)


class Dual(Cell):
    """A GRU with weights in a submodule, time spans and a mask."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.cell = nn.GRUCell(input_size, hidden_size)

    def step(self, x, state, mask=None, dt=None):
        h = state[0] if dt is None else state[0] * torch.exp(-dt.unsqueeze(-1))
        h = h if mask is None else h * mask
        h = self.cell(x, h)
        return h, (h,)


class Difference(Cell):
    """An output that reads the old state: y = n - h."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.inner = nn.Linear(input_size + hidden_size, hidden_size)

    def step(self, x, state):
        n = torch.tanh(self.inner(torch.cat([x, state[0]], -1)))
        return n - state[0], (n,)


class NormOfBoth(Cell):
    """An output that only torch computes, from both states: y = LayerNorm(n + h)."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.inner, self.norm = nn.Linear(input_size + hidden_size, hidden_size), nn.LayerNorm(hidden_size)

    def step(self, x, state):
        n = torch.sigmoid(self.inner(torch.cat([x, state[0]], -1)))
        return self.norm(n + state[0]), (n,)


class FastWeights(Cell):
    """Ba et al. 2016, fast weights: a matrix as state, an output by a product with it."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.inner, self.out = nn.Linear(input_size + hidden_size, hidden_size), nn.Linear(hidden_size, hidden_size)

    def initial_state(self, x):
        H = self.hidden_size
        return x.new_zeros(x.shape[0], H), x.new_zeros(x.shape[0], H, H)

    def step(self, x, state):
        h, A = state
        n = torch.tanh(self.inner(torch.cat([x, h], -1)))
        A = 0.9 * A + 0.3 * n.unsqueeze(-1) * n.unsqueeze(1)
        return self.out(torch.einsum("bij,bj->bi", A, h)), (n, A)


class Unread(Cell):
    """A state that never changes, and products for the output alone."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.W, self.U = matrix(input_size, hidden_size), matrix(hidden_size, hidden_size)
        self.V = matrix(hidden_size, hidden_size)

    def step(self, x, state):
        (h,) = state
        a = x @ self.W + h @ self.U
        y = torch.lerp(a, (a @ self.V) ** 3, torch.sigmoid(h))
        return y @ self.V, (h,)


class Choice(Cell):
    """Comparisons before a product: where(a > h, a, h) U, and lerp with a weight that is compared with 0.5."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.W, self.U = nn.Linear(input_size, hidden_size), matrix(hidden_size, hidden_size)

    def step(self, x, state):
        (h,) = state
        a = self.W(x)
        n = torch.tanh(torch.where(a > h, a, h) @ self.U + torch.lerp(h, a, torch.sigmoid(h)) @ self.U)
        return n, (n,)


class Smallest(Cell):
    """The smallest and the largest value of a vector; the derivative looks for the units that have it."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.W, self.U = nn.Linear(input_size, hidden_size), matrix(hidden_size, hidden_size)

    def step(self, x, state):
        (h,) = state
        a = F.gelu(torch.lerp(h, self.W(x), torch.sigmoid(h)), approximate="tanh")
        n = torch.tanh(a @ self.U + a.amin(-1, keepdim=True))
        return n * torch.softmax(a, -1) + a.amax(-1, keepdim=True), (n,)


class Fresh(Cell):
    """A state that does not depend on the one before, and an output that does: no product inside the loops."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.W = nn.Linear(input_size, hidden_size)

    def project(self, x):
        return self.W(x)

    def step(self, x, state):
        (h,) = state
        y = torch.sigmoid(x) * h + (1 - torch.sigmoid(x)) * h
        return F.layer_norm(y, (self.hidden_size,)), (torch.tanh(x),)


class Nested(Cell):
    """A concatenation whose product is a part of another one."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.U, self.V = matrix(input_size + hidden_size, hidden_size), matrix(input_size + hidden_size, hidden_size)

    def step(self, x, state):
        a = torch.cat([x, state[0]], -1) @ self.U
        n = torch.tanh(torch.cat([x, a], -1) @ self.V)
        return n, (n,)


CELLS = (Leaky, MGU, GateAfterMGU, JANET, LEM, CoRNN, SLSTM, HeadsGRU, FastGRNN, Normed, Slots, Projected, TwoSizes,
         Pointwise, Shift, Tied, PlainTensor, Ageing, Dual, Difference, NormOfBoth, FastWeights, Unread, Choice,
         Smallest, Fresh, Nested)  # fmt: skip
