"""Prepared calls of the gated GPU kernels, emulated on the CPU: the same bits as the calls that they replace."""

import weakref

import pytest
import torch

import seqloom
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.gated import plan
from seqloom.kernels.cuda.products import exact
from seqloom.kernels.cuda.runtime import graphs, prepared_cell, recorded
from seqloom.kernels.dispatch import TOGETHER
from seqloom.kernels.kernel_plan import KernelPlan
from seqloom.kernels.registry import find_kernel
from seqloom.kernels.stack import Stack
from seqloom.layers.recurrent.gpu.covering import CoveredPlan, find_covering_shape, round_up

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
    stack, weights = (
        Stack(cells, names, torch.Size(shape), layer.batch_first, 1 + layer.bidirectional),
        list(layer.parameters()),
    )
    assert plan.why_not_plan(cells) is None
    kernel = f"{cells[0].name}_cuda"
    kernels = [TOGETHER if "heads" in settings else find_kernel(kernel)] * len(cells)
    ready = plan.GatedPlan(stack, [kernel.code for kernel in kernels], weights, "cuda", amp, layer.dropout)
    return layer, ready, KernelPlan(stack, kernels)


class Loop:
    """A plan that calls the layer itself."""

    def __init__(self, layer):
        self.layer = layer

    def run(self, x, hx, weights, train, lengths=None):
        return self.layer(x, tuple(hx) if len(hx) > 1 else hx[0] if hx else None, lengths)


def run(one, layer, x, hx, train, lengths=None):
    """Return the outputs, the last states and, with `train`, every gradient."""
    weights = list(layer.parameters())
    leaves = [x.detach().requires_grad_(), *(s.detach().requires_grad_() for s in hx), *weights]
    if not train:
        with torch.no_grad():
            y, last = one.run(x, hx, weights, False, lengths)
        return [y, *(last if isinstance(last, tuple) else [last])]
    y, last = one.run(leaves[0], leaves[1 : 1 + len(hx)], weights, True, lengths)
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


RAGGED = [
    ("LSTM", FP32, (5, 3, 6), {"num_layers": 2, "bidirectional": True}, [5, 0, 2]),
    ("GRU", FP32, (3, 5, 6), {"batch_first": True, "bidirectional": True}, None),
    ("RNN", FP32, (5, 6), {"bidirectional": True}, [3]),
    ("GRU", BF16, (4, 16, 6), {"heads": 2, "bidirectional": True}, [4, 0, 3, 1] * 4),
    ("LNLSTM", BF16, (4, 3, 6), {"num_layers": 2}, [1, 4, 0]),
    ("GRU", FP32, (3, 4, 6), {"batch_first": True, "units": 10, "bidirectional": True}, [4, 1, 0]),
]


@pytest.mark.parametrize(("name", "dtype", "shape", "settings", "lengths"), RAGGED)
def test_prepared_calls_take_both_directions_and_lengths(name, dtype, shape, settings, lengths):
    layer, ready, ordinary = make_plans(name, dtype, shape, **settings)
    x, lengths = torch.randn(shape, dtype=dtype), None if lengths is None else torch.tensor(lengths)
    if lengths is not None:  # nothing that lies in padding may count
        rows = torch.arange(ready.T)[:, None] >= lengths
        x[rows.T if layer.batch_first and x.dim() == 3 else rows.squeeze(1) if x.dim() == 2 else rows] = torch.nan
    given = [torch.randn(s, dtype=dtype) for s in ready.h_shapes]
    for hx in ([], given):
        for train in (False, True):
            found = [run(one, layer, x, hx, train, lengths) for one in (ready, ordinary, Loop(layer))]
            ends = 1 + len(ready.h_shapes)
            torch.testing.assert_close(found[0][:ends], found[1][:ends], rtol=0, atol=0)
            for mine, theirs, looped in zip(*found, strict=True):
                far = 2e-5 if dtype == FP32 else 2e-2
                assert (mine - theirs).norm() < far * theirs.norm() + 1e-6
                assert dtype == BF16 or (mine - looped).norm() < 3 * far * looped.norm() + 1e-6


@pytest.mark.parametrize(("name", "settings"), [("LSTM", {}), ("GRU", {"batch_first": True, "bidirectional": True})])
@pytest.mark.parametrize("lengths", [None, [2, 0, 3]])
def test_a_plan_for_a_larger_shape_runs_calls_of_a_smaller_one(name, settings, lengths):
    layer, ready, _ = make_plans(name, FP32, (5, 5, 6), num_layers=2, **settings)
    shape = torch.Size((3, 4, 6) if layer.batch_first else (4, 3, 6))
    covered = CoveredPlan(ready, shape, layer.batch_first)
    assert (covered.T, covered.B, covered.h_shapes[0]) == (4, 3, (2 * ready.ways, 3, H))
    x, lengths = torch.randn(shape), None if lengths is None else torch.tensor(lengths)
    for hx in ([], [torch.randn(s) for s in covered.h_shapes]):
        for train in (False, True):
            mine, theirs = (run(one, layer, x, hx, train, lengths) for one in (covered, Loop(layer)))
            assert mine[0].is_contiguous() and mine[1].is_contiguous()
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_covering_shapes_are_few_and_not_much_larger(monkeypatch):
    sizes = {n: round_up(n) for n in range(1, heuristics.COVERING_MOST + 1)}
    assert len(set(sizes.values())) == 12
    assert all(n <= size <= max(16, 1.25 * n) or size == round_up(size) < n + 16 for n, size in sizes.items())
    assert find_covering_shape(torch.Size((30, 17, 5))) == (32, 32, 5)
    assert find_covering_shape(torch.Size((30, 5))) is None
    assert find_covering_shape(torch.Size((heuristics.COVERING_MOST + 1, 4, 5))) is None
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert find_covering_shape(torch.Size((30, 17, 5))) is None


def test_both_directions_with_lengths_have_second_derivatives():
    layer, ready, _ = make_plans("LSTM", FP32, (4, 2, 6), bidirectional=True)
    x, weights, lengths = torch.randn(4, 2, 6, requires_grad=True), list(layer.parameters()), torch.tensor([4, 2])
    found = []
    for y, _ in (ready.run(x, [], weights, True, lengths), layer(x, None, lengths)):
        (d,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        found.append([d, *torch.autograd.grad(d.square().sum(), [x, *weights])])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_dropout_between_layers_is_drawn_in_every_call():
    layer, ready, _ = make_plans("GRU", FP32, (1, 5, 6), num_layers=2, dropout=0.5)
    assert ready.dropout == 0.5
    x, found = torch.randn(1, 5, 6), []
    for one in (ready, Loop(layer)):  # with one step both draw in the same order
        torch.manual_seed(3)
        found.append(run(one, layer, x, [], True))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert not torch.equal(found[0][0], run(ready, layer, x, [], True)[0])


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
    monkeypatch.setattr(heuristics, "GATED_CHUNK_NUMBERS", H // 4)  # two steps
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
        monkeypatch.setattr(heuristics, "RUNS_BEFORE_RECORDING", 1)
        monkeypatch.setattr(graphs, "_record_launches", Replayed)
        monkeypatch.setattr(prepared_cell.PreparedCell, "_find_recording_stream", lambda _: 7)
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
    monkeypatch.setattr(heuristics, "GATED_CHUNK_NUMBERS", 1)  # many chunks
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
        monkeypatch.setattr(prepared_cell.PreparedCell, "_find_recording_stream", lambda _: 7)
        monkeypatch.setattr(heuristics, "RUNS_BEFORE_RECORDING", 1)
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
        ("LSTM", FP32, (4, 3, 6), {"bidirectional": True}),
    ],
)
def test_recorded_passes_read_and_write_memory_of_the_call(name, dtype, shape, settings, monkeypatch):
    monkeypatch.setattr(graphs, "_record_launches", Replayed)
    monkeypatch.setattr(prepared_cell.PreparedCell, "_find_recording_stream", lambda _: 7)
    monkeypatch.setattr(heuristics, "RUNS_BEFORE_RECORDING", 2)
    layer, ready, ordinary = make_plans(name, dtype, shape, **settings)
    found = []
    for i in range(5):
        x = torch.randn(shape, dtype=dtype)
        hx = [torch.randn(s, dtype=dtype) for s in ready.h_shapes] if i != 2 else []  # another form once
        lengths = torch.randint(0, 5, (3,)) if ready.ways == 2 else None
        found.append([run(one, layer, x, hx, True, lengths) for one in (ready, ordinary)])
        with torch.no_grad():
            layer.weight_hh_l0.mul_(1.1)  # in place, as an optimiser does
    assert all(c.recorder.kept is not None and c.back_recorder.kept is not None for c in ready.cells)
    for actual, expected in found:  # those of earlier passes were not overwritten
        for mine, theirs in zip(actual, expected, strict=True):  # a prepared pass rounds sums that it keeps
            assert (mine - theirs).norm() < (2e-5 if dtype == FP32 else 2e-2) * theirs.norm() + 1e-6


def test_weights_elsewhere_and_other_switches_discard_a_recorded_pass(monkeypatch):
    monkeypatch.setattr(graphs, "_record_launches", Replayed)
    monkeypatch.setattr(prepared_cell.PreparedCell, "_find_recording_stream", lambda _: 7)
    monkeypatch.setattr(heuristics, "RUNS_BEFORE_RECORDING", 2)
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
    monkeypatch.setattr(prepared_cell, "product_flags", lambda: ("others",))
    run(ready, layer, x, [], True)
    assert cell.recorder.kept is None and cell.back_recorder.kept is None


def test_cells_without_a_prepared_call_are_named():
    layers = seqloom.GRU(4, H, learn_initial_state=True), seqloom.GRU(4, H + 2, heads=2), seqloom.MinGRU(4, H)
    for layer in layers:
        assert plan.why_not_plan(list(layer.cells))


def test_recorded_passes_that_take_turns_do_not_discard_each_other(monkeypatch):
    monkeypatch.setattr(graphs, "_record_launches", Replayed)
    monkeypatch.setattr(recorded, "_owners", weakref.WeakSet())
    monkeypatch.setattr(recorded, "_read_room", lambda _: heuristics.RECORDED_SHARE * 100)
    recorders = [recorded.Recorder(torch.device("cpu"), size, heuristics.RECORDED_SHARE) for size in (40, 40, 30, 101)]
    kept = []

    def run_all(some, rounds):
        for _ in range(rounds):
            for recorder in some:
                (twice,) = recorder.run(lambda tensors: [2 * tensors[0]], "key", [torch.ones(3)])
                assert twice.tolist() == [2, 2, 2]
        kept.append([recorder.kept is not None for recorder in recorders])

    run_all(recorders, 40)
    run_all(recorders[1:], 100)  # the first is no longer in use
    assert kept == [[True, True, False, False], [False, True, True, False]]
