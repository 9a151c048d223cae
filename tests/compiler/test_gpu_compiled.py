"""Compiled programs on a real GPU: products by cuBLAS, generated kernels, recorded graphs. Run by `make test-gpu`."""

from dataclasses import replace

import pytest
import test_cuda_programs as programs
import torch
import torch.nn.functional as F
from test_compiled import of_every_cell
from torch import nn

import seqloom
from seqloom.core.job import ScanJob
from seqloom.kernels import heuristics
from seqloom.tools.testing import check_kernel
from seqloom.tools.testing import kernel as checking

pytestmark = pytest.mark.gpu
BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
NAMES = ["indrnn", "min_gru", "gru", "lstm", "ln_lstm", "two stages", "heads"]


@pytest.fixture(autouse=True)
def _exact():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def job_of(cell, dtype, B, T, ragged):
    """A job on the GPU; its weights are drawn on the CPU."""
    job = programs.job_of(cell, dtype, B, T)
    lengths = torch.randint(0, T + 1, (B,)).cuda() if ragged else None
    return ScanJob(job.x.cuda(), tuple(s.cuda() for s in job.state), lengths)


@pytest.fixture
def form(request, monkeypatch):
    """How products run: by cuBLAS, or in a kernel that runs all steps."""
    if request.param == "library":
        monkeypatch.setattr(heuristics, "COMPILED_WEIGHTS", 0)


@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("name", [*NAMES, "ntm"])
@pytest.mark.parametrize("form", ["library", "kernel"], indirect=True)
def test_a_compiled_cell_is_at_most_twice_as_far_from_float64_as_the_loop(form, name, dtype, ragged):
    if name == "ntm" and dtype == FP16:
        pytest.skip("the loop overflows")
    cell = programs.cell_of(name, H=64, D=20)
    # with more steps, states of IndRNN exceed 65,504, and errors of a normalised LSTM grow without bound in any order
    steps = 20 if (name, dtype) == ("indrnn", FP16) else 15 if name == "ln_lstm" else 75
    draws = 8 if name == "ln_lstm" else 1  # its ratios vary from 0.3 to 3 between draws of the input
    ratio, part = programs.worst(cell, dtype, *(job_of(cell, dtype, 33, steps, ragged) for _ in range(draws)))
    assert ratio < 2, part


@pytest.mark.parametrize(("B", "H"), [(1, 128), (5, 100), (33, 128), (65, 64), (300, 33), (1000, 16)])
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_blocks_of_one_to_eight_rows_agree_with_the_loop(B, H, dtype):
    cell = programs.cell_of("two stages", H=H, D=20)
    ratio, part = programs.worst(cell, dtype, job_of(cell, dtype, B, 30, True))
    assert ratio < 2, part


# torch computes their layer norms, operator by operator: in float32 up to 2.8 times as far off as its own
NORMS_OF_OUTPUTS = ("NormOfBoth", "Fresh")


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize(
    "kind", [one for one in of_every_cell() if one.id != "PlainTensor"]
)  # its tensor stays on the CPU
def test_every_cell_passes_a_short_form_of_the_public_check(monkeypatch, request, kind, dtype):
    if kind.__name__ in NORMS_OF_OUTPUTS:
        request.applymarker(pytest.mark.xfail(reason="a layer norm of the output is less precise than torch's"))
    jobs = [((3, 5, 7, 20), True, ()), ((9, 12, 16, 32), False, checking.OPTIONS), ((40, 30, 16, 64), True, ())]
    monkeypatch.setattr(checking, "_jobs", lambda: iter(jobs))
    check_kernel("any_compiled", kind, dtype, "cuda")


def test_float64_agrees_with_the_loop():
    cell = programs.cell_of("gru", H=40).double().cuda()
    job = job_of(programs.cell_of("gru", H=40), FP64, 9, 50, True)
    mine, loops = (programs.everything(run, cell, job) for run in (programs.run_compiled, programs.loop.run))
    for name, value in loops.items():
        assert (mine[name] - value).norm() <= 1e-12 * value.norm(), name


def test_one_recording_serves_other_weights_lengths_and_inputs():
    first, second = (programs.cell_of("gru", H=32).cuda() for _ in range(2))
    with torch.no_grad():
        for p in second.parameters():
            p.mul_(0.5)
    for T in (70, 40, 70):
        for cell in (first, second):
            job = job_of(programs.cell_of("gru", H=32), FP32, 17, T, True)
            mine, loops = (programs.everything(run, cell, job) for run in (programs.run_compiled, programs.loop.run))
            for name, value in loops.items():
                assert (mine[name] - value).norm() <= 1e-4 * value.norm().clamp(min=1e-3), name


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("form", ["library", "kernel"], indirect=True)
def test_a_full_batch_is_run_without_waiting_for_the_gpu(form):
    cell = programs.cell_of("gru", H=32).cuda()
    job = job_of(programs.cell_of("gru", H=32), FP32, 17, 40, False)
    compiled = programs.compile_for(cell, job)
    for _ in range(2):  # the first one records
        y, _ = programs.run_compiled(cell, job, compiled)
        y.sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        y, _ = programs.run_compiled(cell, job, compiled)
        y.sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_values_past_a_length_have_no_effect():
    cell = programs.cell_of("two stages", H=32).cuda()
    job = job_of(programs.cell_of("two stages", H=32), FP32, 17, 40, True)
    other = replace(job, x=job.x.masked_fill(~job.valid_steps().unsqueeze(-1), torch.nan))
    (y, last), (again, same) = (programs.run_compiled(cell, j) for j in (job, other))
    assert torch.equal(y, again) and torch.equal(last[0], same[0])


def test_under_autocast_a_program_runs_in_the_type_of_the_weights():
    layer = seqloom.Recurrent(programs.TwoStages, 20, 32, batch_first=True, device="cuda")
    x = torch.randn(5, 30, 20, device="cuda")
    exact, _ = layer(x)
    with torch.autocast("cuda", BF16):
        assert seqloom.explain(layer, x).kernels == ("any_compiled",)
        for given in (x, x.to(BF16)):
            y, _ = layer(given)
            y.float().sum().backward()
            assert (y - exact).norm() <= 0.01 * exact.norm()


@pytest.mark.parametrize("H", [130, 256])
def test_a_float32_gru_above_128_units_runs_compiled(H):
    layer = seqloom.GRU(20, H, batch_first=True, device="cuda", kernel="row")
    slow = seqloom.GRU(20, H, batch_first=True, device="cuda", kernel="aten")
    slow.load_state_dict(layer.state_dict())
    x, lengths = torch.randn(9, 50, 20, device="cuda"), torch.randint(1, 51, (9,))
    assert seqloom.explain(layer, x, lengths=lengths).kernels == ("gru_row",)
    results = []
    for one in (layer, slow):
        y, _ = one(x, lengths=lengths)
        y.square().sum().backward()
        results.append([y, *(p.grad for p in one.parameters())])
    for mine, theirs in zip(*results, strict=True):
        assert (mine - theirs).norm() <= 1e-4 * theirs.norm()


def test_a_first_call_draws_no_numbers_for_its_checks():
    class Noisy(seqloom.Cell):
        def __init__(self, input_size, hidden_size):
            super().__init__(input_size, hidden_size)
            self.w, self.u = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, hidden_size)

        def step(self, x, state):
            h = torch.tanh(self.w(x) + self.u(*state)) + 0.1 * torch.randn_like(state[0])
            return F.dropout(h, 0.3, self.training), (h,)

    layer, x = seqloom.Recurrent(Noisy, 3, 4, device="cuda"), torch.randn(20, 5, 3, device="cuda")
    outputs = []
    for kernel in ("compiled", "compiled", "loop"):
        layer.kernel = kernel
        torch.manual_seed(3)
        outputs.append(layer(x)[0])
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=0)
    torch.testing.assert_close(outputs[0], outputs[2], rtol=1e-5, atol=1e-6)


DROPPED = {
    "x": lambda x, h: torch.tanh(F.dropout(x, 0.3) + h),
    "a part of x": lambda x, h: torch.tanh(h + F.pad(F.dropout(x[:, 1:], 0.3), (0, 1))),
    "a half of the state": lambda x, h: torch.tanh(torch.cat([F.dropout(h.chunk(2, -1)[1], 0.3), h[:, :3]], -1) + x),
    "a sum": lambda x, h: torch.tanh(F.dropout(x + h, 0.3)),
}


@pytest.mark.parametrize("rows", [1, 3, 4])
@pytest.mark.parametrize("step", DROPPED.values(), ids=DROPPED)
def test_dropout_draws_the_numbers_of_the_loop_in_every_layout(step, rows):
    class Dropped(seqloom.Cell):
        def step(self, x, state):
            h = step(x, state[0])
            return h, (h,)

    layer = seqloom.Recurrent(Dropped, 6, 6, device="cuda", batch_first=True)
    x, h0 = torch.randn(rows, 5, 6, device="cuda"), torch.randn(2, rows, 6, device="cuda")[1:]
    for settings in ({}, {"lengths": [5, 2, 4, 3][:rows]}):
        outputs = []
        for kernel in ("compiled", "loop"):
            layer.kernel = kernel
            torch.manual_seed(3)
            outputs.append(layer(x, h0, **settings)[0])
        torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-6)
