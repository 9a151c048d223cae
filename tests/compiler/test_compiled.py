"""Compiled cells give the results of the loop: outputs, last states and every gradient."""

from dataclasses import replace

import pytest
import torch
from comparison import Base

import seqloom
import seqloom.cells
from cells import CELLS, JANET, LEM, SLSTM, Ageing, Dual, Leaky, Normed, Pointwise, Slots, TwoSizes
from seqloom.cells.lookup import find_cell
from seqloom.compiler import evaluation
from seqloom.core.cell import Cell
from seqloom.core.job import ScanJob
from seqloom.kernels import loop
from seqloom.kernels.compiled import kernel
from seqloom.kernels.cpu.machine import why_not_machine
from seqloom.tools.testing import check_kernel
from seqloom.tools.testing import kernel as checking

pytestmark = pytest.mark.skipif(why_not_machine() is not None, reason=str(why_not_machine()))

REGISTERED = [kind for kind in Cell.registry.values() if kind.__module__.startswith("seqloom.cells.")]
SLOW, SLOW_TO_TRACE = [pytest.mark.slow], (seqloom.NTMCell,)  # ten seconds
SHORT = ((1, 1, 3, 4), (2, 1, 5, 12), (2, 4, 3, 4), (3, 5, 7, 20))  # the last one with every option
D, H = 3, 4


def of_every_cell():
    return [pytest.param(k, id=k.__name__, marks=SLOW * (k in SLOW_TO_TRACE)) for k in (*CELLS, *REGISTERED)]


def make_job(cell, B=3, T=6, lengths=(6, 0, 4), options=()):
    x = torch.randn(B, T, D, dtype=torch.float64)
    state = tuple(s.detach() + 0.1 for s in cell.start(x))
    job = ScanJob(x, state, None if lengths is None else torch.tensor(lengths))
    if "reset" in options:
        job = replace(job, reset=torch.rand(B, T) < 0.3)
    if "mask" in options and "mask" in cell.takes:
        job = replace(job, mask=2.0 * torch.randint(2, (B, cell.output_size)).double())
    if "keep" in options:
        job = replace(job, keep=tuple(torch.rand(B, T, *s.shape[1:], dtype=torch.float64) for s in state))
    if "dt" in options and "dt" in cell.takes:
        job = replace(job, dt=torch.rand(B, T, dtype=torch.float64))
    return job


def check(cell, job):
    """Compare with the loop: distances count relative to the largest number of each result."""
    assert kernel.why_not(cell, job) is None
    ours, loops = (checking.run_with_gradients(code.run, cell, job, torch.float64) for code in (kernel, loop))
    for name, expected in loops.items():
        size = max(1e-3, float(expected.abs().max()))  # some gradients are 0, such as those of a softmax's shift
        torch.testing.assert_close(
            ours[name], expected, rtol=1e-11, atol=1e-11 * size, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("kind", of_every_cell())
def test_a_compiled_cell_gives_the_results_of_the_loop(kind):
    cell = kind(D, H, dtype=torch.float64)
    check(cell, make_job(cell, lengths=None))
    check(cell, make_job(cell))
    check(cell, make_job(cell, B=1, T=5, lengths=None))
    check(cell, make_job(cell, T=1, lengths=None))
    check(cell, make_job(cell, B=2, T=3, lengths=(0, 0)))


def test_time_spans_are_compiled():
    cell = find_cell("cfc")(D, H, dtype=torch.float64)
    assert "dt" in cell.takes
    check(cell, make_job(cell, options=("dt",)))


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", [k for k in (*CELLS, *REGISTERED) if k not in SLOW_TO_TRACE])
def test_resets_masks_zoneout_and_time_spans_together(kind):
    cell = kind(D, H, dtype=torch.float64)
    cell.learn_initial_state()
    for lengths in (None, (6, 0, 4)):
        check(cell, make_job(cell, lengths=lengths, options=("reset", "mask", "keep", "dt")))


CONSTANTS = {
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda h: torch.full_like(h, 0.7),
    "new_zeros": lambda h: h.new_zeros(h.shape),
    "new_ones": lambda h: h.new_ones(h.shape),
    "new_full": lambda h: h.new_full(h.shape, 0.7),
    "full": lambda h: torch.full(h.shape[1:], 0.7, dtype=h.dtype),
    "scalar": lambda h: torch.where(h > 0.2, 0.7, h),
}


@pytest.mark.parametrize("make", CONSTANTS.values(), ids=CONSTANTS)
def test_a_constant_in_a_step_has_its_value(make):
    def new(self, x, h):
        return self.alpha * torch.tanh(x + h) + make(h)

    cell = type("Constant", (Base,), {"new": new})(D, H)
    check(cell.double(), make_job(cell))


@pytest.mark.parametrize("option", ["reset", "mask", "keep", "dt"])
@pytest.mark.parametrize("kind", [Dual, SLSTM, Slots])
def test_each_option_alone_matches_the_loop(kind, option):
    if option in ("mask", "dt") and option not in kind.takes:
        pytest.skip(f"takes no {option}")
    cell = kind(D, H, dtype=torch.float64)
    cell.learn_initial_state()
    check(cell, make_job(cell, options=(option,)))


@pytest.mark.long
@pytest.mark.parametrize("kind", of_every_cell())
def test_every_cell_passes_a_short_form_of_the_public_check(monkeypatch, kind):
    jobs = [((3, 5, 7, 20), True, ()), ((3, 5, 7, 20), False, checking.OPTIONS)]
    if kind is not Slots:  # in one step from zeros its true gradient is 0, and only rounding would be compared
        jobs.append(((2, 1, 7, 20), False, ()))
    monkeypatch.setattr(checking, "_jobs", lambda: iter(jobs))
    check_kernel("any_compiled", kind)


@pytest.mark.parametrize("kind", [pytest.param(Leaky, marks=pytest.mark.long), Normed])
def test_a_compiled_cell_passes_the_public_check(monkeypatch, kind):
    monkeypatch.setattr(checking, "SHAPES", SHORT)
    check_kernel("any_compiled", kind)


@pytest.mark.parametrize("kind", [LEM, Slots])
def test_results_are_bitwise_equal_for_any_number_of_threads(kind):
    cell = kind(8, 16, dtype=torch.float64)
    job = ScanJob(torch.randn(11, 20, 8).double(), cell.start(torch.randn(11, 8).double()), torch.arange(11) * 2)
    results = []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            results.append(checking.run_with_gradients(kernel.run, cell, job, torch.float64))
    finally:
        torch.set_num_threads(1)
    for name, t in results[0].items():
        torch.testing.assert_close(
            results[1][name], t, rtol=1e-10, atol=1e-10
        )  # torch's own products may round differently
        assert torch.equal(results[2][name], results[1][name]), name


def test_a_hundred_thousand_steps_match_the_loop():
    layer = seqloom.Recurrent(Pointwise, 2, 4, batch_first=True, kernel="compiled")
    x = torch.randn(1, 100_000, 2)
    y, _ = layer(x)
    y[:, -1].sum().backward()
    torch.testing.assert_close(y[:, :1000], layer(x[:, :1000])[0])
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


@pytest.mark.parametrize("kind", [JANET, TwoSizes])
def test_a_layer_takes_a_cell_in_every_form(kind):
    layer = seqloom.Recurrent(
        kind, 3, 5, 2, bidirectional=True, batch_first=True, dropouts=seqloom.Dropouts(zoneout=0.2)
    )
    x = torch.randn(4, 6, 3)
    assert set(seqloom.explain(layer, x, lengths=[6, 1, 0, 3]).kernels) == {"any_compiled"}
    results = []
    for name in ("compiled", "loop"):
        layer.kernel = name
        torch.manual_seed(1)
        y, _ = layer(x, lengths=[6, 1, 0, 3], reset=torch.rand(4, 6) < 0.3)
        results.append([y, *torch.autograd.grad(y.square().sum(), list(layer.parameters()))])
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_memory_may_have_any_layout():
    cell = Leaky(D, H, dtype=torch.float64)
    cell.inner.weight = torch.nn.Parameter(cell.inner.weight.detach().t().contiguous().t())
    job = make_job(cell, lengths=None)
    check(cell, job)
    wide = torch.randn(6, 3, 2 * D, dtype=torch.float64)[..., ::2].transpose(0, 1)
    check(cell, replace(job, x=wide, state=(torch.randn(1, H, dtype=torch.float64).expand(3, H),)))


def differentiate_spans(run, cell, job, is_double=False):
    """Return the gradients of time spans, input and weights; with `is_double` those of the gradients' squares."""
    leaves = [job.dt.clone().requires_grad_(), job.x.clone().requires_grad_()]
    y, last = run(cell, replace(job, dt=leaves[0], x=leaves[1]))
    loss = y.square().sum() + sum(s.sum() for s in last)
    leaves += list(cell.parameters())
    if not is_double:
        return torch.autograd.grad(loss, leaves)
    first = torch.autograd.grad(loss, leaves, create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)


@pytest.mark.parametrize("options", [("dt",), ("dt", "reset", "keep", "mask")], ids="+".join)
@pytest.mark.parametrize("kind", [Dual, Ageing, seqloom.ODEGRUCell])
def test_time_spans_have_the_gradients_of_the_loop(kind, options):
    cell = kind(D, H, dtype=torch.float64)
    for lengths in (None, (6, 0, 4)):
        job = make_job(cell, lengths=lengths, options=options)
        assert kernel.why_not(cell, replace(job, dt=job.dt.clone().requires_grad_())) is None
        ours, loops = (differentiate_spans(code.run, cell, job) for code in (kernel, loop))
        torch.testing.assert_close(ours, loops, rtol=1e-11, atol=1e-12)


def test_gradients_of_time_spans_can_be_differentiated_again():
    cell = Ageing(D, H, dtype=torch.float64)
    job = make_job(cell, options=("dt",))
    ours, loops = (differentiate_spans(code.run, cell, job, is_double=True) for code in (kernel, loop))
    torch.testing.assert_close(ours, loops, rtol=1e-11, atol=1e-12)


def test_time_spans_alone_have_gradients():
    layer = seqloom.Recurrent(Ageing, D, H, bidirectional=True, kernel="compiled").requires_grad_(False)
    x, spans = torch.randn(6, 2, D), torch.rand(6, 2, requires_grad=True)
    gradients = []
    for name in ("compiled", "loop"):
        layer.kernel = name
        gradients += torch.autograd.grad(layer(x, timespans=spans)[0].square().sum(), spans)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_gradients_of_two_biases_of_one_gate_are_added_up_once_and_do_not_share_memory(monkeypatch):
    sums = []
    monkeypatch.setitem(evaluation._FUNCTIONS, "sum.dim_IntList", lambda *a, **k: sums.append(a) or torch.sum(*a, **k))
    kernel._prepare.cache_clear()
    layer = seqloom.Recurrent("fast_rnn", D, H, kernel="compiled")
    layer(torch.randn(6, 3, D))[0].sum().backward()
    kernel._prepare.cache_clear()
    biases = [p.grad for name, p in layer.named_parameters() if "bias" in name]
    assert sum(a[0].shape[-1] == H and a[1] == [0] for a in sums) == 1
    assert len({b.data_ptr() for b in biases}) == len(biases) == 2
