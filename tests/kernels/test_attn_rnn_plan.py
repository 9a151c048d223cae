"""Prepared calls of AttnRNN's GPU kernels, emulated on the CPU: the same bits as the calls that they replace."""

import pytest
import torch

import seqloom
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.attn_rnn import block, cluster, plan, row
from seqloom.kernels.cuda.runtime import graphs, prepared_cell
from seqloom.kernels.kernel_plan import KernelPlan
from seqloom.kernels.registry import find_kernel
from seqloom.kernels.stack import Stack

pytestmark = pytest.mark.usefixtures("emulated")
H, BF16, FP32 = 16, torch.bfloat16, torch.float32


def make_plans(kernel, code, dtype, shape, units=H, **settings):
    """Return a layer, its prepared plan and one that runs the kernel's ordinary calls."""
    layer = seqloom.AttnRNN(shape[-1], units, heads=2, kernel="loop", dtype=dtype, **settings)
    for p in layer.parameters():
        p.data.add_(0.05 * torch.randn_like(p))
    home, cells = {name: i for i, name in enumerate(layer._parameters)}, list(layer.cells)
    names = [{mine: home[theirs] for mine, theirs in c._names.items()} for c in cells]
    stack, weights = Stack(cells, names, torch.Size(shape), layer.batch_first, 1), list(layer.parameters())
    assert plan.why_not_plan(cells, weights) is None
    prepared = plan.AttnRNNPlan(stack, [code.KERNEL] * len(cells), weights, kernel)
    return layer, prepared, KernelPlan(stack, [find_kernel(f"attn_rnn_{kernel}")] * len(cells))


def run(one, layer, x, hx, train):
    """Return the outputs, the last state and, with `train`, every gradient."""
    weights = list(layer.parameters())
    leaves = [x.detach().requires_grad_(), *(s.detach().requires_grad_() for s in hx), *weights]
    if not train:
        with torch.no_grad():
            return list(one.run(x, hx, weights, False))
    y, last = one.run(leaves[0], leaves[1 : 1 + len(hx)], weights, True)
    loss = y.float().square().sum() + last.float().sin().sum()
    return [y, last, *torch.autograd.grad(loss, leaves)]


CASES = [
    ("row", row, FP32, (5, 3, 16), {}),
    ("row", row, FP32, (5, 3, 6), {"batch_first": True, "num_layers": 2}),
    ("row", row, BF16, (5, 3, 16), {}),  # the kernel writes the last state in the type of the layer
    ("row", row, FP32, (5, 6), {}),
    ("row", row, FP32, (4, 3, 6), {"units": 20}),  # heads of 10 units become 16
    ("row", row, FP32, (3, 2, 20), {"units": 20, "batch_first": True, "num_layers": 2}),
    pytest.param("cuda", block, BF16, (5, 3, 16), {"norm": False}, marks=pytest.mark.long),
    pytest.param("cluster", cluster, BF16, (4, 3, 16), {"num_layers": 2}, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("kernel", "code", "dtype", "shape", "settings"), CASES)
def test_a_prepared_call_has_the_bits_of_an_ordinary_one(kernel, code, dtype, shape, settings):
    layer, prepared, ordinary = make_plans(kernel, code, dtype, shape, **settings)
    x = torch.randn(shape, dtype=dtype)
    given = torch.randn(prepared.h_shapes[0], dtype=dtype)
    for hx in ([], [given]):
        for train in (False, True, True):
            actual, expected = (run(one, layer, x, hx, train) for one in (prepared, ordinary))
            exact = {"rtol": 0, "atol": 0}
            torch.testing.assert_close(actual[:2], expected[:2], **exact)
            # the gradients of the input's weights are one product here, and autograd's elsewhere
            torch.testing.assert_close(actual[2:], expected[2:], **(exact if shape[-1] == H else {}))


def test_a_prepared_call_has_second_derivatives_and_takes_missing_gradients():
    layer, prepared, _ = make_plans("row", row, FP32, (4, 2, 6))
    x, weights = torch.randn(4, 2, 6, requires_grad=True), list(layer.parameters())
    (mine,) = torch.autograd.grad(prepared.run(x, [], weights, True)[1].sum(), x)  # nothing depends on y
    (slow,) = torch.autograd.grad(layer(x)[1].sum(), x)
    torch.testing.assert_close(mine, slow)
    (mine,) = torch.autograd.grad(prepared.run(x, [], weights, True)[0].sum(), x, create_graph=True)
    (slow,) = torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)
    more = [torch.autograd.grad(d.square().sum(), [x, *weights], allow_unused=True) for d in (mine, slow)]
    torch.testing.assert_close(*more)


class Replayed:
    """In place of a CUDA graph, which a CPU does not have: makes the launches again."""

    def __init__(self, launch):
        self.replay = launch
        launch()


@pytest.mark.parametrize(
    ("kernel", "code", "dtype", "units"),
    [("row", row, FP32, H), ("row", row, FP32, 20), pytest.param("cuda", block, BF16, H, marks=pytest.mark.long)],
)
def test_passes_in_chunks_are_recorded(monkeypatch, kernel, code, dtype, units):
    monkeypatch.setattr(heuristics, "CHUNK_BYTES", 1)
    monkeypatch.setattr(heuristics, "RUNS_BEFORE_RECORDING", 2)
    monkeypatch.setattr(graphs, "_record_launches", Replayed)
    monkeypatch.setattr(prepared_cell.PreparedCell, "_find_recording_stream", lambda _: 7)
    layer, prepared, ordinary = make_plans(kernel, code, dtype, (11, 2, 16), units=units)
    found = []
    for i in range(4):
        x, hx = torch.randn(11, 2, 16, dtype=dtype), [torch.randn(1, 2, units, dtype=dtype)] * (i != 1)
        found.append([run(one, layer, x, hx, True) for one in (prepared, ordinary)])
        with torch.no_grad():
            layer.weight_q_l0.mul_(1.1)  # in place, as an optimiser does
    assert prepared.cells[0].back_recorder.kept is not None
    # the product with the input has padded rows here, and may add in another order
    close = {"rtol": 0, "atol": 0} if units == H else {"rtol": 1e-4, "atol": 1e-4}
    for actual, expected in found:  # those of earlier passes were not overwritten
        torch.testing.assert_close(actual, expected, **close)


@pytest.mark.parametrize(
    ("dtype", "shape", "settings"),
    [(FP32, (4, 3, 6), {}), (BF16, (4, 3, 16), {"num_layers": 2}), (FP32, (4, 2, 6), {"units": 20})],
)
@pytest.mark.parametrize("is_recorded", [False, True])
def test_weights_that_move_between_the_passes_are_read_where_they_are(
    monkeypatch, move_weights, dtype, shape, settings, is_recorded
):
    if is_recorded:
        monkeypatch.setattr(heuristics, "RUNS_BEFORE_RECORDING", 1)
        monkeypatch.setattr(graphs, "_record_launches", Replayed)
        monkeypatch.setattr(prepared_cell.PreparedCell, "_find_recording_stream", lambda _: 7)
    layer, prepared, _ = make_plans("row", row, dtype, shape, **settings)
    x, weights = torch.randn(shape, dtype=dtype), list(layer.parameters())
    expected = [run(prepared, layer, x, [], True)[2:] for _ in range(2)][1]
    y, last = prepared.run(x.requires_grad_(), [], weights, True)
    loss = y.float().square().sum() + last.float().sin().sum()
    for moves in range(3):  # once, twice, and then not
        if moves < 2:
            move_weights(weights)
        actual = torch.autograd.grad(loss, [x, *weights], retain_graph=True)
        torch.testing.assert_close(list(actual), expected, rtol=0, atol=0)


def test_weights_that_move_to_odd_addresses_are_copied_in_every_pass():
    layer, prepared, ordinary = make_plans("row", row, FP32, (4, 3, 6))
    x, weights = torch.randn(4, 3, 6), list(layer.parameters())
    for _ in range(3):
        y, _ = prepared.run(x, [], weights, True)
        expected = torch.autograd.grad(ordinary.run(x, [], weights, True)[0].square().sum(), weights)
        original = [w.data for w in weights]
        for w in weights:
            w.data = torch.cat([w.new_zeros(1), w.flatten().detach()])[1:].view(w.shape)
        torch.testing.assert_close(torch.autograd.grad(y.square().sum(), weights), expected)
        for w, value in zip(weights, original, strict=True):
            w.data = value.mul_(1.1)


def test_an_input_at_an_odd_address_is_copied():
    layer, prepared, _ = make_plans("row", row, FP32, (4, 2, 16))
    x = torch.randn(4 * 2 * 16 + 1)[1:].view(4, 2, 16)
    torch.testing.assert_close(run(prepared, layer, x, [], True), run(prepared, layer, x.clone(), [], True))


def test_cells_without_a_prepared_call_are_named():
    for settings in ({"input_norm": True}, {"slots": 2}, {"learn_initial_state": True}):
        layer = seqloom.AttnRNN(4, H, **settings)
        assert plan.why_not_plan(list(layer.cells), list(layer.parameters()))
