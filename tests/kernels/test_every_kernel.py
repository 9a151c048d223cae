"""Every kernel returns the results of the reference loop."""

import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import seqloom
import seqloom.cells
from seqloom.core import memory
from seqloom.core.cell import Cell
from seqloom.core.job import ScanJob
from seqloom.core.weights import bind_weights
from seqloom.kernels import heuristics
from seqloom.kernels import loop as any_loop
from seqloom.kernels import scan as any_scan
from seqloom.kernels.cpu import engine
from seqloom.kernels.registry import KERNELS, find_kernel
from seqloom.tools.testing import check_kernel
from seqloom.tools.testing import kernel as checking

NAMED = [
    name
    for name in [k.name for k in KERNELS]
    if not name.startswith("any_")
    and not name.endswith(("_cuda", "_row", "_slots", "_cluster", "_grid", "_graph", "_tiles"))
]
ENGINE = [name.removesuffix("_cpu") for name in NAMED if name.endswith("_cpu")]
OLDER_BUILDS = [file.stem.removeprefix("engine_") for file in engine.list_libraries()[:0:-1]]  # the oldest first
WHOLE = [f"{name}_cpu" for name in ENGINE] + ["attn_rnn_manual"]  # they take all that a job may ask, but time

SHORT = (
    (1, 1, 3, 4),
    (2, 1, 5, 12),
    (9, 6, 16, 36),
    (3, 5, 7, 20),
)  # of dispatch.SHAPES, which the first check takes whole: the loop is slow


@pytest.fixture(autouse=True, scope="module")
def _the_loop_runs_once():
    """Cache the results of the reference loop, which take most of the time of a check."""
    everything, kept = checking.run_with_gradients, {}

    def once(run, cell, job, dtype=torch.float32):
        if run is not any_loop.run:
            return everything(run, cell, job, dtype)
        settings = {name: v for name, v in vars(cell).items() if not name.startswith("_") and name != "handle"}
        tensors = [*cell.parameters(), job.x, job.lengths, job.reset, job.mask, *job.keep]
        given = [None if v is None else v.detach().numpy().tobytes() for v in tensors]
        key = type(cell), repr(settings), tuple(job.x.shape), dtype, *given
        if key not in kept:
            kept[key] = everything(run, cell, job, dtype)
        return kept[key]

    checking.run_with_gradients = once
    yield
    checking.run_with_gradients = everything


def parts(cell, x, lengths, run):
    """Return outputs, last state and every gradient."""
    x = x.detach().requires_grad_()
    state = tuple(s.detach().clone().requires_grad_() for s in cell.start(x))
    y, last = run(cell, ScanJob(x, state, lengths))
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    loss = (y * weight).sum() + sum(s.sum() for s in last)
    return [y, *last, *torch.autograd.grad(loss, [x, *state, *cell.parameters()])]


def asking(name, dtype=torch.float64):
    """Return a cell with a learned initial state, and a job that uses every option."""
    cell = Cell.registry[name](5, 12).to(dtype)
    cell.learn_initial_state()
    x = torch.randn(4, 9, 5, dtype=dtype, requires_grad=True)
    state = tuple((s.detach() + 0.1).requires_grad_() for s in cell.start(x))
    return cell, ScanJob(
        x,
        state,
        lengths=torch.tensor([9, 0, 4, 7]),
        reset=torch.rand(4, 9) < 0.3,
        mask=2.0 * torch.randint(2, (4, 12)).to(dtype),
        keep=tuple(torch.rand(4, 9, 12, dtype=dtype) for _ in state),
    )


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name",
    # 11 s, since its loop is slow; test_every_setting_of_attn_rnn_is_in_its_kernels checks it with short sequences
    [pytest.param(name, marks=pytest.mark.long) if name == "attn_rnn_manual" else name for name in NAMED],
)
def test_a_kernel_passes_the_public_check(name):
    check_kernel(name, name.rpartition("_")[0])


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", [name for name in NAMED if not name.endswith("aten")])
def test_a_kernel_passes_the_public_check_in_float64(monkeypatch, name):
    monkeypatch.setattr(checking, "SHAPES", SHORT)
    check_kernel(name, name.rpartition("_")[0], torch.float64)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "settings",
    [
        {"heads": 1},
        {"heads": 2, "context": ("h", "x")},
        {"norm": False},
        {"context": ("h*x",)},
        {"context": ("x", "h+x")},
        {"slots": 3},
        {"input_norm": True},
        {"slots": 2, "heads": 2, "context": ("h", "x"), "norm": False},
    ],
)
@pytest.mark.parametrize("kernel", ["cpu", pytest.param("manual", marks=pytest.mark.slow)])
def test_every_setting_of_attn_rnn_is_in_its_kernels(monkeypatch, kernel, settings):
    monkeypatch.setattr(checking, "SHAPES", SHORT)
    check_kernel(f"attn_rnn_{kernel}", "attn_rnn", **settings)


@pytest.mark.slow
def test_the_engine_has_relu_and_no_bias(monkeypatch):
    monkeypatch.setattr(checking, "SHAPES", SHORT)
    check_kernel("rnn_cpu", "rnn", nonlinearity="relu")
    for name in ("rnn", "gru", "lstm"):
        check_kernel(f"{name}_cpu", name, bias=False)


@pytest.mark.parametrize("name", WHOLE)
def test_a_kernel_takes_resets_and_dropouts_and_gives_the_loops_second_derivatives(name):
    cell, job = asking(name.rpartition("_")[0])
    code, actual = find_kernel(name).code, []
    assert code.why_not(cell, job) is None
    for run in (any_loop.run, code.run):
        y, last = run(cell, job)
        leaves = [job.x, *job.state, *cell.parameters()]
        first = torch.autograd.grad(y.square().sum() + sum(s.sum() for s in last), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
        actual.append([y, *last, *first, *second])
    torch.testing.assert_close(actual[1], actual[0])
    assert first[-1].abs().sum() > 0  # resets use the start


@pytest.mark.parametrize("name", ENGINE)
def test_a_layer_with_dropouts_and_resets_stays_on_the_engine(name):
    noise = seqloom.Dropouts(recurrent=0.3, zoneout=0.2)
    layer = seqloom.Recurrent(name, 5, 8, batch_first=True, bidirectional=True, dropouts=noise)
    x, reset = torch.randn(3, 7, 5), torch.rand(3, 7) < 0.3
    assert set(seqloom.explain(layer, x, reset=reset).kernels) == {f"{name}_cpu"}
    actual = []
    for kind in ("cpu", "loop"):
        layer.kernel = kind
        torch.manual_seed(1)
        y, _ = layer(x, reset=reset, lengths=[7, 3, 5])
        actual.append([y, *torch.autograd.grad(y.square().sum(), list(layer.parameters()))])
    torch.testing.assert_close(actual[0], actual[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ENGINE)
def test_values_that_were_not_saved_are_recomputed_in_the_backward(name, monkeypatch):

    cell, job = asking(name)
    code, actual = find_kernel(f"{name}_cpu").code, []
    for limit in (heuristics.SAVED_BYTES, 0):
        monkeypatch.setattr(heuristics, "SAVED_BYTES", limit)
        y, last = code.run(cell, job)
        loss = y.square().sum() + sum(s.sum() for s in last)
        actual.append([y, *last, *torch.autograd.grad(loss, [job.x, *job.state, *cell.parameters()])])
    torch.testing.assert_close(actual[1], actual[0], rtol=1e-12, atol=1e-12)


class Faulty:
    """The loop with a fault planted in it."""

    def __init__(self, fault):
        self.fault, self.calls = fault, 0

    def why_not(self, cell, job):
        return None

    def run(self, cell, job):
        self.calls += 1
        y, last = any_loop.run(cell, job)
        if self.fault == "last state at the end":
            return y, (y[:, -1],)
        if self.fault == "no gradient to the first state":
            return any_loop.run(cell, ScanJob(job.x, tuple(s.detach() for s in job.state), job.lengths))
        if self.fault == "another result the second time":
            return y * (1 + 1e-4 * (self.calls % 2)), last
        if self.fault == "a step left unwritten":
            room = memory.empty_like(y)
            room[:, :-1] = y[:, :-1]
            return room, last
        if self.fault == "half precision inside":
            return y.bfloat16().to(y.dtype), last
        if self.fault in ("reset", "mask", "keep"):
            return any_loop.run(cell, replace(job, **{self.fault: () if self.fault == "keep" else None}))
        if self.fault == "no gradient to the start":
            view = (
                bind_weights(cell, {"initial_0": cell.start(job.x)[0][0].detach()}) if job.reset is not None else cell
            )
            return any_loop.run(view, job)
        return y, last


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "actual"),
    [
        ("last state at the end", "state 0 is"),
        ("no gradient to the first state", "dstate 0 is"),
        ("another result the second time", "y differs between two calls"),
        ("a step left unwritten", "y differs|y is"),
        ("half precision inside", "y is"),
        ("reset", "y is .*reset"),
        ("mask", "y is .*mask"),
        ("keep", "y is .*keep"),
        ("no gradient to the start", "dinitial_0 is .*reset"),
    ],
)
def test_a_planted_fault_is_found(monkeypatch, fault, actual):
    monkeypatch.setattr(checking, "SHAPES", SHORT)
    with pytest.raises(AssertionError, match=actual):
        check_kernel(Faulty(fault), "gru")


@pytest.mark.slow
def test_the_loop_itself_passes(monkeypatch):
    monkeypatch.setattr(checking, "SHAPES", SHORT)
    check_kernel(Faulty(""), "gru")


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("capability", OLDER_BUILDS)
def test_the_engine_is_correct_on_older_processors(capability):
    code = f"""
from seqloom.tools.testing import check_kernel, kernel
kernel.SHAPES = {((7, 5, 32, 64), *SHORT[1:])}
[check_kernel(name + "_cpu", name) for name in {ENGINE}]
kernel.SHAPES = {SHORT}
check_kernel("attn_rnn_cpu", "attn_rnn", slots=3)
"""
    one = {"ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": "1"}  # threads that wait for a busy core take minutes
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | one)


@pytest.mark.parametrize("name", ENGINE)
def test_two_threads_give_the_results_of_one(name):
    layer = seqloom.Recurrent(name, 8, 16, batch_first=True, kernel="cpu", dtype=torch.float64)
    x, actual = torch.randn(11, 20, 8, dtype=torch.float64), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        y, _ = layer(x, lengths=torch.arange(11) * 2)
        actual.append([y, *torch.autograd.grad(y.square().sum(), list(layer.parameters()))])
    torch.set_num_threads(2)
    y, _ = layer(x, lengths=torch.arange(11) * 2)
    torch.set_num_threads(1)  # between forward and backward
    actual.append([y, *torch.autograd.grad(y.square().sum(), list(layer.parameters()))])
    torch.testing.assert_close(actual[1], actual[0])  # torch's own products may round differently
    torch.testing.assert_close(actual[2], actual[1])


def test_a_hundred_thousand_steps_match_the_loop():
    layer = seqloom.AttnRNN(16, 16, batch_first=True, kernel="cpu", gate_bias=-3.0)
    x = torch.randn(1, 100_000, 16)
    y, _ = layer(x)
    y[:, -1].sum().backward()
    short = layer(x[:, :1000])[0]
    torch.testing.assert_close(y[:, :1000], short)
    assert torch.isfinite(layer.weight_q_l0.grad).all()


def test_the_fast_kernel_really_runs():
    x = torch.randn(3, 7, 5)
    for kind, kernels in (
        (seqloom.GRU, {"gru_cpu"}),
        (seqloom.AttnRNN, {"attn_rnn_cpu"}),
        (seqloom.LSTM, {"lstm_aten"} if platform.machine() in ("x86_64", "AMD64") else {"lstm_cpu"}),
    ):
        assert set(seqloom.explain(kind(5, 8, batch_first=True), x).kernels) == kernels
    assert set(seqloom.explain(seqloom.LSTM(5, 8, batch_first=True), x, lengths=[7, 1, 3]).kernels) == {"lstm_cpu"}


def test_the_engine_refuses_sizes_that_do_not_fit():
    """The engine reads memory by address, so a wrong size must never reach it."""
    cell = seqloom.AttnRNNCell(8, 8)
    x, h = torch.randn(2, 5, 8), torch.zeros(2, 8)
    code = find_kernel("attn_rnn_cpu").code
    assert code.why_not(cell, ScanJob(x, (h,))) is None
    for job in (
        ScanJob(x[..., :6], (h,)),
        ScanJob(x, (h[:1],)),
        ScanJob(x, (h.double(),)),
        ScanJob(x, (h,), torch.tensor([5])),
        ScanJob(x.double(), (h.double(),)),
        ScanJob(x, (h,), reset=torch.zeros(2, 4, dtype=torch.bool)),
        ScanJob(x, (h,), mask=torch.ones(2, 7)),
        ScanJob(x, (h,), keep=(torch.zeros(2, 5, 7),)),
        ScanJob(x, (h,), keep=(torch.zeros(2, 5, 8),) * 2),
        ScanJob(x, (h,), mask=torch.ones(2, 8, requires_grad=True)),
    ):
        assert code.why_not(cell, job) is not None


@pytest.mark.parametrize("name", ENGINE)
def test_weights_may_have_any_memory_layout(name):
    layer = seqloom.Recurrent(name, 6, 8, batch_first=True)
    x = torch.randn(3, 7, 6)
    expected = layer(x)[0]
    for key, p in list(layer.named_parameters()):
        if p.dim() == 2:
            setattr(layer, key, torch.nn.Parameter(p.detach().t().contiguous().t()))
    layer.kernel = "cpu"
    torch.testing.assert_close(layer(x)[0], expected)
    layer(x)[0].sum().backward()


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Replace the folder of the engine by an empty one."""
    monkeypatch.setattr(engine, "LIB", tmp_path)
    engine.load_library.cache_clear()
    yield tmp_path
    engine.load_library.cache_clear()


def test_without_its_library_the_engine_says_why(installed):
    layer = seqloom.AttnRNN(5, 8)
    text = str(seqloom.explain(layer, torch.randn(3, 2, 5)))
    assert "l0: attn_rnn_manual" in text and "installed without its CPU engine" in text
    layer.kernel = "cpu"
    with pytest.raises(ValueError, match=r"attn_rnn_cpu.*cannot run this.*without its CPU engine"):
        layer(torch.randn(3, 2, 5))


def test_an_engine_that_could_not_be_built_gives_the_compilers_reason(installed):
    report = {"compiler": None, "built": [], "failed": {"all": "no C++ compiler was found; install g++ or clang++"}}
    (installed / "build.json").write_text(json.dumps(report))
    assert engine.load_library() == "no C++ compiler was found; install g++ or clang++"


def test_a_library_for_another_machine_is_reported_with_the_remedy(installed):
    (installed / "engine_default.so").write_bytes(b"\x7fELF" + bytes(60))
    assert re.fullmatch(
        r"engine_default.so cannot be loaded \(.*\); install seqloom again on this machine", engine.load_library()
    )
    y, _ = seqloom.GRU(5, 8)(torch.randn(3, 2, 5))  # torch's own kernel runs instead
    assert y.shape == (3, 2, 8)


@pytest.mark.long
def test_the_compiled_scan_of_any_cell_is_the_loop():
    cell = seqloom.LSTMCell(5, 8)  # whose state is two tensors
    x = torch.randn(3, 7, 5)
    for lengths in (None, torch.tensor([7, 0, 3])):
        for ours, loop in zip(
            parts(cell, x, lengths, any_scan.run), parts(cell, x, lengths, any_loop.run), strict=True
        ):
            torch.testing.assert_close(ours, loop, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for p in cell.parameters():
            p.mul_(0.5)
    torch.testing.assert_close(
        any_scan.run(cell, ScanJob(x, cell.start(x)))[0], any_loop.run(cell, ScanJob(x, cell.start(x)))[0]
    )


def test_a_named_kernel_runs_or_raises_with_the_reason():
    layer = seqloom.GRU(3, 4, kernel="aten", reset_after=False)
    with pytest.raises(ValueError, match=r"gru_aten.*reset_after"):
        layer(torch.randn(2, 1, 3))


def test_a_subclass_of_a_cell_does_not_run_on_its_parents_kernel():
    class Other(seqloom.GRUCell):
        def step(self, x, state):
            return state[0] + 1, (state[0] + 1,)

    layer = seqloom.Recurrent(Other, 3, 4)
    y, _ = layer(torch.randn(5, 1, 3))
    assert torch.equal(y[:, 0, 0], torch.arange(1.0, 6.0))
    assert set(seqloom.explain(layer, torch.randn(5, 1, 3)).kernels) == {"any_compiled"}


def test_every_kernel_belongs_to_a_registered_cell_and_a_known_backend():
    for name in [k.name for k in KERNELS]:
        cell, _, backend = name.rpartition("_")
        assert cell in {*Cell.registry, "any"} and backend in {k.backend for k in KERNELS}
