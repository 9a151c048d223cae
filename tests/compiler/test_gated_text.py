"""Compiled cells in the gated CUDA kernels, whose text is generated: on the CPU, against float64."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from seqloom.cells.lookup import find_cell
from seqloom.compiler.nodes import UnsupportedError
from seqloom.core.cell import Cell
from seqloom.core.job import ScanJob
from seqloom.kernels import heuristics, loop
from seqloom.kernels.compiled import gated
from seqloom.kernels.registry import find_kernel

MULTIPROCESSORS = 8  # few, or a group on a grid would have one row
BF16, FP16 = torch.bfloat16, torch.float16
ALL = "lengths reset mask keep"


def linear(D, H):
    return torch.nn.Linear(D, H)


class Leaky(Cell):
    def __init__(self, D, H):
        super().__init__(D, H)
        self.W, self.U = linear(D, H), torch.nn.Parameter(torch.randn(H, H) / math.sqrt(H))
        self.a = torch.nn.Parameter(torch.rand(H))

    def project(self, x):
        return self.W(x)

    def step(self, x, state, mask=None):
        (h,) = state
        n = torch.tanh(x + (h if mask is None else h * mask) @ self.U.t())
        h = h + self.a * (n - h)
        return h, (h,)


class Mgu(Cell):
    """The gate applied after the product."""

    def __init__(self, D, H):
        super().__init__(D, H)
        self.W, self.U = linear(D, 2 * H), linear(H, 2 * H)

    def project(self, x):
        return self.W(x)

    def step(self, x, state, mask=None):
        (h,) = state
        x_f, x_n = x.chunk(2, -1)
        u_f, u_n = self.U(h if mask is None else h * mask).chunk(2, -1)
        f = torch.sigmoid(x_f + u_f)
        h = (1 - f) * h + f * torch.tanh(x_n + f * u_n)
        return h, (h,)


class Janet(Cell):
    """Takes [x, h] at once, and projects nothing beforehand."""

    def __init__(self, D, H):
        super().__init__(D, H)
        self.W = linear(D + H, 2 * H)

    def step(self, x, state):
        (h,) = state
        s, n = self.W(torch.cat([x, h], -1)).chunk(2, -1)
        h = torch.sigmoid(s) * h + (1 - torch.sigmoid(s - 1.0)) * torch.tanh(n)
        return h, (h,)


class LightGru(Cell):
    """Relu, and products by two weights."""

    def __init__(self, D, H):
        super().__init__(D, H)
        self.W, self.Z, self.N = linear(D, 2 * H), linear(H, H), linear(H, H)

    def project(self, x):
        return self.W(x)

    def step(self, x, state):
        (h,) = state
        x_z, x_n = x.chunk(2, -1)
        z = torch.sigmoid(x_z + self.Z(h))
        h = z * h + (1 - z) * torch.relu(x_n + self.N(h))
        return h, (h,)


class TwoStates(Cell):
    """An LSTM as a user writes it."""

    def __init__(self, D, H):
        super().__init__(D, H)
        self.W, self.U = linear(D, 4 * H), torch.nn.Linear(H, 4 * H, bias=False)

    def initial_state(self, x):
        return tuple(x.new_zeros(x.shape[0], self.hidden_size) for _ in range(2))

    def project(self, x):
        return self.W(x)

    def step(self, x, state, mask=None):
        h, c = state
        i, f, g, o = (x + self.U(h if mask is None else h * mask)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)


class Exponential(Cell):
    """Four states, exponential gates and a running maximum (sLSTM), with a product that reads the third state.

    The output is the second state.
    """

    def __init__(self, D, H):
        super().__init__(D, H)
        self.W, self.U = linear(D, 4 * H), torch.nn.Linear(H, 4 * H, bias=False)

    def initial_state(self, x):
        return tuple(x.new_zeros(x.shape[0], self.hidden_size) for _ in range(4))

    def output(self, state):
        return state[1]

    def project(self, x):
        return self.W(x)

    def step(self, x, state):
        c, _, h, m = state
        i, f, z, o = (x + self.U(h)).chunk(4, -1)
        f = torch.nn.functional.logsigmoid(f)
        new = torch.maximum(f + m, i)
        forget, take = torch.exp(f + m - new), torch.exp(i - new)
        c = forget * c + take * torch.tanh(z)
        y = torch.sigmoid(o) * c / (1 + c.abs())
        return y, (c, y, torch.where(y > 0, y, 0.5 * y), new)


class Scaled(Cell):
    """Scalar weights, a power, rsqrt, log1p, comparisons, time spans, and more planes of x than gates."""

    def __init__(self, D, H):
        super().__init__(D, H)
        self.W, self.U = linear(D, 3 * H), torch.nn.Linear(H, H, bias=False)
        self.zeta, self.nu = (torch.nn.Parameter(torch.tensor(v)) for v in (0.3, -0.2))

    def project(self, x):
        return self.W(x)

    def step(self, x, state, dt):
        (h,) = state
        p, q, r = x.chunk(3, -1)
        u = torch.tanh(p + self.U(h))
        n = u * torch.rsqrt(1 + q**2) + torch.log1p(torch.exp(self.zeta * h))
        h = torch.exp(-0.1 * dt.unsqueeze(-1)) * h + torch.clamp(n * torch.sigmoid(self.nu), -1, 1) * (r > 0)
        return h, (h,)


class Hidden(Cell):
    """The output is none of the states."""

    def __init__(self, D, H):
        super().__init__(D, H)
        self.W, self.U = linear(D, H), linear(H, 2 * H)

    def step(self, x, state, mask=None):
        (h,) = state
        u, o = self.U(h if mask is None else h * mask).chunk(2, -1)
        h = torch.tanh(self.W(x) + u)
        return h * torch.sigmoid(o), (h,)


class Two(Hidden):
    """One product after the other."""

    def step(self, x, state):
        (h,) = state
        h = torch.tanh(self.W(x) + self.U(torch.tanh(self.U(h)[:, : self.hidden_size]))[:, : self.hidden_size])
        return h, (h,)


def cell_of(kind, H, D=24):
    torch.manual_seed(0)
    cell = kind(D, H)
    cell.learn_initial_state()
    with torch.no_grad():
        for p in cell.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return cell


def job_of(cell, B, T, dtype, wishes=""):
    x, H = torch.randn(B, T, cell.input_size).to(dtype), cell.hidden_size
    state = tuple(torch.randn(B, H).to(dtype) for _ in cell.start(x.float()))
    ends, share = torch.randint(0, T + 1, (B,)), (torch.rand(B, H) < 0.8).to(dtype) / 0.8
    ends[0] = T
    keep = tuple((torch.randint(3, (B, T, H)) / 2).to(dtype) for _ in state)
    dt = torch.rand(B, T).to(dtype) if "dt" in cell.takes else None
    job = ScanJob(x, state, ends, torch.rand(B, T) < 0.3, dt, share, keep)
    left = {"lengths": None, "reset": None, "mask": None, "keep": ()}
    return replace(job, **{name: nothing for name, nothing in left.items() if name not in wishes})


def convert(job, dtype):
    change = {name: t.to(dtype) for name in ("x", "mask", "dt") if (t := getattr(job, name)) is not None}
    return replace(job, **change, **{n: tuple(t.to(dtype) for t in getattr(job, n)) for n in ("state", "keep")})


def run_gated(cell, job):
    return gated.run(cell, job, gated.prepare(cell, job))


def everything(run, cell, job):
    """Outputs, last states and all gradients."""
    cell, x = copy.deepcopy(cell), job.x.detach().clone().requires_grad_()
    state = tuple(s.detach().clone().requires_grad_() for s in job.state)
    y, last = run(cell, replace(job, x=x, state=state))
    torch.manual_seed(1)
    sum((t.double() * torch.randn(t.shape, dtype=torch.float64).to(t.device)).sum() for t in (y, *last)).backward()
    real = slice(None) if job.lengths is None else job.valid_steps()
    parts = {"y": y, "dx": x.grad[real]} | {f"last {i}": s for i, s in enumerate(last)}
    parts |= {f"dstate {i}": s.grad for i, s in enumerate(state)}
    grads = {n: p.grad for n, p in cell.named_parameters() if p.grad is not None}
    parts |= {n: g for n, g in grads.items() if g.numel() > 1}
    single = [g.view(1) for g in grads.values() if g.numel() == 1]  # one of them may be right by chance
    parts |= {"single numbers": torch.cat(single)} if single else {}
    return {name: t.detach().double() for name, t in parts.items() if t is not None}


def worst(cell, job, dtype):
    """How many times as far from float64 as the loop in the same type, and of what."""
    low = copy.deepcopy(cell).to(dtype)
    assert gated.why_not_fit(low, job) is None
    mine, loops = (everything(run, low, job) for run in (run_gated, loop.run))
    true = everything(loop.run, copy.deepcopy(low).double(), convert(job, torch.float64))
    ratios = {}
    for part, exact in true.items():
        # half of a last bit, on average; a few numbers may be right by chance
        least = (2.0 if part == "single numbers" else 0.25) * torch.finfo(dtype).eps * exact.norm()
        error = (mine.get(part, torch.zeros_like(exact)) - exact).norm()
        ratio = float(error / (loops.get(part, torch.zeros_like(exact)) - exact).norm().clamp(min=least))
        ratios[part] = 0.0 if exact.norm() == 0 and error == 0 else math.inf if math.isnan(ratio) else ratio
    part = max(ratios, key=ratios.get)
    return ratios[part], part


SHAPES = [
    (Leaky, 32, BF16, 9, 5, ALL, False),
    (Leaky, 80, FP16, 3, 3, ALL, True),
    (Mgu, 112, FP16, 3, 3, ALL, False),
    (Mgu, 80, BF16, 3, 3, ALL, True),
    (Janet, 144, BF16, 3, 3, "lengths reset keep", False),
    (Janet, 80, FP16, 3, 3, "", True),
    (LightGru, 32, FP16, 3, 1, "reset", False),
    (LightGru, 80, BF16, 3, 1, "keep", True),
    (TwoStates, 48, BF16, 3, 3, ALL, False),
    (TwoStates, 80, FP16, 3, 3, "lengths reset", True),
    (Exponential, 32, FP16, 3, 3, "lengths reset keep", False),
    (Exponential, 80, BF16, 3, 3, "lengths", True),
    (Hidden, 32, FP16, 3, 3, "lengths reset mask", False),
    (Scaled, 32, BF16, 3, 3, "lengths reset", False),
    (Scaled, 80, FP16, 3, 3, "keep", True),
]


@pytest.fixture
def small(monkeypatch, emulated):
    """Let small sizes run on a grid, as large ones do."""

    def choose(is_grid):
        monkeypatch.setattr(heuristics, "GATED_CLUSTER_HIDDEN", dict.fromkeys((2, 4), 0 if is_grid else 1024))

    return choose


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "H", "dtype", "B", "T", "wishes", "grid"), SHAPES)
def test_a_compiled_cell_is_at_most_twice_as_far_from_float64_as_the_loop(small, kind, H, dtype, B, T, wishes, grid):
    small(grid)
    cell = cell_of(kind, H)
    assert worst(cell, job_of(cell, B, T, dtype, wishes), dtype)[0] < 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_a_compiled_cell_agrees_with_the_hand_written_one(small, name):
    small(False)
    cell = cell_of(find_cell(name), 32).to(BF16)
    job = job_of(cell, 3, 3, BF16, ALL)
    mine, theirs = (everything(run, cell, job) for run in (run_gated, find_kernel(f"{name}_cuda").code.run))
    for part, t in theirs.items():
        assert (mine[part] - t).norm() <= 0.02 * t.norm(), part


def test_it_runs_under_autocast(small):
    small(False)
    cell = cell_of(Leaky, 16)
    job = job_of(cell, 2, 3, torch.float32, "lengths")
    with torch.autocast("cpu", BF16):
        mine, loops = (everything(run, cell, job) for run in (run_gated, loop.run))
    for part, t in loops.items():
        assert (mine[part] - t).norm() <= 0.03 * t.norm(), part


def test_second_derivatives_come_from_the_loop(small):
    small(False)
    cell = cell_of(Leaky, 16).to(BF16)
    job = job_of(cell, 2, 3, BF16, ALL)
    both = []
    for run in (run_gated, loop.run):
        leaves = [t.detach().requires_grad_() for t in (job.x, *job.state)]
        y, last = run(cell, replace(job, x=leaves[0], state=tuple(leaves[1:])))
        loss = sum((t.double() * torch.linspace(-1, 1, t.numel()).view(t.shape)).sum() for t in (y, *last))
        leaves += list(cell.parameters())
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        both.append([*first, *torch.autograd.grad(sum(g.double().square().sum() for g in first), leaves)])
    for mine, loops in zip(*both, strict=True):
        assert (mine.double() - loops.double()).norm() <= 0.05 * loops.double().norm()


REASONS = {
    Two: "step multiplies something other than a state with a weight",
    find_cell("ln_gru"): "step combines the units of a row",
    find_cell("min_gru"): "step multiplies no state with a weight",
}


@pytest.mark.parametrize("kind", REASONS, ids=lambda kind: kind.__name__)
def test_a_cell_that_does_not_fit_says_why(kind):
    cell = kind(24, 32)
    assert gated.why_not_fit(cell, job_of(cell, 2, 3, torch.float32)) == REASONS[kind]


def test_a_hidden_size_of_no_whole_tiles_is_refused(monkeypatch):
    cell = Leaky(24, 20)
    job = job_of(cell, 2, 3, BF16)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    assert gated.find(cell, job) == "it takes hidden sizes 16, 32, .. 1024, not 20"
    assert gated.find(cell, replace(job, x=job.x.float())).startswith("it computes in bfloat16 or float16")


def test_a_mask_that_is_not_for_the_product_is_refused():
    class Odd(Leaky):
        def step(self, x, state, mask=None):
            (h,) = state
            h = torch.tanh(x + h @ self.U) * mask
            return h, (h,)

    cell = Odd(24, 32)
    reason = gated.why_not_fit(cell, job_of(cell, 2, 3, torch.float32, "mask"))
    assert reason == "step does not apply the dropout mask to the state that it multiplies"


def test_zoneout_needs_an_output_that_is_a_state():
    cell = Hidden(24, 32)
    assert gated.why_not_fit(cell, job_of(cell, 2, 3, torch.float32, "keep")) == (
        "with zoneout the output must be one of the states"
    )


def test_a_changed_setting_is_compiled_again():
    class Decay(Leaky):
        decay = 0.5

        def step(self, x, state):
            (h,) = state
            h = self.decay * h + torch.tanh(x + h @ self.U)
            return h, (h,)

    cell = Decay(24, 32)
    cell.decay = 0.25
    job = job_of(cell, 2, 3, torch.float32)
    first = gated.prepare(cell, job).kind
    cell.decay = 0.75
    assert "0.25f" in first.unit and "0.75f" in gated.prepare(cell, job).kind.unit
    with pytest.raises(UnsupportedError):
        gated.prepare(Two(24, 32), job)
