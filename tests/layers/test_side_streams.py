"""Work passed to another stream, without a GPU: the same results, and gradients that return through views."""

from contextlib import contextmanager

import pytest
import torch

import seqloom.cells  # noqa: F401  (fills the registry)
from seqloom.cells.lookup import find_cell
from seqloom.core.cell import Cell
from seqloom.core.job import ScanJob
from seqloom.kernels import loop
from seqloom.kernels.runner import run_job
from seqloom.layers.dropouts import Dropouts
from seqloom.layers.recurrent.gpu import streams, wavefront
from seqloom.layers.recurrent.gpu.streams import CellJob, StreamContext, pass_to_stream
from seqloom.layers.recurrent.layer import Recurrent


@pytest.fixture(autouse=True)
def _without_plans(monkeypatch):
    """Run every call as one that has no plan: plans use no streams."""
    monkeypatch.setattr("seqloom.layers.recurrent.layer.try_plan", lambda *_: None)


def work(name, B=3, T=5):
    torch.manual_seed(0)
    cell = find_cell(name)(6, 16, dtype=torch.float64)
    cell.learn_initial_state()
    x = torch.randn(B, T, 6, dtype=torch.float64, requires_grad=True)
    lengths, reset = torch.tensor([T, 0, T - 2]), torch.rand(B, T) < 0.3
    dt = torch.rand(B, T, dtype=torch.float64, requires_grad=True) if "dt" in cell.takes else None
    return CellJob(cell, ScanJob(x, cell.start(x), lengths, reset, dt), {})


def leaves(one):
    return [t for t in (one.job.x, one.job.dt, *one.cell.parameters()) if t is not None]


def run(one, kernel="auto"):
    y, state = run_job(one.cell, one.job, kernel, one.values)
    return y, sum(t.square().sum() for t in (y, *state))


@pytest.mark.parametrize("name", sorted(Cell.registry))
def test_work_on_another_stream_has_the_same_outputs_and_gradients(name):
    one = work(name)
    actual = []
    for each in (one, pass_to_stream(one, None)):
        y, loss = run(each)
        actual.append([y.detach(), *torch.autograd.grad(loss, leaves(one), allow_unused=True, retain_graph=True)])
    for plain, lent in zip(*actual, strict=True):
        assert (plain is None) == (lent is None)
        assert plain is None or torch.equal(plain, lent)


@pytest.mark.parametrize("name", sorted(Cell.registry))
def test_gradients_from_another_stream_reach_parameters_through_views_only(name):
    one = work(name)
    _, loss = run(pass_to_stream(one, None), "loop")
    seen, ahead, reached = set(), [loss.grad_fn], 0
    while ahead:
        node = ahead.pop()
        for after, _ in node.next_functions:
            if after is not None and type(after).__name__ == "AccumulateGrad":
                reached += 1
                started = ("ExpandBackward0", "SoftmaxBackward0")  # the start, made before
                assert type(node).__name__ in ("ViewBackward0", *started), node
            elif after is not None and after not in seen:
                seen.add(after)
                ahead.append(after)
    assert reached >= len(list(one.cell.parameters()))


def test_no_views_are_made_without_gradients():
    one = work("gru")
    with torch.no_grad():
        lent = pass_to_stream(one, None)
    assert lent.job.x is one.job.x and lent.values["weight_hh"] is one.cell.weight_hh


def test_a_view_shares_the_compiled_kernels_of_its_cell(monkeypatch):
    one, seen = work("gru"), []
    monkeypatch.setattr(loop, "run", lambda cell, job: (seen.append(cell), (job.x, job.state))[1])
    run(pass_to_stream(one, None), "loop")
    assert seen[0] is not one.cell and seen[0].handle == one.cell.handle


@pytest.mark.parametrize("noise", [None, 7])
def test_a_second_direction_on_another_stream_gives_the_same_results(noise, monkeypatch):
    drawn = Dropouts() if noise is None else Dropouts(recurrent=0.2, zoneout=0.1, weight=0.3)
    layer = Recurrent("attn_rnn", 6, 16, 2, bidirectional=True, dtype=torch.float64, dropouts=drawn)
    x = torch.randn(9, 3, 6, dtype=torch.float64, requires_grad=True)
    actual = []
    for _ in range(2):
        torch.manual_seed(7)
        y, h = layer(x, lengths=[9, 4, 0])
        actual.append([y, h, *torch.autograd.grad(y.square().sum() + h.sum(), [x, *layer.parameters()])])
        monkeypatch.setattr("seqloom.layers.recurrent.layer.assign_streams", _lending)
    for plain, lent in zip(*actual, strict=True):
        assert torch.equal(plain, lent)


class Stream:
    """A stream that only logs who waits for whom, and who works."""

    def __init__(self, name, log):
        self.name, self.log, self.device_index, self.stream_id = name, log, 0, 0

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def log(monkeypatch):
    """Return the log of a machine that pretends to have streams."""
    actual = []

    @contextmanager
    def working(stream):
        actual.append(f"{stream.name} works")
        yield

    monkeypatch.setattr(streams, "can_use_streams", lambda *_: True)
    monkeypatch.setattr(streams, "_stream", lambda *key: Stream(f"stream {key[-1]}", actual))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream("main", actual))
    monkeypatch.setattr(torch.cuda, "stream", working)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _, stream: actual.append(f"{stream.name} reads"))
    return actual


def test_the_second_direction_waits_for_earlier_work_and_later_work_waits_for_it(log):
    layer = Recurrent("gru", 6, 16, bidirectional=True)
    layer(torch.randn(9, 3, 6))
    assert log == ["stream 1 waits for main", "main works", "stream 1 works", "main waits for stream 1"]


def test_work_after_an_error_waits_too(log):
    one = work("gru")
    with pytest.raises(ZeroDivisionError), streams.assign_streams([one, one]) as placed, placed[1][0]:
        raise ZeroDivisionError
    assert log[-1] == "main waits for stream 1"


def test_a_layer_of_a_wave_waits_for_the_one_below_and_for_no_other(log, monkeypatch):
    for name, value in (("CHUNK_STEPS", 3), ("leaves_room", lambda *_: True)):
        monkeypatch.setattr(wavefront, name, value)
    layer = Recurrent("gru", 6, 16, 3)
    with monkeypatch.context() as patch:
        patch.setattr("seqloom.layers.recurrent.layer.should_use_wavefront", lambda *_: True)
        layer(torch.randn(6, 3, 6))
    second = ["stream 1 works", "stream 1 waits for main", "stream 1 reads"]
    third = ["stream 2 works", "stream 2 waits for stream 1", "stream 2 reads"]
    begin, end = (
        ["stream 1 waits for main", "stream 2 waits for main"],
        ["main waits for stream 1", "main waits for stream 2"],
    )
    assert log == [*begin, *(["main works", *second, *third] * 2), *end]


@contextmanager
def _lending(works):
    """Replace `assign_streams` by a version without streams."""
    first, *rest = works
    yield [(StreamContext(), first), *((StreamContext(), pass_to_stream(one, None)) for one in rest)]
