"""Prepared calls: whatever changes between two calls of a layer, the second gives what a new layer gives."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, jacrev, jvp, vmap
from torch.nn.utils import parametrizations, parametrize

import seqloom
from seqloom.kernels import heuristics
from seqloom.kernels.aten.plan import AtenPlan
from seqloom.kernels.cpu import bound_call
from seqloom.kernels.cpu.prepared import PreparedStack
from seqloom.kernels.kernel_plan import KernelPlan
from seqloom.kernels.registry import find_kernel
from seqloom.kernels.stack import Stack
from seqloom.layers.recurrent import plans

CELLS = ("rnn", "gru", "lstm", "attn_rnn")
each_cell = pytest.mark.parametrize("cell", CELLS)


def make(cell="gru", input_size=4, hidden_size=8, **settings):
    return seqloom.Recurrent(cell, input_size, hidden_size, dtype=torch.float64, **settings)


def draw(steps=5, rows=3, dtype=torch.float64):
    return torch.randn(steps, rows, 4, dtype=dtype)


def tensors(state):
    return [state] if isinstance(state, torch.Tensor) else list(state)


def run(layer, x, hx=None, parameters=None):
    """Return outputs, last states and every gradient."""
    held = (layer if parameters is None else parameters).parameters()
    leaves = [x.detach().requires_grad_(), *(p for p in held if p.requires_grad)]
    y, state = layer(leaves[0], hx)
    loss = y.square().sum() + sum(s.sin().sum() for s in tensors(state))
    return [y, *tensors(state), *torch.autograd.grad(loss, leaves, materialize_grads=True)]


def check(layer, x, hx=None):
    """Compare a layer that has been called with a copy, which has no plans, and with the reference loop."""
    fresh, slow = copy.deepcopy(layer), copy.deepcopy(layer)
    assert fresh.__dict__.get("_plans") is None
    slow.kernel = "loop"
    for call in (run, _forward):
        actual = call(layer, x, hx)
        torch.testing.assert_close(actual, call(fresh, x, hx), rtol=0, atol=0)
        torch.testing.assert_close(actual, call(slow, x, hx), rtol=1e-3, atol=1e-4)


def warm(layer, x, hx=None):
    """Call a layer until the engine compares its calls with the one before."""
    with torch.no_grad():
        for _ in range(3):
            layer(x, hx)
    for _ in range(3):
        layer(x, hx)
    own = vars(layer)
    assert bound_call.load_bind() is None or own["_plans"].find(own, x, hx) is not None


def _forward(layer, x, hx=None):
    with torch.no_grad():
        y, state = layer(x, hx)
    return [y, *tensors(state)]


def kinds(layer):
    return {type(plan) for plan in layer.__dict__["_plans"].plans.values()}


@pytest.mark.sample(2)
@each_cell
@pytest.mark.parametrize("kernel", ["auto", "cpu"])
@pytest.mark.parametrize(
    "settings", [{}, {"num_layers": 2, "bidirectional": True}, {"bidirectional": True, "batch_first": True}]
)
@pytest.mark.parametrize("shape", [(5, 3, 4), (1, 3, 4), (5, 1, 4), (5, 4)])
def test_a_planned_call_has_the_loops_values_and_gradients(cell, kernel, settings, shape):
    layer, x = make(cell, kernel=kernel, **settings), torch.randn(shape, dtype=torch.float64)
    check(layer, x)
    assert kinds(layer) == {PreparedStack}
    state = layer(x)[1]
    check(layer, x, tuple(torch.randn_like(s) for s in state) if isinstance(state, tuple) else torch.randn_like(state))


@each_cell
@pytest.mark.parametrize("settings", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}])
@pytest.mark.parametrize("read", [list, torch.tensor], ids=["list", "tensor"])
def test_a_planned_call_with_lengths_has_the_loops_values_and_gradients(cell, settings, read):
    layer, lengths = make(cell, **settings), [5, 0, 3]
    slow = copy.deepcopy(layer)
    slow.kernel = "loop"
    x = draw() if "batch_first" not in settings else draw(3, 5)
    for row, steps in enumerate(lengths):  # NaN in padding reaches no result
        (x[row, steps:] if "batch_first" in settings else x[steps:, row]).fill_(torch.nan)
    for _ in range(3):  # the second call finds the plan, the third one by the engine's comparison
        actual = run(lambda y, h: layer(y, h, read(lengths)), x, parameters=layer)
        torch.testing.assert_close(actual, run(lambda y, h: slow(y, h, lengths), x, parameters=slow))
    assert [type(plan) for key, plan in layer._plans.plans.items() if key[-1]] == [PreparedStack]


def test_calls_with_and_without_lengths_do_not_take_each_others_plan():
    layer, x = make(), draw()
    for _ in range(3):
        with torch.no_grad():
            whole, short = layer(x)[0], layer(x, lengths=[5, 2, 0])[0]
            torch.testing.assert_close(short[:2, :2], whole[:2, :2], rtol=0, atol=0)
            assert short[2:, 1].eq(0).all() and short[:, 2].eq(0).all() and whole.ne(0).all()


@each_cell
def test_a_planned_call_with_lengths_has_second_derivatives(cell):
    layer, x = make(cell), draw(3, 2).requires_grad_()

    def penalise(kernel):
        layer.kernel = kernel
        y, _ = layer(x, lengths=[3, 1])
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), [x, *layer.parameters()])

    torch.testing.assert_close(penalise("auto"), penalise("loop"))


def test_wrong_lengths_are_refused_after_a_planned_call():
    layer, x = make(), draw()
    for _ in range(3):
        layer(x, lengths=[5, 2, 0])
    for wrong, message in (
        ([5, 2], "one entry for each of 3 rows"),
        ([6, 2, 0], "got 6"),
        ([1.0] * 3, "whole numbers"),
    ):
        with pytest.raises((RuntimeError, TypeError), match=message):
            layer(x, lengths=wrong)


def test_one_large_step_in_training_runs_on_torchs_operator():
    layer = make(hidden_size=heuristics.ONE_STEP_HIDDEN)
    check(layer, draw(steps=1))
    assert kinds(layer) == {AtenPlan}  # without gradients it is a step of a stream


@each_cell
@pytest.mark.parametrize("kernel", ["cpu", "aten"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_planned_call_has_second_derivatives(cell, kernel, dtype):
    if (cell, kernel) == ("attn_rnn", "aten"):
        pytest.skip("torch has no such operator")
    layer = make(cell, kernel=kernel).to(dtype)
    slow, x = copy.deepcopy(layer), draw(dtype=dtype)
    slow.kernel = "loop"
    results = []
    for one in (layer, slow):
        leaves = [x.clone().requires_grad_(), *one.parameters()]
        first = torch.autograd.grad(one(leaves[0])[0].sin().sum(), leaves, create_graph=True)
        results.append([*first, *torch.autograd.grad(sum(g.square().sum() for g in first), leaves)])
    assert kinds(layer) == {AtenPlan if kernel == "aten" else PreparedStack}
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3 if dtype is torch.float32 else 1e-9)


@pytest.mark.parametrize("settings", [{"num_layers": 2}, {"bidirectional": True}, {"num_layers": 2, "bias": False}])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_stack_on_torchs_operators_has_second_derivatives(cell, settings):
    layer = make(cell, kernel="aten", **settings).float()
    slow, x, results = copy.deepcopy(layer), draw(dtype=torch.float32), []
    slow.kernel = "loop"
    for one in (layer, slow):
        leaves = [x.clone().requires_grad_(), *one.parameters()]
        first = torch.autograd.grad(one(leaves[0])[0].sin().sum(), leaves, create_graph=True)
        results.append([*first, *torch.autograd.grad(sum(g.square().sum() for g in first), leaves)])
    assert kinds(layer) == {AtenPlan}
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
@pytest.mark.parametrize(("dropout", "batch_first"), [(0.0, True), (0.4, False)])
def test_a_stack_on_torchs_operators_is_torchs_own_with_its_dropout(name, dropout, batch_first):
    settings = {"num_layers": 3, "dropout": dropout, "batch_first": batch_first}
    theirs, ours = getattr(nn, name)(4, 8, **settings), getattr(seqloom, name)(4, 8, **settings, kernel="aten")
    ours.load_state_dict(theirs.state_dict())
    x, results = torch.randn(5, 3, 4, requires_grad=True), []
    for layer in (ours, theirs):
        torch.manual_seed(1)
        y, state = layer(x)
        y, state = layer(x, state)
        ends = state if name == "LSTM" else [state]
        loss = y.square().sum() + sum(s.sin().sum() for s in ends)
        results.append([y, *ends, *torch.autograd.grad(loss, [x, *layer.parameters()])])
    torch.testing.assert_close(*results)
    assert kinds(ours) == {AtenPlan}
    (first,) = torch.autograd.grad(ours(x)[0].square().sum(), x, create_graph=True)
    assert torch.autograd.grad(first.square().sum(), x)[0].isfinite().all()


def _change_settings(layer):
    layer.kernel = "loop"


def _change_order(layer):
    layer.batch_first = True


def _train(layer):
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.3)
    layer(draw())[0].square().sum().backward()
    optimiser.step()
    layer.zero_grad()


def _load(layer):
    layer.load_state_dict({name: torch.randn_like(w) for name, w in layer.state_dict().items()})


def _load_by_assignment(layer):
    layer.load_state_dict({name: torch.randn_like(w) for name, w in layer.state_dict().items()}, assign=True)


def _swap_data(layer):
    layer.weight_hh_l0.data = torch.randn_like(layer.weight_hh_l0)


def _transpose_data(layer):
    layer.weight_hh_l0.data = torch.randn_like(layer.weight_hh_l0.T).T


def _reorder_in_place(layer):
    layer.weight_hh_l0.data = layer.weight_hh_l0.data.as_strided((24, 8), (1, 24))  # at the same address


def _replace(layer):
    layer.weight_ih_l0 = nn.Parameter(torch.randn_like(layer.weight_ih_l0))


def _freeze(layer):
    layer.weight_ih_l0.requires_grad_(False)


def _freeze_all(layer):
    layer.requires_grad_(False)


class _Twice(nn.Module):
    def forward(self, w):
        return 2 * w


def _parametrize(layer):
    parametrize.register_parametrization(layer, "weight_hh_l0", _Twice())


def _normalise(layer):
    parametrizations.weight_norm(layer, "weight_hh_l0")


def _change_equations(layer):
    layer.cells[0].reset_after = False


def _reset(layer):
    layer.reset_parameters()


CHANGES = (
    *(_change_settings, _change_order, _train, _load, _load_by_assignment, _swap_data, _transpose_data),
    *(_reorder_in_place, _replace, _freeze, _freeze_all, _parametrize, _normalise, _change_equations),
    _reset,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_a_changed_layer_is_run_as_it_is_now(change):
    layer, x = make(), draw()
    check(layer, x)
    warm(layer, x)
    change(layer)
    check(layer, x)


@pytest.mark.parametrize(
    ("cell", "setting", "value"),
    [
        ("attn_rnn", "heads", 4),
        ("attn_rnn", "context", ("h", "x")),
        ("attn_rnn", "initial", 0.5),
        ("rnn", "nonlinearity", "relu"),
        ("rnn", "nonlinearity", "sigmoid"),
    ],
)
def test_a_changed_cell_is_run_as_it_is_now(cell, setting, value):
    layer, x = make(cell), draw()
    check(layer, x)
    warm(layer, x)
    setattr(layer.cells[0], setting, value)
    check(layer, x)


def test_a_cell_with_a_normalised_input_has_no_plan_that_forgets_it():
    layer, x = make("attn_rnn", input_norm=True), draw()
    check(layer, x)
    layer, x = make("attn_rnn", 8, input_norm=True), torch.randn(5, 3, 8, dtype=torch.float64)
    check(layer, x)


def test_a_layer_of_another_type_is_run_in_that_type():
    layer, x = make(), draw()
    check(layer, x)
    assert layer.float()(x.float())[0].dtype == torch.float32
    check(layer, x.float())
    with pytest.raises(RuntimeError, match=r"input is .*float64, the layer's weights are .*float32"):
        layer(x)
    check(layer.double(), x)


@pytest.mark.parametrize(
    ("settings", "mode", "has_plan"),
    [
        ({}, "train", True),
        ({}, "eval", True),
        ({"dropouts": seqloom.Dropouts(recurrent=0.5)}, "train", False),
        ({"dropouts": seqloom.Dropouts(weight=0.5)}, "train", False),
        ({"dropouts": seqloom.Dropouts(recurrent=0.5)}, "eval", True),
        ({"dropouts": seqloom.Dropouts(zoneout=0.5)}, "eval", False),
    ],
)
def test_a_layer_has_a_plan_unless_there_is_noise_inside_the_recurrence(settings, mode, has_plan):
    layer = getattr(make(**settings), mode)()
    assert (plans._why_no_plan(layer, [layer.cell_at(0)]) is None) == has_plan


@pytest.mark.parametrize(
    "t", [torch.empty(0), torch.empty(3, device="meta"), torch.zeros(2, dtype=torch.complex64).conj().imag]
)
def test_a_tensor_without_an_address_is_not_read_by_kernels(t):
    assert not plans.is_readable(t)
    assert plans.is_readable(torch.zeros(1))


def test_dropout_follows_the_mode_and_the_rate():
    layer, x = make(num_layers=2, dropout=0.5), draw()
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    check(layer, x)
    layer.train()
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.dropout = 0.0
    check(layer, x)
    layer.dropouts = seqloom.Dropouts(recurrent=0.5)
    assert not torch.equal(layer(x)[0], layer(x)[0])


def test_a_planned_layer_checks_values_when_it_is_asked_to():
    layer, x = make(), draw()
    x[2, 1, 0] = torch.nan
    warm(layer, x)
    layer.check = True
    with pytest.raises(RuntimeError, match="first in row 1 at step 2"):
        layer(x)


def test_a_weight_of_another_shape_is_refused_after_a_planned_call():
    layer, x = make(), draw()
    warm(layer, x)
    layer.weight_hh_l0 = nn.Parameter(torch.randn(24, 9, dtype=torch.float64))
    with pytest.raises(RuntimeError, match=r"weight_hh_l0 must have shape \(24, 8\), got \(24, 9\)"):
        layer(x)


@pytest.mark.parametrize("size", [0, 16])
@pytest.mark.parametrize("part", ["x", "hx", "weight"])
def test_freed_memory_is_refused_after_a_planned_call(part, size):
    layer, x, hx = make(), draw(), torch.randn(1, 3, 8, dtype=torch.float64)
    warm(layer, x, hx)
    {"x": x, "hx": hx, "weight": layer.weight_hh_l0}[part].untyped_storage().resize_(size)
    with pytest.raises(RuntimeError, match=r"memory was freed|out of bounds for storage"):
        layer(x, hx)


@pytest.mark.parametrize(
    ("x", "hx", "message"),
    [
        (torch.zeros(5, 3, 5), None, "5 features, expected input_size=4"),
        (torch.zeros(0, 3, 4), None, "expected sequence length to be larger than 0"),
        (torch.zeros(5, 3, 4), torch.zeros(1, 2, 8), r"hx has shape \(1, 2, 8\), expected \(1, 3, 8\)"),
        (torch.zeros(5, 3, 4), torch.zeros(1, 3, 8).double(), "hx is torch.float64"),
        (torch.zeros(5, 3, 4), (torch.zeros(1, 3, 8),) * 2, "hx must be one tensor, got a tuple of 2"),
    ],
)
def test_bad_input_is_refused_after_a_planned_call(x, hx, message):
    layer = make().float()
    warm(layer, draw(dtype=torch.float32), torch.zeros(1, 3, 8))
    with pytest.raises(RuntimeError, match=message):
        layer(x, hx)


def test_a_copy_and_its_original_have_separate_plans():
    layer, x = make(), draw()
    before = _forward(layer, x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert "_plans" not in other.__dict__
        torch.testing.assert_close(_forward(other, x), before, rtol=0, atol=0)
        _load(other)
        assert not torch.equal(other(x)[0], before[0])
        check(other, x)
        torch.testing.assert_close(_forward(layer, x), before, rtol=0, atol=0)


def test_hooks_run_around_a_planned_call():
    layer, x = make(), draw()
    y = layer(x)[0]
    warm(layer, x)
    with (
        layer.register_forward_hook(lambda *args: (2 * args[2][0], args[2][1])),
        layer.register_forward_pre_hook(lambda *args: (args[1][0] + 1,)),
    ):
        torch.testing.assert_close(layer(x)[0], 2 * layer.forward(x + 1)[0])
    torch.testing.assert_close(layer(x)[0], y, rtol=0, atol=0)


def test_functional_call_uses_the_weights_that_it_is_given():
    layer, x = make(), draw()
    before = _forward(layer, x)
    warm(layer, x)
    other = copy.deepcopy(layer)
    _load(other)
    own = {name: w.detach().clone().requires_grad_() for name, w in other.named_parameters()}
    y, _ = functional_call(layer, own, (x,))
    torch.testing.assert_close(y, other(x)[0], rtol=0, atol=0)
    y.sum().backward()
    assert all(w.grad is not None for w in own.values()) and layer.weight_hh_l0.grad is None
    torch.testing.assert_close(_forward(layer, x), before, rtol=0, atol=0)


def test_transforms_follow_a_planned_call():
    layer, x = make(), draw()
    y = layer(x)[0]
    warm(layer, x)
    many = torch.stack([x, 2 * x])
    torch.testing.assert_close(vmap(lambda x: layer(x)[0])(many), torch.stack([layer(x)[0], layer(2 * x)[0]]))
    loss = lambda x: layer(x)[0].square().sum()  # noqa: E731
    direction = torch.randn_like(x)
    gradient = torch.autograd.grad(loss(x.requires_grad_()), x)[0]
    torch.testing.assert_close(jvp(loss, (x.detach(),), (direction,))[1], (gradient * direction).sum())
    torch.testing.assert_close(jacrev(loss)(x.detach()), gradient)
    torch.testing.assert_close(layer(x)[0], y, rtol=0, atol=0)


def test_autocast_is_followed_after_a_planned_call():
    layer, x = make().float(), draw(dtype=torch.float32)
    y = layer(x)[0]
    warm(layer, x)
    with torch.autocast("cpu", torch.bfloat16):
        inside = layer(x)[0]
    assert inside.dtype == torch.bfloat16
    torch.testing.assert_close(layer(x)[0], y, rtol=0, atol=0)


def test_a_compiled_layer_follows_a_planned_call():
    layer, x = make(), draw()
    y = layer(x)[0]
    warm(layer, x)
    torch._dynamo.reset()
    whole = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(whole(x)[0], y)
    _load(layer)
    torch.testing.assert_close(whole(x)[0], layer(x)[0])
    check(layer, x)


def test_inference_mode_leaves_nothing_that_training_cannot_use():
    for cell in CELLS:
        layer, x = make(cell), draw()
        with torch.inference_mode():
            layer(x)
        check(layer, x)


def test_deterministic_algorithms_and_threads_do_not_change_a_planned_call():
    layer, x, threads = make(hidden_size=256), draw(rows=8), torch.get_num_threads()
    y = layer(x)[0]
    for _ in range(3):
        layer(x)
    try:
        torch.use_deterministic_algorithms(True)
        torch.testing.assert_close(layer(x)[0], y)
        torch.set_num_threads(2)
        torch.testing.assert_close(layer(x)[0], y)
        assert len(layer.__dict__["_plans"].plans) == (2 if threads != 2 else 1)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)


def test_ever_new_shapes_keep_a_limited_number_of_plans():
    layer = make()
    for steps in range(1, 150):
        layer(draw(steps, 2))
    assert len(layer.__dict__["_plans"].plans) <= 64
    check(layer, draw())


def test_many_kinds_of_repeated_calls_keep_their_own_plans():
    layer, slow = make("lstm"), make("lstm", kernel="loop")
    slow.load_state_dict(layer.state_dict())
    inputs = [draw(steps) for steps in range(1, bound_call.MOST_KINDS + 4)]
    for _ in range(3):
        for x in inputs:
            y, state = layer(x)
            torch.testing.assert_close(layer(x, state), slow(x, state))
            torch.testing.assert_close(y, slow(x)[0])
    own = vars(layer)
    found = [own["_plans"].find(own, x, None) is not None for x in inputs]
    assert sum(found) in (0, bound_call.MOST_KINDS)


@each_cell
def test_inputs_in_any_memory_order_give_the_same(cell):
    layer, x = make(cell), draw()
    y = layer(x)[0]
    warm(layer, x)
    for same in (
        x.transpose(0, 1).contiguous().transpose(0, 1),
        torch.stack([x, x], -1)[..., 0],
        F.pad(x, (0, 1))[..., :4],
    ):
        assert not same.is_contiguous()
        torch.testing.assert_close(layer(same)[0], y, rtol=0, atol=0)


def test_a_second_backward_is_refused_as_torch_does_and_kept_graphs_allow_it():
    layer, x = make(), draw()
    loss = layer(x)[0].sum()
    first = torch.autograd.grad(loss, layer.weight_hh_l0, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, layer.weight_hh_l0), first, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, layer.weight_hh_l0)


def test_gradients_in_buckets_of_a_distributed_model_stay_right(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        layer, x = make(), draw()
        whole = nn.parallel.DistributedDataParallel(layer, gradient_as_bucket_view=True)
        slow = copy.deepcopy(layer)
        slow.kernel = "loop"
        for _ in range(2):
            for one in (whole, slow):
                optimiser = torch.optim.SGD(one.parameters(), lr=0.1)
                optimiser.zero_grad()
                one(x)[0].square().sum().backward()
                optimiser.step()
        torch.testing.assert_close(list(layer.parameters()), list(slow.parameters()))
    finally:
        torch.distributed.destroy_process_group()


@each_cell
@pytest.mark.parametrize("settings", [{}, {"num_layers": 2, "batch_first": True}])
@pytest.mark.parametrize("shape", [(5, 3, 4), (5, 4)])
def test_a_plan_of_chosen_kernels_has_the_loops_values(cell, settings, shape):
    layer, x = make(cell, kernel="loop", **settings), torch.randn(shape, dtype=torch.float64)
    weights = list(layer.parameters())
    cells, home = list(layer.cells), {name: i for i, name in enumerate(layer._parameters)}
    names = [{mine: home[theirs] for mine, theirs in c._names.items()} for c in cells]
    plan = KernelPlan(Stack(cells, names, x.shape, layer.batch_first, 1), [find_kernel(f"{cell}_cpu")] * len(cells))
    y, state = plan.run(x, [], weights, True)
    torch.testing.assert_close([y, *tensors(state)], run(layer, x)[: 1 + len(tensors(state))])
    hx = [torch.randn_like(s) for s in tensors(state)]
    y, state = plan.run(x, hx, weights, True)
    actual = layer(x, tuple(hx) if len(hx) > 1 else hx[0])
    torch.testing.assert_close([y, *tensors(state)], [actual[0], *tensors(actual[1])])


@each_cell
@pytest.mark.parametrize("settings", [{}, {"batch_first": True, "bidirectional": True}, {"num_layers": 2}], ids=str)
@pytest.mark.parametrize("input_size", [1, 5, 32])
def test_the_engine_multiplies_a_short_input_of_any_size(cell, settings, input_size):
    layer = make(cell, input_size, 12, **settings)
    x, lengths = draw_ragged(input_size, layer.batch_first)
    y, *gradients = _run_ragged(layer, x, lengths)
    (plan,) = layer._plans.plans.values()
    assert isinstance(plan, PreparedStack) and all(part.is_whole for part in plan.parts if part.weight is not None)
    assert any(part.weight is not None for part in plan.parts)
    layer.kernel = "loop"
    torch.testing.assert_close([y, *gradients], _run_ragged(layer, x, lengths))


def draw_ragged(input_size, batch_first):
    """Return an input (4 rows, 7 steps) whose padding is NaN, and its lengths; one row has no step."""
    lengths = torch.tensor([7, 3, 0, 1])
    x = torch.randn(4, 7, input_size, dtype=torch.float64)
    x[torch.arange(7) >= lengths[:, None]] = torch.nan
    return (x if batch_first else x.transpose(0, 1).contiguous()), lengths


def _run_ragged(layer, x, lengths):
    """Return the outputs, and the gradients of the input and the weights."""
    leaf = x.detach().requires_grad_()
    y, _ = layer(leaf, lengths=lengths)
    return [y, *torch.autograd.grad(y.sin().sum(), (leaf, *layer.parameters()))]


def test_torch_multiplies_a_long_input():
    layer = make("gru", 32, 32)
    layer(torch.randn(400, 4, 32, dtype=torch.float64))
    (plan,) = layer._plans.plans.values()
    assert not plan.parts[0].is_whole
