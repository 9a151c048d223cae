"""Prepared calls of the gated GPU kernels, emulated on the CPU: the same bits as the calls that they replace."""

import pytest
import torch

import seqloom
from seqloom.kernels import tuning
from seqloom.kernels.cuda.gated import plan, prepared
from seqloom.kernels.cuda.products import exact
from seqloom.kernels.cuda.runtime import graphs, recorded
from seqloom.kernels.dispatch import TOGETHER
from seqloom.kernels.kernel_plan import KernelPlan
from seqloom.kernels.registry import find_kernel
from seqloom.kernels.stack import Stack

pytestmark = pytest.mark.usefixtures("emulated")
H, BF16, FP32 = 16, torch.bfloat16, torch.float32


def make_plans(name, dtype, shape, amp=None, **settings):
    """Return a layer, its prepared plan and one that runs the kernel's ordinary calls."""
    units = settings.pop("units", H)
    layer = getattr(seqloom, name)(shape[-1], units * settings.get("heads", 1), kernel="loop", dtype=dtype, **settings)
    for key, w in layer.named_parameters():
        if "scale" in key:
            w.data.mul_(1 + 0.2 * torch.randn_like(w))
    home, cells = {name: i for i, name in enumerate(layer._parameters)}, list(layer.cells)
    names = [{mine: home[theirs] for mine, theirs in c._names.items()} for c in cells]
    stack, weights = Stack(cells, names, torch.Size(shape), layer.batch_first, 1), list(layer.parameters())
    assert plan.why_not_plan(cells, stack.B) is None
    kernel = f"{cells[0].name}_cuda"
    kernels = [TOGETHER if "heads" in settings else find_kernel(kernel)] * len(cells)
    ready = plan.GatedPlan(stack, [kernel.code for kernel in kernels], weights, "cuda", amp)
    return layer, ready, KernelPlan(stack, kernels)


class Loop:
    """A plan that calls the layer itself."""

    def __init__(self, layer):
        self.layer = layer

    def run(self, x, hx, weights, train):
        return self.layer(x, *hx)


def run(one, layer, x, hx, train):
    """Return the outputs, the last states and, with `train`, every gradient."""
    weights = list(layer.parameters())
    leaves = [x.detach().requires_grad_(), *(s.detach().requires_grad_() for s in hx), *weights]
    if not train:
        with torch.no_grad():
            y, last = one.run(x, hx, weights, False)
        return [y, *(last if isinstance(last, tuple) else [last])]
    y, last = one.run(leaves[0], leaves[1 : 1 + len(hx)], weights, True)
    ends = last if isinstance(last, tuple) else [last]
    loss = y.float().square().sum() + sum(s.float().sin().sum() for s in ends)
    return [y, *ends, *torch.autograd.grad(loss, leaves)]


CASES = [
    ("GRU", BF16, (5, 3, 16), {}),
    ("LSTM", FP32, (5, 3, 6), {"batch_first": True, "num_layers": 2}),
    ("RNN", FP32, (5, 6), {"bias": False}),
    ("LSTM", BF16, (3, 16, 6), {"heads": 2}),
    ("LSTM", FP32, (4, 3, 6), {"units": 10, "num_layers": 2}),
    ("LNLSTM", BF16, (4, 3, 6), {}),
    pytest.param("LNGRU", BF16, (3, 4, 6), {"batch_first": True, "num_layers": 2}, marks=pytest.mark.long),
    pytest.param("GRU", FP32, (16, 3, 6), {"heads": 3, "batch_first": True, "num_layers": 2}, marks=pytest.mark.long),
    pytest.param("LSTM", BF16, (5, 3, 16), {"num_layers": 2}, marks=pytest.mark.long),
    pytest.param("GRU", FP32, (4, 9, 6), {"batch_first": True}, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("name", "dtype", "shape", "settings"), CASES)
def test_a_prepared_call_has_the_results_of_an_ordinary_one(name, dtype, shape, settings):
    layer, ready, ordinary = make_plans(name, dtype, shape, **settings)
    x = torch.randn(shape, dtype=dtype)
    given = [torch.randn(s, dtype=dtype) for s in ready.h_shapes]
    for hx in ([], given):
        for train in (False, True):
            actual, expected = (run(one, layer, x, hx, train) for one in (ready, ordinary))
            ends = 1 + len(ready.h_shapes)
            torch.testing.assert_close(actual[:ends], expected[:ends], rtol=0, atol=0)
            for mine, theirs in zip(actual[ends:], expected[ends:], strict=True):  # products have another order
                assert (mine - theirs).norm() < (2e-5 if dtype == FP32 else 2e-2) * theirs.norm() + 1e-6


def test_products_in_halves_are_as_exact_as_those_of_torch(monkeypatch):
    layer, ready, _ = make_plans("GRU", FP32, (5, 9, 24))
    x, given = torch.randn(5, 9, 24), [torch.randn(s) for s in ready.h_shapes]
    usual = run(ready, layer, x, given, True)
    sizes = []
    monkeypatch.setattr(exact, "is_faster", lambda _, *size: not sizes.append(size))
    in_halves = run(ready, layer, x, given, True)
    assert sizes == [(45, 48, 24), (45, 48, 16), (45, 48, 24)]  # of the input, of weight_hh, of the gradients
    wide = layer.double()
    true = run(Loop(wide), wide, x.double(), [s.double() for s in given], True)
    for mine, theirs, exactly in zip(in_halves, usual, true, strict=True):
        assert not torch.equal(mine, theirs)
        assert (mine - exactly).norm() < 1.5 * (theirs - exactly).norm() + 1e-8 * exactly.norm()


@pytest.mark.parametrize(
    ("name", "shape", "in_halves"), [("GRU", (5, 2, 8), False), ("GRU", (5, 2, 8), True), ("LSTM", (2, 5, 8), True)]
)
def test_a_pass_in_chunks_has_the_gradients_of_a_whole_one(name, shape, in_halves, monkeypatch):
    monkeypatch.setattr(exact, "is_faster", lambda *_: in_halves)
    layer, ready, _ = make_plans(name, FP32, shape, batch_first=name == "LSTM")
    x, given = torch.randn(shape), [torch.randn(s) for s in ready.h_shapes]
    whole = run(ready, layer, x, given, True)
    monkeypatch.setattr(tuning, "GATED_CHUNK_NUMBERS", H // 4)  # two steps
    torch.testing.assert_close(run(ready, layer, x, given, True), whole)


def test_a_prepared_call_has_second_derivatives_and_takes_missing_gradients():
    layer, ready, _ = make_plans("LSTM", FP32, (4, 2, 6))
    x, weights = torch.randn(4, 2, 6, requires_grad=True), list(layer.parameters())
    for which in (0, 2):  # the outputs alone, the last memory alone
        grads = []
        for y, last in (ready.run(x, [], weights, True), layer(x)):
            grads.append(torch.autograd.grad((y, *last)[which].sum(), x))
        torch.testing.assert_close(*grads)
    (mine,) = torch.autograd.grad(ready.run(x, [], weights, True)[0].sum(), x, create_graph=True)
    (slow,) = torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)
    more = [torch.autograd.grad(d.square().sum(), [x, *weights], allow_unused=True) for d in (mine, slow)]
    torch.testing.assert_close(*more)


@pytest.mark.parametrize(("name", "dtype", "amp"), [("GRU", FP32, None), ("LSTM", FP32, BF16), ("LNLSTM", BF16, None)])
@pytest.mark.parametrize("is_recorded", [False, True])
def test_weights_that_move_between_the_passes_are_read_where_they_are(
    monkeypatch, move_weights, name, dtype, amp, is_recorded
):
    if is_recorded:
        monkeypatch.setattr(tuning, "RUNS_BEFORE_RECORDING", 1)
        monkeypatch.setattr(graphs, "_record_launches", Replayed)
        monkeypatch.setattr(prepared.PreparedGated, "_find_recording_stream", lambda _: 7)
    layer, ready, _ = make_plans(name, dtype, (3, 2, 16), amp=amp)
    x, weights = torch.randn(3, 2, 16, dtype=dtype, requires_grad=True), list(layer.parameters())
    with torch.autocast("cpu", BF16, enabled=amp is not None):
        loss = ready.run(x, [], weights, True)[0].float().square().sum()
    expected = torch.autograd.grad(loss, [x, *weights], retain_graph=True)
    for moves in range(3):  # once, twice, and then not
        if moves < 2:
            move_weights(weights)
        actual = torch.autograd.grad(loss, [x, *weights], retain_graph=True)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_frozen_weights_get_no_gradient(monkeypatch):
    monkeypatch.setattr(tuning, "GATED_CHUNK_NUMBERS", 1)  # many chunks
    layer, ready, ordinary = make_plans("GRU", FP32, (7, 2, 6))
    layer.weight_ih_l0.requires_grad_(False)
    x, weights = torch.randn(7, 2, 6), list(layer.parameters())
    found = []
    for one in (ready, ordinary):
        layer.zero_grad()
        one.run(x, [], weights, True)[0].square().sum().backward()
        assert layer.weight_ih_l0.grad is None
        found.append([w.grad for w in weights[1:]])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("name", "x_dtype", "is_recorded"), [("LSTM", FP32, False), ("LSTM", BF16, True), ("LNLSTM", FP32, False)]
)
def test_a_prepared_call_under_autocast_has_the_results_of_an_ordinary_one(name, x_dtype, is_recorded, monkeypatch):
    if is_recorded:
        monkeypatch.setattr(graphs, "_record_launches", Replayed)
        monkeypatch.setattr(prepared.PreparedGated, "_find_recording_stream", lambda _: 7)
        monkeypatch.setattr(tuning, "RUNS_BEFORE_RECORDING", 1)
    layer, ready, ordinary = make_plans(name, FP32, (3, 2, 16), amp=BF16)
    weights = list(layer.parameters())
    for given in (False, True):
        x = torch.randn(3, 2, 16).to(x_dtype).requires_grad_()
        hx = [torch.randn(s, requires_grad=True) for s in ready.h_shapes] if given else []
        results = []
        for one, source in ((ready, x), (ordinary, x.float())):  # the layer casts x to the type of its weights
            first = hx or [torch.zeros(s) for s in ready.h_shapes]
            with torch.autocast("cpu", BF16):
                y, (h, c) = one.run(source, hx if one is ready else first, weights, True)
            assert y.dtype == BF16 and h.dtype == c.dtype == FP32
            loss = y.float().square().sum() + h.sin().sum() + c.sum()
            with torch.autocast("cpu", BF16):  # some call backward inside
                results.append([y, h, c, *torch.autograd.grad(loss, [x, *hx, *weights])])
        if name == "LSTM":
            torch.testing.assert_close(results[0][:3], results[1][:3], rtol=0, atol=0)
        for mine, theirs in zip(*results, strict=True):
            assert mine.dtype == theirs.dtype and (mine - theirs).norm() < 2e-2 * theirs.norm()


def test_second_derivatives_under_autocast_are_those_of_the_loop():
    layer, ready, _ = make_plans("GRU", FP32, (3, 2, 6), amp=BF16)
    x, weights = torch.randn(3, 2, 6, requires_grad=True), list(layer.parameters())
    with torch.autocast("cpu", BF16):
        y = ready.run(x, [], weights, True)[0]
    (mine,) = torch.autograd.grad(y.float().sum(), x, create_graph=True)
    (slow,) = torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)
    more = [torch.autograd.grad(d.square().sum(), [x, *weights], allow_unused=True) for d in (mine, slow)]
    for a, b in zip(*more, strict=True):
        assert (a is None) == (b is None) or (b is not None and b.abs().max() == 0)
        assert a is None or (a - b).norm() <= 0.02 * b.norm()


class Replayed:
    """In place of a CUDA graph, which a CPU does not have: makes the launches again."""

    def __init__(self, launch):
        self.replay = launch
        launch()


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "settings"),
    [
        ("LSTM", BF16, (3, 2, 6), {"num_layers": 2}),
        ("GRU", FP32, (3, 16, 6), {"heads": 2, "batch_first": False}),
        ("RNN", FP32, (2, 3, 6), {"units": 10, "bias": False, "batch_first": True}),
    ],
)
def test_recorded_passes_read_and_write_memory_of_the_call(name, dtype, shape, settings, monkeypatch):
    monkeypatch.setattr(graphs, "_record_launches", Replayed)
    monkeypatch.setattr(prepared.PreparedGated, "_find_recording_stream", lambda _: 7)
    monkeypatch.setattr(tuning, "RUNS_BEFORE_RECORDING", 2)
    layer, ready, ordinary = make_plans(name, dtype, shape, **settings)
    found = []
    for i in range(5):
        x = torch.randn(shape, dtype=dtype)
        hx = [torch.randn(s, dtype=dtype) for s in ready.h_shapes] if i != 2 else []  # another form once
        found.append([run(one, layer, x, hx, True) for one in (ready, ordinary)])
        with torch.no_grad():
            layer.weight_hh_l0.mul_(1.1)  # in place, as an optimiser does
    assert all(c.recorder.kept is not None and c.back_recorder.kept is not None for c in ready.cells)
    for actual, expected in found:  # those of earlier passes were not overwritten
        for mine, theirs in zip(actual, expected, strict=True):  # a prepared pass rounds sums that it keeps
            assert (mine - theirs).norm() < (2e-5 if dtype == FP32 else 2e-2) * theirs.norm() + 1e-6


def test_weights_elsewhere_and_other_switches_discard_a_recorded_pass(monkeypatch):
    monkeypatch.setattr(graphs, "_record_launches", Replayed)
    monkeypatch.setattr(prepared.PreparedGated, "_find_recording_stream", lambda _: 7)
    monkeypatch.setattr(tuning, "RUNS_BEFORE_RECORDING", 2)
    layer, ready, _ = make_plans("GRU", FP32, (2, 2, 6))
    x, (cell,) = torch.randn(2, 2, 6), ready.cells

    def record():
        for _ in range(2):
            run(ready, layer, x, [], True)
        assert cell.recorder.kept is not None and cell.back_recorder.kept is not None

    record()
    layer.weight_hh_l0.data = layer.weight_hh_l0.detach().clone()
    run(ready, layer, x, [], True)
    assert cell.recorder.kept is None and cell.back_recorder.kept is None
    record()
    monkeypatch.setattr(prepared, "product_flags", lambda: ("others",))
    run(ready, layer, x, [], True)
    assert cell.recorder.kept is None and cell.back_recorder.kept is None


def test_the_oldest_recorded_passes_are_discarded_when_memory_is_short(monkeypatch):
    monkeypatch.setattr(graphs, "_record_launches", Replayed)
    monkeypatch.setattr(tuning, "RUNS_BEFORE_RECORDING", 1)
    monkeypatch.setattr(recorded, "_read_room", lambda _: tuning.RECORDED_SHARE * 100)
    share = tuning.RECORDED_SHARE
    recorders = [recorded.Recorder(torch.device("cpu"), size, share) for size in (40, 40, 60, 101)]
    for recorder in recorders:
        (twice,) = recorder.run(lambda tensors: [2 * tensors[0]], "key", [torch.ones(3)])
        assert twice.tolist() == [2, 2, 2]
    assert [recorder.kept is not None for recorder in recorders] == [False, True, True, False]


def test_cells_without_a_prepared_call_are_named():
    layers = seqloom.GRU(4, H, learn_initial_state=True), seqloom.GRU(4, H + 2, heads=2), seqloom.MinGRU(4, H)
    for layer in layers:
        assert plan.why_not_plan(list(layer.cells), 16)
    assert plan.why_not_plan(list(seqloom.GRU(4, 2 * H, heads=2).cells), 3)
