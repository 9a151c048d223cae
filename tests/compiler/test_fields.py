"""Cells as they are written in other fields: a spiking one, a noisy one, one for missing values."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import seqloom
from seqloom.core.cell import Cell
from seqloom.kernels.cpu.machine import why_not_machine

pytestmark = pytest.mark.skipif(why_not_machine() is not None, reason=str(why_not_machine()))


class FastSigmoid(torch.autograd.Function):
    """A spike; its surrogate gradient is 1 / (1 + 25 |v|)^2 (Zenke and Ganguli 2018, SuperSpike)."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        return grad / (1 + 25 * v.abs()) ** 2


class LIF(Cell):
    """Leaky integrate-and-fire neurons: v = beta v + W x + U s - s; s = v > 1."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.w, self.u = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, hidden_size, bias=False)
        self.beta = nn.Parameter(torch.linspace(0.5, 0.95, hidden_size))

    def initial_state(self, x):
        zeros = x.new_zeros(x.shape[0], self.hidden_size)
        return zeros, zeros

    def step(self, x, state):
        s, v = state
        v = self.beta * v + 3 * self.w(x) + self.u(s) - s
        s = FastSigmoid.apply(v - 1)
        return s, (s, v)


class CTRNN(Cell):
    """Rates with noise: h = h + a (relu(W x + U h + sigma noise) - h)."""

    def __init__(self, input_size, hidden_size, alpha=0.2, sigma=0.15):
        super().__init__(input_size, hidden_size)
        self.alpha, self.sigma = alpha, sigma
        self.w, self.u = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, hidden_size)

    def step(self, x, state):
        (h,) = state
        noise = self.sigma * torch.randn_like(h)
        h = (1 - self.alpha) * h + self.alpha * torch.relu(self.w(x) + self.u(h) + noise)
        return h, (h,)


class GRUD(Cell):
    """A GRU with decay (Che et al. 2018): x holds values, masks and times since the last values."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.values = input_size // 3
        self.register_buffer("mean", torch.linspace(-0.5, 0.5, self.values))
        self.decay_x = nn.Parameter(torch.rand(self.values))
        self.bias_x = nn.Parameter(torch.rand(self.values))
        self.decay_h = nn.Linear(self.values, hidden_size)
        self.zr = nn.Linear(2 * self.values + hidden_size, 2 * hidden_size)
        self.new = nn.Linear(2 * self.values + hidden_size, hidden_size)

    def initial_state(self, x):
        return x.new_zeros(x.shape[0], self.hidden_size), x.new_zeros(x.shape[0], self.values)

    def step(self, x, state):
        h, last = state
        x, mask, delta = x.chunk(3, -1)
        seen = mask > 0
        gamma_x = torch.exp(-torch.relu(self.decay_x * delta + self.bias_x))
        h = h * torch.exp(-torch.relu(self.decay_h(delta)))
        filled = torch.where(seen, x, gamma_x * last + (1 - gamma_x) * self.mean)
        last = torch.where(seen, x, last)
        observed = seen.to(x.dtype)
        z, r = torch.sigmoid(self.zr(torch.cat([filled, h, observed], -1))).chunk(2, -1)
        new = torch.tanh(self.new(torch.cat([filled, r * h, observed], -1)))
        h = (1 - z) * h + z * new
        return h, (h, last)


CELLS = (LIF, CTRNN, GRUD)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("call", ["plain", "lengths", "reset", "state"])
def test_outputs_and_gradients_are_those_of_the_loop(cell, call):
    layer = seqloom.Recurrent(cell, 6, 8, batch_first=True, dtype=torch.float64)
    torch.manual_seed(0)
    x = torch.randn(5, 11, 6, dtype=torch.float64, requires_grad=True)
    leaves, settings = [x, *layer.parameters()], {}
    if call in ("lengths", "reset"):
        settings["lengths"] = [11, 0, 4, 7, 4]
    if call == "reset":
        settings["reset"] = torch.rand(5, 11) < 0.2
    if call == "state":
        state = [torch.rand_like(s, requires_grad=True) for s in layer.cell_at(0).start(x.detach())]
        leaves += state
        settings["state"] = tuple(s.unsqueeze(0) for s in state) if len(state) > 1 else state[0].unsqueeze(0)
    found = []
    for kernel in ("compiled", "loop"):
        layer.kernel = kernel
        torch.manual_seed(1)
        y, last = layer(x, **settings)
        last = last if isinstance(last, tuple) else (last,)
        weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape)
        loss = (y * weights).sum() + sum(s.square().sum() for s in last)
        found.append([y, *last, *torch.autograd.grad(loss, leaves)])
    assert_close(*found, rtol=1e-12, atol=1e-12)
    if cell is LIF:
        assert 0.05 < float(found[0][0].detach().mean()) < 0.95  # some neurons spike
