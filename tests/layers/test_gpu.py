"""The layers on a GPU: cuDNN behind the same contract. Run by `make test-gpu`."""

import copy
import functools
import unittest.mock
import warnings

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import seqloom
import seqloom.cells
import seqloom.layers.recurrent.gpu.streams
import seqloom.layers.recurrent.layer
from seqloom.core.cell import Cell
from seqloom.kernels import heuristics
from seqloom.kernels.parallel.experience import recall
from seqloom.kernels.runner import run_job
from seqloom.layers.recurrent import plans
from seqloom.layers.recurrent.gpu import row_order, streams, wavefront

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _exact(monkeypatch):
    monkeypatch.setattr(streams, "MIN_STEPS", dict.fromkeys(("attn_rnn", "rnn", "gru", "lstm"), 1))
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def both(name, **settings):
    layer = seqloom.Recurrent(name, 16, 32, 2, bidirectional=True, batch_first=True, **settings)
    return layer, copy.deepcopy(layer).cuda()


@pytest.mark.parametrize("lengths", [None, [9, 0, 4]])
@pytest.mark.parametrize("name", sorted(Cell.registry))
def test_a_layer_gives_the_same_results_on_the_gpu_and_the_cpu(name, lengths):
    here, there = both(name)
    x = torch.randn(3, 9, 16)
    weight = torch.randn(3, 9, 64)
    actual = []
    for layer, device in ((here, "cpu"), (there, "cuda")):
        given = None if lengths is None else torch.tensor(lengths)
        y, _ = layer(x.to(device), lengths=given)
        (y * weight.to(device)).sum().backward()
        actual.append([y.detach().cpu(), *(p.grad.cpu() for p in layer.parameters())])
    torch.testing.assert_close(actual[1], actual[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["gru", "lstm", "rnn"])
def test_cudnn_runs_and_has_a_backward_in_eval_mode(name):
    _, layer = both(name, kernel="aten")
    layer.eval()
    x = torch.randn(3, 9, 16, device="cuda", requires_grad=True)
    assert set(seqloom.explain(layer, x).kernels) == {f"{name}_aten"}
    layer(x)[0].sum().backward()
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_a_second_derivative_goes_through_cudnn(name):
    here, there = both(name)
    actual = []
    for layer, device in ((here, "cpu"), (there, "cuda")):
        x = torch.linspace(-1, 1, 3 * 5 * 16).view(3, 5, 16).to(device).requires_grad_()
        (g,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
        g.square().sum().backward()
        actual.append(x.grad.cpu())
    torch.testing.assert_close(actual[1], actual[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["gru", "lstm", "attn_rnn"])
def test_autocast_returns_its_type_and_carries_full_precision(name):
    _, layer = both(name)
    with torch.autocast("cuda", torch.bfloat16):
        y, state = layer(torch.randn(3, 9, 16, device="cuda"))
    assert y.dtype == torch.bfloat16
    assert all(s.dtype == torch.float32 for s in (state if isinstance(state, tuple) else (state,)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", sorted(Cell.registry))
def test_low_precision_runs(name, dtype):
    _, layer = both(name)
    layer.to(dtype)
    y, _ = layer(torch.randn(3, 9, 16, device="cuda", dtype=dtype), lengths=[9, 0, 4])
    y.sum().backward()
    assert torch.isfinite(y).all() and y.dtype == dtype


@pytest.mark.parametrize("room", [0, row_order.GPU_CAPACITY])
@pytest.mark.parametrize("name", ["rnn", "gru", "lstm", "attn_rnn"])
def test_lengths_on_the_gpu_make_no_synchronisation(name, room, monkeypatch):
    monkeypatch.setattr(row_order, "GPU_CAPACITY", room)
    _, layer = both(name)
    x = torch.randn(3, 9, 16, device="cuda")
    lengths = torch.tensor([9, 0, 4], device="cuda")
    layer(x, lengths=lengths)[0].sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that this mode is new
        torch.cuda.set_sync_debug_mode("error")
    try:
        layer(x, lengths=lengths)[0].sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_an_input_on_another_device_is_refused():
    _, layer = both("gru")
    with pytest.raises(ValueError, match="input is on cpu, the layer's weights are on cuda"):
        layer(torch.randn(3, 9, 16))
    with pytest.raises(ValueError, match=r"hx is on cpu"):
        layer(torch.randn(3, 9, 16, device="cuda"), torch.zeros(4, 3, 32))


def test_dropout_is_the_same_for_the_same_seed():
    _, layer = both("attn_rnn", dropouts=seqloom.Dropouts(recurrent=0.2, zoneout=0.2, weight=0.2), dropout=0.2)
    x = torch.randn(3, 9, 16, device="cuda")
    runs = []
    for _ in range(2):
        torch.manual_seed(7)
        runs.append(layer(x)[0])
    assert torch.equal(*runs)


@pytest.mark.parametrize("kind", [seqloom.GRU, seqloom.AttnRNN])
def test_compile_makes_one_graph(kind):
    layer = kind(16, 32, batch_first=True).cuda()
    whole = torch.compile(copy.deepcopy(layer), fullgraph=True)
    x = torch.randn(3, 9, 16, device="cuda")
    actual = []
    for model in (layer, whole):
        y, _ = model(x)
        y.square().sum().backward()
        actual.append([y.detach(), *(p.grad for p in model.parameters())])
    torch.testing.assert_close(actual[1], actual[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", [seqloom.GRU, seqloom.LSTM, seqloom.RNN])
def test_weights_lie_in_one_piece_wherever_the_layer_goes(kind):
    layer = kind(16, 32, 2, bidirectional=True, device="cuda")
    for moved in (layer, layer.half(), layer.cpu().float().cuda()):
        for own in moved.all_weights:
            assert len({p.untyped_storage().data_ptr() for p in own}) == 1
    before = layer.weight_hh_l0.detach().clone()
    layer.flatten_parameters()
    assert torch.equal(layer.weight_hh_l0, before)


@pytest.fixture
def _every_warning():
    """Turn every warning into an error, also those that torch gives once per process."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.usefixtures("_every_warning")
@pytest.mark.parametrize("lengths", [None, list(range(0, 201, 25))])
@pytest.mark.parametrize(
    ("name", "dtype"), [("attn_rnn", torch.bfloat16), ("gru", torch.bfloat16), ("lstm", torch.float32)]
)
def test_both_directions_at_once_match_one_after_the_other(name, dtype, lengths, monkeypatch):
    layer = seqloom.Recurrent(
        name, 64, 64, 2, bidirectional=True, batch_first=True, device="cuda", dtype=dtype, learn_initial_state=True
    )
    x = torch.randn(9, 200, 64, device="cuda", dtype=dtype, requires_grad=True)

    def found():
        y, _ = layer(x, lengths=lengths)
        return [y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])]

    at_once = found()
    monkeypatch.setattr(seqloom.layers.recurrent.gpu.streams, "can_use_streams", lambda *_: False)
    for a, b in zip(at_once, found(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.usefixtures("_every_warning")
@pytest.mark.parametrize("name", ["gru", "attn_rnn"])
def test_both_directions_at_once_make_no_warning_while_another_graph_lives(name):
    layer = seqloom.Recurrent(name, 32, 32, bidirectional=True, batch_first=True, device="cuda")
    x = torch.randn(3, 200, 32, device="cuda", requires_grad=True)
    alive = [layer(x)[0].sum(), sum(p.square().sum() for p in layer.parameters())]
    layer(x)[0].sum().backward()
    alive.append(layer(x)[0].sum())
    with torch.cuda.stream(torch.cuda.Stream()):
        fresh = copy.deepcopy(layer)
        fresh(x.detach())[0].sum().backward()
    alive[-1].backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.usefixtures("_every_warning")
@pytest.mark.parametrize("reentrant", [False, True])
def test_both_directions_at_once_can_be_recomputed_in_the_backward(reentrant):
    layer = seqloom.AttnRNN(64, 64, 2, bidirectional=True, batch_first=True, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(9, 400, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for _ in range(5):  # a race need not show at once
        layer.zero_grad()
        layer(x)[0].square().sum().backward()
        plain = [p.grad.clone() for p in layer.parameters()]
        layer.zero_grad()
        checkpoint(lambda x: layer(x)[0], x, use_reentrant=reentrant).square().sum().backward()
        for p, grad in zip(layer.parameters(), plain, strict=True):
            assert torch.equal(p.grad, grad)


@pytest.mark.usefixtures("_every_warning")
@pytest.mark.parametrize("name", ["attn_rnn", "gru"])
def test_both_directions_at_once_in_a_cuda_graph(name):
    how = {"bidirectional": True, "batch_first": True, "device": "cuda", "dtype": torch.bfloat16}
    layer = seqloom.Recurrent(name, 64, 64, **how)
    x = torch.randn(9, 200, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def run():
        y, _ = layer(x)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])]

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        stream.wait_stream(torch.cuda.default_stream())
        run()
    with torch.cuda.graph(graph, stream=stream):
        recorded = run()
    for _ in range(2):
        with torch.no_grad():
            x.normal_()
        graph.replay()
        for a, b in zip(recorded, run(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.usefixtures("_every_warning")
@pytest.mark.parametrize("lengths", [None, [2_100, 0, 700, 1_030, 2_048]])
@pytest.mark.parametrize(
    ("name", "dtype"), [("attn_rnn", torch.bfloat16), ("gru", torch.bfloat16), ("attn_rnn", torch.float32)]
)
def test_a_wavefront_matches_running_the_layers_in_order(name, dtype, lengths, monkeypatch):
    layer = seqloom.Recurrent(name, 64, 64, 3, batch_first=True, device="cuda", dtype=dtype, learn_initial_state=True)
    x = torch.randn(5, 2_100, 64, device="cuda", dtype=dtype, requires_grad=True)
    scans, run = [], wavefront.run_job
    monkeypatch.setattr(wavefront, "run_job", lambda *given: (scans.append(given), run(*given))[1])

    def found():
        y, h = layer(x, lengths=lengths)
        return [y, h, *torch.autograd.grad(y.square().mean() + h.mean(), [x, *layer.parameters()])]

    wave = found()
    assert len(scans) == 3 * 5
    monkeypatch.setattr(seqloom.layers.recurrent.layer, "should_use_wavefront", lambda *_: False)
    for a, b in zip(wave, found(), strict=True):
        # gradients are added over five pieces in their own type, each sum to 2^-9, and float32 is left its order
        assert (a - b).norm() <= (0.03 if dtype == torch.bfloat16 else 1e-4) * b.norm()


@pytest.mark.parametrize(
    ("name", "hidden", "dtype"),
    [("attn_rnn", 64, torch.bfloat16), ("attn_rnn", 320, torch.bfloat16), ("gru", 64, torch.bfloat16)],
)
def test_sorting_rows_by_length_does_not_change_the_results(name, hidden, dtype, monkeypatch):
    layer = seqloom.Recurrent(name, 64, hidden, 2, bidirectional=True, device="cuda", dtype=dtype)
    x = torch.randn(150, 40, 64, device="cuda", dtype=dtype, requires_grad=True)
    lengths = torch.randint(151, (40,), device="cuda")
    actual, sorts = [], []
    sort = seqloom.layers.recurrent.layer.sort_longest_first
    monkeypatch.setattr(
        seqloom.layers.recurrent.layer, "sort_longest_first", lambda batch: (sorts.append(1), sort(batch))[1]
    )
    for room in (0, 1 << 30):
        monkeypatch.setattr(row_order, "GPU_CAPACITY", room)
        y, h = layer(x, lengths=lengths)
        assert len(sorts) == 1
        actual.append([y, h, *torch.autograd.grad(y.square().mean() + h.mean(), [x, *layer.parameters()])])
    for a, b in zip(*actual, strict=True):
        assert (a - b).norm() <= 0.01 * b.norm()


def run_both(layer, x, hx):
    """Return outputs, last states and gradients."""
    y, state = layer(x, hx)
    states = state if isinstance(state, tuple) else (state,)
    leaves = [x, *layer.parameters()]
    return [y, *states, *torch.autograd.grad(y.square().sum() + sum(s.sum() for s in states), leaves)]


@pytest.mark.usefixtures("_every_warning")
@pytest.mark.parametrize("settings", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}])
@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN"])
def test_a_planned_call_of_cudnn_equals_torchs_layer(name, settings):
    ours = getattr(seqloom, name)(64, 64, kernel="aten", device="cuda", **settings)
    theirs = getattr(torch.nn, name)(64, 64, device="cuda", **settings)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(9, 8, 64, device="cuda", requires_grad=True)
    state = theirs(x)[1]
    given = tuple(torch.randn_like(s) for s in state) if isinstance(state, tuple) else torch.randn_like(state)
    for hx in (None, given):
        torch.testing.assert_close(run_both(ours, x, hx), run_both(theirs, x, hx), rtol=0, atol=1e-5)
    (plan,) = ours.__dict__["_plans"].plans.values()
    assert plan.backend == "aten"
    lengths = [9, 4] * 4 if not settings.get("batch_first") else [8, 4, 1] * 3
    ours(x, lengths=lengths)[0].sum().backward()  # layer by layer, without cuDNN's warning


@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_a_planned_call_of_cudnn_has_second_derivatives(name):
    ours = getattr(seqloom, name)(8, 16, num_layers=2, device="cuda", dtype=torch.float64, kernel="aten")
    slow, x = copy.deepcopy(ours), torch.randn(5, 3, 8, device="cuda", dtype=torch.float64, requires_grad=True)
    slow.kernel = "loop"
    results = []
    for layer in (ours, slow):
        leaves = [x, *layer.parameters()]
        first = torch.autograd.grad(layer(x)[0].sin().sum(), leaves, create_graph=True)
        results.append([*first, *torch.autograd.grad(sum(g.square().sum() for g in first), leaves)])
    torch.testing.assert_close(*results)


@pytest.mark.usefixtures("_every_warning")
@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_dropout_between_layers_of_cudnn_is_torchs_own(name):
    theirs = getattr(torch.nn, name)(5, 8, 3, dropout=0.4).cuda()
    ours = getattr(seqloom, name)(5, 8, 3, dropout=0.4, kernel="aten").cuda()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(7, 3, 5, device="cuda", requires_grad=True)
    results = []
    for layer in (theirs, ours):
        torch.manual_seed(3)
        y = layer(x)[0]
        with torch.no_grad():
            again = layer(x)[0]
        assert not torch.equal(y, again)  # dropped anew in each call
        results.append([y, again, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])])
    torch.testing.assert_close(*results)
    torch.testing.assert_close(ours.eval()(x)[0], theirs.eval()(x)[0])
    (dx,) = torch.autograd.grad(ours.train()(x)[0].sum(), x)
    assert dx.isfinite().all()
    (dx,) = torch.autograd.grad(ours(x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"not implemented|not differentiable"):
        torch.autograd.grad(dx.square().sum(), x)


def _move_there_and_back(layer):
    layer.cpu().cuda()


def _load_weights(layer):
    layer.load_state_dict({name: torch.randn_like(w) for name, w in layer.state_dict().items()})


def _swap_data(layer):
    for w in layer.parameters():
        w.data = torch.randn_like(w)


def _allow_tf32(_):
    torch.backends.cuda.matmul.allow_tf32 = True


def _lower_precision(_):
    torch.set_float32_matmul_precision("high")


def _be_deterministic(_):
    torch.use_deterministic_algorithms(True, warn_only=True)


def _change_type(layer):
    layer.bfloat16().float()


def _freeze(layer):
    list(layer.parameters())[-1].requires_grad_(False)


def _train_one_step(layer):
    for w in layer.parameters():
        w.data.add_(0.01)


@pytest.fixture
def flags():
    """Restore torch's switches."""
    matmul, precision = torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.set_float32_matmul_precision(precision)
    torch.backends.cuda.matmul.allow_tf32 = matmul
    torch.use_deterministic_algorithms(False)


CHANGES = (
    *(_move_there_and_back, _load_weights, _swap_data, _allow_tf32, _lower_precision, _be_deterministic),
    *(_change_type, _freeze, _train_one_step),
)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [(seqloom.AttnRNN, {}), (seqloom.GRU, {}), (seqloom.LSTM, {}), (seqloom.LSTM, {"kernel": "cuda"})],
)
@pytest.mark.usefixtures("flags")
def test_a_changed_layer_has_no_stale_plan(kind, settings, change):
    layer = kind(64, 64, num_layers=2, **settings).cuda()
    x = torch.randn(9, 4, 64, device="cuda", requires_grad=True)

    def run(one):
        y, state = one(x)
        last = state if isinstance(state, torch.Tensor) else state[0]
        wanted = [x, *(w for w in one.parameters() if w.requires_grad)]
        gradients = torch.autograd.grad(y.square().sum() + last.sum(), wanted)
        with torch.no_grad():
            return [y, last, *gradients, one(x)[0]]

    for _ in range(heuristics.RUNS_BEFORE_RECORDING + 2):  # the last ones replay what was recorded
        run(layer)
    change(layer)
    for _ in range(2):
        torch.testing.assert_close(run(layer), run(copy.deepcopy(layer)), rtol=0, atol=0)


@pytest.mark.parametrize("time_first", [True, False])
@pytest.mark.parametrize(
    ("H", "T", "B", "dtype"),
    [
        (64, 16, 32, torch.float32),
        (256, 4, 32, torch.float32),
        (64, 1, 5, torch.float32),
        (512, 3, 16, torch.float32),
        (100, 16, 8, torch.float32),  # padded heads: both passes are recorded
        (64, 16, 5, torch.bfloat16),
        (64, 16, 70, torch.bfloat16),  # the kernel for 8 rows, whose passes are recorded as they are
    ],
)
def test_recorded_backward_passes_have_the_bits_of_the_first(H, T, B, dtype, time_first):
    own = {"device": "cuda", "dtype": dtype}
    layer = seqloom.AttnRNN(H, H, batch_first=not time_first, **own)
    shape, passes = (T, B, H) if time_first else (B, T, H), heuristics.RUNS_BEFORE_RECORDING + 3
    inputs = [torch.randn(shape, requires_grad=True, **own) for _ in range(passes)]
    states = [torch.randn(1, B, H, requires_grad=True, **own) for _ in range(passes)]

    def run(one, x, h0):
        y, last = one(x, h0)
        return torch.autograd.grad(y.square().sum() + last.sin().sum(), [x, h0, *one.parameters()])

    pairs = list(zip(inputs, states, strict=True))
    fresh = [run(copy.deepcopy(layer), *pair) for pair in pairs]
    for pair, expected in zip(pairs, fresh, strict=True):
        torch.testing.assert_close(run(layer, *pair), expected, rtol=0, atol=0)
    (plan,) = (p for key, p in layer._plans.plans.items() if key[3])
    (cell,) = plan.cells
    assert cell.back_recorder.kept is not None
    graph, x = torch.cuda.CUDAGraph(), inputs[0]  # a caller's graph has launches of its own
    with torch.cuda.graph(graph):
        captured = run(layer, x, states[0])
    graph.replay()
    torch.testing.assert_close(captured, run(copy.deepcopy(layer), x, states[0]), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "H", "settings"),
    [
        (seqloom.GRU, 64, {"kernel": "cuda"}),
        (seqloom.LSTM, 256, {"kernel": "cuda", "batch_first": True}),
        (seqloom.GRU, 512, {"kernel": "grid"}),
        (seqloom.LSTM, 100, {"kernel": "cuda", "num_layers": 2}),
        (seqloom.LSTM, 128, {"heads": 2, "num_layers": 2}),
    ],
)
def test_recorded_backward_passes_of_gated_cells_have_the_bits_of_the_first(kind, H, settings, dtype):
    layer = kind(24, H, device="cuda", dtype=dtype, **settings)
    passes = heuristics.RUNS_BEFORE_RECORDING + 3
    inputs = [torch.randn(16, 16, 24, device="cuda", dtype=dtype, requires_grad=True) for _ in range(passes)]

    def run(one, x):
        y, last = one(x)
        ends = last if isinstance(last, tuple) else (last,)
        return torch.autograd.grad(y.square().sum() + sum(s.sin().sum() for s in ends), [x, *one.parameters()])

    fresh = [run(copy.deepcopy(layer), x) for x in inputs]
    actual = [run(layer, x) for x in inputs]  # all are kept: none may be overwritten
    for mine, expected in zip(actual, fresh, strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=0)
    (plan,) = (p for key, p in layer._plans.plans.items() if key[3])
    assert all(cell.recorder.kept is not None and cell.back_recorder.kept is not None for cell in plan.cells)
    graph, x = torch.cuda.CUDAGraph(), inputs[0]
    with torch.cuda.graph(graph):
        captured = run(layer, x)
    graph.replay()
    torch.testing.assert_close(captured, fresh[0], rtol=0, atol=0)


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "H"),
    [(seqloom.GRU, 64), (seqloom.LSTM, 512), (seqloom.RNN, 100), (seqloom.LNGRU, 64), (seqloom.AttnRNN, 64)],
)
def test_prepared_calls_under_autocast_match_ordinary_ones(kind, H, x_dtype):
    layer = kind(24, H, num_layers=2, device="cuda")

    def run(one, x, is_prepared):
        with torch.autocast("cuda", torch.bfloat16):
            y, last = one(x) if is_prepared else one.run_with(run_job, x)
        ends = last if isinstance(last, tuple) else (last,)
        assert y.dtype == torch.bfloat16 and all(s.dtype == torch.float32 for s in ends)
        loss = y.float().square().sum() + sum(s.sin().sum() for s in ends)
        return [y, *ends], torch.autograd.grad(loss, [x, *one.parameters()])

    for _ in range(heuristics.RUNS_BEFORE_RECORDING + 2):
        x = torch.randn(48, 8, 24, device="cuda", dtype=x_dtype, requires_grad=True)
        (actual, gradients), (expected, slow) = run(layer, x, True), run(layer, x, False)
        if kind not in (seqloom.LNGRU, seqloom.AttnRNN):  # the first normalises its input in float32 under autocast
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)
        if kind is not seqloom.AttnRNN:
            for a, b in zip((*actual, *gradients), (*expected, *slow), strict=True):
                assert a.dtype == b.dtype and (a - b).float().norm() < 0.02 * b.float().norm()
            continue
        # another kernel than without a plan: neither is the measure of the other, float64 is
        x_exact, wide = x.detach().double().requires_grad_(), copy.deepcopy(layer).double()
        exact = wide(x_exact)
        loss = exact[0].square().sum() + exact[1].sin().sum()
        right = (*exact, *torch.autograd.grad(loss, [x_exact, *wide.parameters()]))
        for a, b, e in zip((*actual, *gradients), (*expected, *slow), right, strict=True):
            assert a.dtype == b.dtype and (a.double() - e).norm() < 2 * (b.double() - e).norm()
    assert any(plan.backend in ("cuda", "row", "grid") and key[3] for key, plan in layer._plans.plans.items())
    with torch.no_grad():
        assert layer(x.float())[0].dtype == torch.float32  # without autocast another plan


@pytest.mark.parametrize("lengths", [None, [12, 0, 5, 12, 1, 7, 11, 3]])
@pytest.mark.parametrize("amp", [None, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (seqloom.GRU, {"bidirectional": True}),
        (seqloom.LSTM, {"bidirectional": True, "num_layers": 2, "batch_first": True}),
        (seqloom.LSTM, {"kernel": "grid"}),
        (seqloom.LNGRU, {"bidirectional": True}),
        (seqloom.AttnRNN, {"bidirectional": True}),
        (functools.partial(seqloom.Recurrent, "mgu"), {"num_layers": 2}),
    ],
)
def test_prepared_calls_of_both_directions_and_lengths_match_ordinary_ones(kind, settings, amp, lengths, monkeypatch):
    monkeypatch.setattr(streams, "MIN_STEPS", {})  # short calls do not wait for streams
    layer = kind(24, 64, device="cuda", **settings)
    lengths = None if lengths is None else torch.tensor(lengths, device="cuda")
    shape = (8, 12, 24) if layer.batch_first else (12, 8, 24)

    def run(x, call):
        with torch.autocast("cuda", amp, enabled=amp is not None):
            y, last = call(x)
        ends = last if isinstance(last, tuple) else (last,)
        loss = y.float().square().sum() + sum(s.sin().sum() for s in ends)
        return [y, *ends, *torch.autograd.grad(loss, [x, *layer.parameters()])]

    with unittest.mock.patch.object(heuristics, "CUDNN_FASTER", ()):
        for _ in range(heuristics.RUNS_BEFORE_RECORDING + 2):
            x = torch.randn(shape, device="cuda", requires_grad=True)
            actual = run(x, lambda x: layer(x, None, lengths))
            expected = run(x, lambda x: layer.run_with(run_job, x, None, lengths))
            for a, b in zip(actual, expected, strict=True):
                assert a.dtype == b.dtype
                assert (a - b).float().norm() <= (1e-4 if amp is None else 0.03) * b.float().norm()
    assert all(plan.backend for plan in layer._plans.plans.values())  # none declined


@pytest.mark.parametrize("amp", [None, torch.bfloat16])
@pytest.mark.parametrize("is_ragged", [False, True])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [(seqloom.LSTM, {"bidirectional": True, "num_layers": 2}), (seqloom.GRU, {"batch_first": True})],
)
def test_calls_of_many_shapes_share_plans(kind, settings, is_ragged, amp, monkeypatch):
    monkeypatch.setattr(streams, "MIN_STEPS", {})
    monkeypatch.setattr(heuristics, "CUDNN_FASTER", ())
    layer = kind(24, 64, device="cuda", **settings)
    slow = copy.deepcopy(layer)
    slow.kernel = "loop"
    draw = torch.Generator().manual_seed(1)
    for _ in range(60):
        T, B = (int(torch.randint(low, high, (), generator=draw)) for low, high in ((5, 33), (2, 20)))
        shape = (B, T, 24) if layer.batch_first else (T, B, 24)
        x = torch.randn(shape, device="cuda", requires_grad=True)
        lengths = torch.randint(0, T + 1, (B,), generator=draw) if is_ragged else None
        found = []
        for one in (layer, slow):
            with torch.autocast("cuda", amp, enabled=amp is not None):
                y, last = one(x, None, lengths)
            ends = last if isinstance(last, tuple) else (last,)
            loss = y.float().square().sum() + sum(s.sin().sum() for s in ends)
            found.append([y, *ends, *torch.autograd.grad(loss, [x, *one.parameters()])])
        for a, b in zip(*found, strict=True):
            assert a.shape == b.shape and a.is_contiguous()
            assert (a - b).float().norm() <= (1e-3 if amp is None else 0.05) * b.float().norm() + 1e-4
    assert len(layer._plans.plans) <= plans.SHAPES_BEFORE_COVERING + 4


@pytest.mark.parametrize("amp", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("settings", [{}, {"num_layers": 2, "bidirectional": True}])
def test_a_planned_call_of_cudnn_under_autocast_equals_torchs_layer(amp, settings):
    ours = seqloom.LSTM(24, 32, kernel="aten", device="cuda", **settings)
    theirs = torch.nn.LSTM(24, 32, device="cuda", **settings)
    theirs.load_state_dict(ours.state_dict())
    found, x = [], torch.randn(7, 4, 24, device="cuda", requires_grad=True)
    for layer in (ours, theirs):
        with torch.autocast("cuda", amp):
            y, ends = layer(x)
        loss = y.float().square().sum() + sum(s.float().sin().sum() for s in ends)
        found.append([y, *(s.float() for s in ends), *torch.autograd.grad(loss, [x, *layer.parameters()])])
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert {type(plan).__name__ for plan in ours._plans.plans.values()} == {"AtenPlan"}
    with torch.autocast("cuda", amp):
        y, _ = ours(x)
    (d,) = torch.autograd.grad(y.float().square().sum(), x, create_graph=True)
    assert torch.isfinite(torch.autograd.grad(d.square().sum(), x)[0]).all()


@pytest.mark.parametrize("kind", [seqloom.GRU, seqloom.LSTM])
def test_sequences_longer_than_cudnn_takes_run_on_our_kernels(kind):
    layer, x = kind(2, 16, device="cuda"), torch.randn(heuristics.CUDNN_MOST_STEPS + 5, 1, 2, device="cuda")
    with torch.no_grad():
        y, _ = layer(x)
        expected, _ = copy.deepcopy(layer).cpu()(x.cpu())
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_two_calls_before_their_backward_passes_do_not_share_memory():
    layer = seqloom.AttnRNN(64, 64, device="cuda")
    pairs = [torch.randn(4, 8, 64, device="cuda", requires_grad=True) for _ in range(2)]
    for _ in range(heuristics.RUNS_BEFORE_RECORDING + 2):
        outputs = [layer(x)[0] for x in pairs]
        together = torch.autograd.grad(sum(y.square().sum() for y in outputs), [*pairs, *layer.parameters()])
    apart = [torch.autograd.grad(layer(x)[0].square().sum(), [x, *layer.parameters()]) for x in pairs]
    expected = [apart[0][0], apart[1][0], *(a + b for a, b in zip(apart[0][1:], apart[1][1:], strict=True))]
    torch.testing.assert_close(together, tuple(expected))


@pytest.mark.parametrize("H", [100, 300])
@pytest.mark.parametrize("kind", [seqloom.AttnRNN, seqloom.GRU, seqloom.LSTM])
def test_products_follow_the_precision_that_torch_is_told(kind, H):
    torch.manual_seed(0)
    layer, x = kind(H, H, device="cuda"), torch.randn(20, 8, H, device="cuda")
    true, errors = copy.deepcopy(layer).cpu().double(), []
    exact = run_both(true, x.cpu().double().requires_grad_(), None)
    matmul, rnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, rnn.allow_tf32
    try:
        for allowed in (True, False):
            matmul.allow_tf32 = rnn.allow_tf32 = allowed
            actual = run_both(layer, x.requires_grad_(), None)
            pairs = [(a.detach().cpu(), b.detach()) for a, b in zip(actual, exact, strict=True)]
            errors.append(max(float((a - b).norm() / b.norm()) for a, b in pairs))
    finally:
        matmul.allow_tf32, rnn.allow_tf32 = before
    assert errors[1] < errors[0] / 10


@pytest.mark.parametrize("kind", [seqloom.GRU, seqloom.LSTM])
def test_odd_sizes_run_on_the_gated_kernels(kind):
    layer = kind(100, 100, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(40, 4, 100, device="cuda", dtype=torch.bfloat16)  # fewer steps stay with cuDNN
    assert seqloom.explain(layer, x).kernels == (f"{kind.__name__.lower()}_cuda",)
    slow = copy.deepcopy(layer)
    slow.kernel = "loop"
    torch.testing.assert_close(layer(x)[0], slow(x)[0], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cell", ["gru", "lstm", "ln_gru"])
def test_heads_run_in_one_launch_and_match_the_loop(cell, dtype):
    torch.manual_seed(0)
    layer = seqloom.Recurrent(cell, 20, 96, 2, heads=3, stack_norm="rms", residual=True).to("cuda", dtype)
    slow, x = copy.deepcopy(layer), torch.randn(9, 5, 20, device="cuda", dtype=dtype)
    slow.kernel = "loop"
    reset, lengths = torch.rand(9, 5, device="cuda") < 0.2, torch.tensor([9, 0, 4, 9, 1], device="cuda")
    one_launch = cell != "ln_gru" or dtype == torch.bfloat16
    assert seqloom.explain(layer, x).kernels == ("heads_cuda" if one_launch else "heads_each",) * 2
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    results = []
    for one in (layer, slow):
        y, _ = one(x, lengths=lengths, reset=reset)
        results.append([y, *torch.autograd.grad(y.float().square().sum(), list(one.parameters()))])
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).norm() < tolerance * theirs.norm() + 1e-6


@pytest.mark.usefixtures("_every_warning")
@pytest.mark.parametrize("lengths", [None, [2_048, 0, 700, 2_000]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["gru", "lstm", "attn_rnn", "ugrnn"])
def test_chunks_in_parallel_match_the_whole_sequence(name, dtype, lengths):
    torch.manual_seed(0)
    layer = seqloom.Recurrent(name, 16, 32, 2, bidirectional=True, parallel=512).cuda()
    if name == "attn_rnn":
        for i in range(len(layer.cells)):
            layer.cell_at(i).remember(torch.zeros(32))  # so that it forgets within a chunk
    layer = layer.to(dtype)
    x = torch.randn(2_048, 4, 16, device="cuda", dtype=dtype)
    weight = torch.randn(2_048, 4, 64, device="cuda", dtype=dtype)

    def run(one, parallel, to):
        one.parallel = parallel
        one.zero_grad()
        y, state = one(x.to(to), lengths=lengths)
        (y * weight.to(to)).sum().backward()
        states = state if isinstance(state, tuple) else (state,)
        return [t.detach().double().clone() for t in (y, *states, *(p.grad for p in one.parameters()))]

    found = run(layer, 512, dtype)
    known = recall(layer.cell_at(0))
    assert not known.failed and known.passes >= 2 and known.back >= 2
    beside = [run(layer, "never", dtype)]
    if (
        name == "attn_rnn" and dtype == torch.bfloat16
    ):  # its kernels carry the state in float32; the loop rounds it, too
        layer.kernel = "loop"
        beside.append(run(layer, "never", dtype))
        layer.kernel = "auto"
    exact = run(layer.double(), "never", torch.double)
    for actual, right, *others in zip(found, exact, *beside, strict=True):
        limit = 2 * max((other - right).norm() for other in others) + 1e-6 * right.norm()
        error = (actual - right).norm()
        assert error <= limit, f"{float(error):.2g}, limit {float(limit):.2g}"


def test_a_long_sequence_is_divided_by_default_and_one_that_never_forgets_is_not():
    layer = seqloom.GRU(8, 64, device="cuda")
    x = torch.randn(20_000, 1, 8, device="cuda")
    with torch.no_grad():
        y, _ = layer(x)
        assert recall(layer.cell_at(0)).steps >= heuristics.PARALLEL_CHUNK
        layer.parallel = "never"
        torch.testing.assert_close(y, layer(x)[0], rtol=0, atol=1e-5)
        layer.parallel = "auto"
        x[10_000] = torch.nan
        assert torch.equal(layer(x)[0].isnan().any(-1).view(-1), torch.arange(20_000, device="cuda") >= 10_000)
    keeps = seqloom.Recurrent("orthogonal_rnn", 8, 64).cuda()
    with torch.no_grad():
        y, _ = keeps(x.nan_to_num())
        assert recall(keeps.cell_at(0)).failed
        keeps.parallel = "never"
        torch.testing.assert_close(y, keeps(x.nan_to_num())[0], rtol=1e-4, atol=1e-3)
