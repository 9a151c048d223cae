"""Random numbers that a step draws: a seed gives the numbers of the loop."""

import copy

import pytest
import torch
import torch.nn.functional as F
from comparison import Base
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import seqloom
from seqloom.compiler.compile import compile_cell
from seqloom.compiler.draws import Draw, check_draw
from seqloom.compiler.report import write_calls
from seqloom.core.errors import UserError
from seqloom.core.job import ScanJob
from seqloom.kernels.compiled.gated import why_not_fit
from seqloom.kernels.cpu.machine import why_not_machine

pytestmark = pytest.mark.skipif(why_not_machine() is not None, reason=str(why_not_machine()))

DRAWS = {
    "randn_like": torch.randn_like,
    "rand_like": torch.rand_like,
    "randn": lambda a: torch.randn(a.shape, dtype=a.dtype),
    "rand": lambda a: torch.rand(*a.shape, dtype=a.dtype),
    "normal_": lambda a: torch.empty_like(a).normal_(0.5, 2.0),
    "uniform_": lambda a: a.new_empty(a.shape).uniform_(-1, 3),
    "uniform_ from": lambda a: torch.empty_like(a).uniform_(-2),
    "exponential_": lambda a: torch.empty_like(a).exponential_(1.5),
    "bernoulli_": lambda a: torch.zeros_like(a).bernoulli_(0.3),
    "bernoulli": lambda a: torch.bernoulli(torch.sigmoid(a)) * a,
    "normal of numbers": lambda a: torch.normal(0.3, 1.2, a.shape, dtype=a.dtype),
    "normal around means": lambda a: torch.normal(a, 0.4),
    "normal of tensors": lambda a: torch.normal(a, a.abs() + 0.1),
    "dropout": lambda a: F.dropout(a, 0.4),
    "dropout in place": lambda a: F.dropout(a.clone(), 0.4, inplace=True),
    "no dropout": lambda a: F.dropout(a, 0.0) + F.dropout(a, 0.5, training=False),
    "alpha dropout": lambda a: F.alpha_dropout(a, 0.2, training=True),
    "gumbel": lambda a: F.gumbel_softmax(a, dim=-1),
    "unused": lambda a: (torch.rand_like(a), torch.randn_like(a))[1],
    "several": lambda a: torch.randn_like(a) * F.dropout(a, 0.5) + torch.cat([torch.rand_like(a[:, :2])] * 2, 1),
    "distribution": lambda a: torch.distributions.Normal(a, a.abs() + 0.2, validate_args=False).rsample(),
}


def build_cell(draw, name="Noisy"):
    return type(name, (Base,), {"new": lambda self, x, h: torch.tanh(x + self.U(h) + 0.3 * draw(x + h))})


def compute(layer, x, kernel, **settings):
    """Return outputs, states, gradients, and the next random number."""
    layer.kernel = kernel
    torch.manual_seed(7)
    y, last = layer(x, **settings)
    after = torch.rand(3)
    leaves = [x, *layer.parameters()]
    grads = torch.autograd.grad(y.square().sum() + last.sum(), leaves, allow_unused=True)
    return [y, last, *(torch.zeros_like(t) if g is None else g for g, t in zip(grads, leaves, strict=True)), after]


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_seed_gives_the_numbers_of_the_loop(draw):
    layer = seqloom.Recurrent(build_cell(draw), 3, 4, batch_first=True, dtype=torch.float64)
    x = torch.randn(5, 7, 3, dtype=torch.float64, requires_grad=True)
    for settings in ({}, {"lengths": [7, 0, 3, 5, 3]}):
        assert_close(compute(layer, x, "compiled", **settings), compute(layer, x, "loop", **settings))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stacks_resets_and_both_directions_draw_in_the_order_of_the_loop(dtype):
    layer = seqloom.Recurrent(
        build_cell(DRAWS["several"]), 3, 4, num_layers=2, bidirectional=True, batch_first=True, dtype=dtype
    )
    x = torch.randn(33, 5, 3, dtype=dtype, requires_grad=True)
    settings = {"reset": torch.rand(33, 5) < 0.3, "lengths": torch.arange(33) % 6}
    assert_close(compute(layer, x, "compiled", **settings), compute(layer, x, "loop", **settings))


def test_single_steps_draw_the_numbers_of_the_whole_sequence():
    layer = seqloom.Recurrent(build_cell(torch.randn_like), 3, 4, batch_first=True, kernel="compiled")
    x = torch.randn(2, 6, 3)
    torch.manual_seed(1)
    whole, _ = layer(x)
    layer.kernel = "auto"
    torch.manual_seed(1)
    outputs, state = [], None
    for t in range(6):
        y, state = layer.step(x[:, t], state)
        outputs.append(y)
    assert_close(torch.stack(outputs, 1), whole)


def test_evaluation_draws_what_the_step_says():
    layer = seqloom.Recurrent(build_cell(torch.randn_like), 3, 4, batch_first=True).eval()
    x = torch.randn(2, 6, 3)
    found = []
    with torch.no_grad():
        for kernel, seed in (("compiled", 1), ("loop", 1), ("compiled", 2)):
            layer.kernel = kernel
            torch.manual_seed(seed)
            found.append(layer(x)[0])
    assert_close(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


def test_second_derivatives_and_checkpoints_use_the_numbers_of_the_first_pass():
    layer = seqloom.Recurrent(build_cell(DRAWS["several"]), 3, 4, batch_first=True, dtype=torch.float64)
    x = torch.randn(3, 6, 3, dtype=torch.float64, requires_grad=True)
    found = []
    for kernel in ("compiled", "loop"):
        layer.kernel = kernel
        torch.manual_seed(4)
        y, _ = layer(x)
        (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        after = torch.rand(2)
        found.append([g, *torch.autograd.grad(g.square().sum(), [x, *layer.parameters()], allow_unused=True), after])
        torch.manual_seed(4)
        y = checkpoint(lambda x: layer(x)[0], x, use_reentrant=False)
        torch.rand(5)
        found[-1] += torch.autograd.grad(y.square().sum(), x)
    assert_close(*[[t for t in part if t is not None] for part in found])
    assert_close(found[0][0], found[0][-1])


def test_random_numbers_of_project_come_first():
    class Both(Base):
        def project(self, x):
            return F.dropout(self.W(x), 0.5)

        def new(self, x, h):
            return torch.tanh(x + self.U(h) + torch.randn_like(h))

    layer = seqloom.Recurrent(Both, 3, 4, batch_first=True, dtype=torch.float64)
    x = torch.randn(3, 6, 3, dtype=torch.float64, requires_grad=True)
    assert_close(compute(layer, x, "compiled"), compute(layer, x, "loop"))


def test_a_first_call_draws_no_numbers_for_its_checks():
    layer = seqloom.Recurrent(build_cell(torch.randn_like), 3, 4, batch_first=True)
    other, x = copy.deepcopy(layer), torch.randn(3, 6, 3)
    other.kernel = "loop"
    torch.manual_seed(3)
    first = layer(x)[0]
    torch.manual_seed(3)
    assert_close(first, other(x)[0])


@pytest.mark.slow
def test_a_graph_of_torch_compile_refuses_the_backward_of_random_numbers():
    layer = seqloom.Recurrent(build_cell(torch.randn_like), 3, 4, batch_first=True)
    compiled = torch.compile(layer, backend="aot_eager")
    y, _ = compiled(torch.randn(2, 6, 3))
    with pytest.raises(UserError, match="draws random numbers, and in a graph of"):
        y.sum().backward()


def test_the_gated_gpu_kernels_refuse_random_numbers():
    cell = build_cell(torch.randn_like)()
    x = torch.randn(2, 6, 3)
    assert why_not_fit(cell, ScanJob(x, cell.start(x))) == "step draws random numbers"


def test_a_plan_lists_what_it_draws_in_order():
    cell = build_cell(lambda a: torch.randn_like(a) + F.dropout(a, 0.25))().double()
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    plan = compile_cell(cell, ScanJob(x, cell.start(x)))
    assert write_calls(plan).startswith("draw_0 = normal(0, 1)\ndraw_1 = dropout(0.25)\n")
    assert [draw[:3] for draw in plan.draws] == [("normal", (0.0, 1.0), (4,)), ("dropout", (0.25,), (4,))]
    assert all("test_draws.py" in draw.line for draw in plan.draws)


def test_native_dropout_is_refused():
    cell = build_cell(lambda a: torch.native_dropout(a, 0.5, True)[0])().double()
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    assert "native_dropout (test_draws.py:" in str(compile_cell(cell, ScanJob(x, cell.start(x))))


def test_a_plan_knows_the_layout_of_what_is_dropped():
    cell = build_cell(lambda a: F.pad(F.dropout(a[:, 1:3], 0.5), (1, 1)))().double()
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    (draw,) = compile_cell(cell, ScanJob(x, cell.start(x))).draws
    assert draw.layout == (1, 4, 1)  # the second of four numbers in a row


@pytest.mark.parametrize(
    "draw",
    [
        *(Draw("odd", (), (4,)), Draw("normal", (1.0,), (4,)), Draw("chance", (), (-1,))),
        *(Draw("dropout", (0.5,), (4,), layout) for layout in ((), (0, 4), (0, -4, 1))),
    ],
)
def test_unknown_random_numbers_of_a_stored_plan_are_refused(draw):
    with pytest.raises(ValueError, match="unknown random numbers"):
        check_draw(draw)
