"""Functions that are written as expressions of others: values and derivatives are torch's, also at limits."""

import math

import pytest
import torch
from torch.testing import assert_close

import seqloom
from seqloom.compiler import rules
from seqloom.compiler.functions import attach
from seqloom.compiler.rules import _list_functions
from seqloom.core.cell import Cell

aten = torch.ops.aten
WIDE = [-1e4, -90.0, -3.0, -1.5, -1.0, -0.5, -1e-3, -1e-20, 0.0, 1e-20, 1e-3, 0.5, 1.0, 1.5, 3.0, 90.0, 1e4]
NARROW = [-0.999, -0.5, -1e-3, 0.0, 1e-9, 0.3, 0.999]
PART = [1e-9, 0.1, 0.5, 0.9, 1 - 1e-9]
POSITIVE = [1e-30, 1e-3, 0.5, 1.0, 3.0, 1e30]
TABLE = [[3.0, -4.0, 0.5, 3.0], [1.0, math.inf, 1.0, -2.0]]
SIGNAL = [[[1.0, 2.0, -1.0, 0.5, 3.0], [0.0, 1.0, 1.0, -2.0, 4.0]]]
FILTER = torch.linspace(-1, 2, 12, dtype=torch.float64).view(3, 2, 2)
ARGUMENTS = {
    aten.leaky_relu.default: [(WIDE,), (WIDE, 0.3)],
    aten.elu.default: [(WIDE,), (WIDE, 1.6732632423543772, 1.0507009873554805), (WIDE, 0.7, 1, 2.0)],
    aten.hardtanh.default: [(WIDE,), (WIDE, 0.0, 6.0)],
    aten.hardshrink.default: [(WIDE,), (WIDE, 1.0)],
    aten.softshrink.default: [(WIDE,), (WIDE, 1.0)],
    aten.tan.default: [([-90.0, -1.5, -1e-3, 0.0, 1e-9, 0.7, 1.5, 90.0],)],
    aten.asinh.default: [(WIDE,)],
    aten.atanh.default: [(NARROW,)],
    aten.erfc.default: [(WIDE,)],
    aten.exp2.default: [([-90.0, -1.0, 0.0, 0.5, 90.0],)],
    aten.log2.default: [(POSITIVE,)],
    aten.log10.default: [(POSITIVE,)],
    aten.logit.default: [(PART,), (PART, 0.2), ([0.1, 0.2, 0.5, 0.8, 0.9], 0.2)],
    aten.hypot.default: [(WIDE, [1.5] * len(WIDE)), ([3.0, -1e-9, 0.0], [-4.0, 0.0, 2.0])],
    aten.sgn.default: [(WIDE,)],
    aten.isnan.default: [([math.nan, math.inf, 0.0],)],
    aten.nan_to_num.default: [([math.nan, math.inf, -math.inf, 2.0],), ([math.nan, math.inf, 1.0], 3.0, 4.0, 5.0)],
    aten.atan.default: [([*WIDE, math.inf, -math.inf],)],
    aten.atan2.default: [(WIDE, torch.tensor([[0.7], [-0.0], [0.0], [-1.0], [1e300]], dtype=torch.float64))],
    aten.sort.default: [(TABLE, -1), (TABLE, 1, True), ([[[1.0], [0.5]], [[0.5], [0.5]]], 1)],
    aten.sort.stable: [],  # the same function
    aten.topk.default: [([[3.0, -1.0, 0.5, 7.0]], 2), ([[3.0, -math.inf, 0.5, 7.0]], 3, -1, False)],
    aten.max.dim: [(TABLE, 1), (TABLE, -1, True)],
    aten.min.dim: [(TABLE, 1), (TABLE, -1, True)],
    aten.index.Tensor: [(TABLE, [None, torch.tensor([2, 0, 2, -1])])],
    aten.index_select.default: [(TABLE, 1, torch.tensor([3, 3, 0]))],
    aten.index_put.default: [(TABLE, [torch.tensor(TABLE) > 1], torch.tensor(7.0, dtype=torch.float64))],
    aten.select_scatter.default: [(TABLE, torch.tensor([5.0, 6.0], dtype=torch.float64), 1, -1)],
    aten.slice_scatter.default: [
        (TABLE, torch.ones(2, 2, dtype=torch.float64), 1, 1, 3),
        (TABLE, torch.ones(2, 1, dtype=torch.float64), -1, 3),
        (TABLE, torch.ones(2, 4, dtype=torch.float64), 0),
    ],
    aten.convolution.default: [
        (SIGNAL, FILTER, None, [1], [0], [1], False, [0], 1),
        (SIGNAL, FILTER, torch.arange(3.0, dtype=torch.float64), [2], [3], [2], False, [0], 1),
        (SIGNAL, FILTER[:2, :1], None, [1], [1], [1], False, [0], 2),
        ([[[1.0, 2.0]] * 6], torch.rand(2, 6, 1, dtype=torch.float64), None, [1], [0], [1], False, [0], 1),
    ],
    aten.constant_pad_nd.default: [(TABLE, [2, 1], 0.5), (TABLE, [-1, 3]), (TABLE, [1, -2])],
    aten.slice.Tensor: [(TABLE, 1, 0, 9, 2), (TABLE, -1, 1, None, 3), (TABLE, 1, -3, -1, 2)],
    aten.fill.Tensor: [(TABLE, torch.tensor(2.0, dtype=torch.float64))],
    aten.fill.Scalar: [(TABLE, 2.0)],
    aten.copy.default: [(TABLE, torch.ones(4, dtype=torch.float64))],
    aten.remainder.Scalar: [(WIDE, 2.5), (WIDE, 2 * math.pi), ([2.0, 4.0, -2.0, 5.9999999999999996], 2.0)],
    aten.linalg_vector_norm.default: [([[3.0, -4.0], [0.0, 0.0]], 2, [-1]), ([[3.0, -4.0]], 1, [0, 1], True)],
    aten.norm.ScalarOpt_dim: [([[3.0, -4.0], [0.0, 0.0]], 2, [-1], True)],
    aten.var.correction: [([[3.0, -4.0, 1.0]], [-1]), ([[3.0, 4.0], [1.0, 1.0]], None)],
    aten.std.correction: [([[3.0, -4.0, 1.0], [2.0, 2.0, 2.0]], [-1]), ([[3.0, 4.0, 1.0]], [1])],
    aten.roll.default: [([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]], [1, -4], [1, 2]), ([[1.0, 2.0]], [2], [-1])],
    aten.flip.default: [([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]], [1, -1])],
    aten.cumsum.default: [([[1.0, -2.0, 3.0, 0.5, 7.0]], -1), ([[2.0]], 1)],
    aten.cumprod.default: [([[1.0, -2.0, 3.0, 0.5, 7.0]], -1), ([[2.0, 0.0, 3.0]], 1)],
    aten.prod.dim_int: [([[1.0, -2.0, 0.0, 0.5, 7.0]], -1), ([[1.0, 3.0]], 1, True), ([[4.0]], 1)],
}


def test_every_rule_is_tested():
    assert set(ARGUMENTS) == set(_list_functions())


@pytest.mark.parametrize("operator", ARGUMENTS, ids=str)
def test_values_and_derivatives_are_those_of_torch(operator, monkeypatch):
    # while a step is traced, the compiler attaches these derivatives
    monkeypatch.setattr(rules, "own_derivative", lambda i, s, o, name: attach(rules.RULES[name], i, s, o))
    for first, *others in ARGUMENTS[operator]:
        x = torch.tensor(first, dtype=torch.float64, requires_grad=True)
        leaves = [x]
        if operator is aten.hypot.default:
            others[0] = torch.tensor(others[0], dtype=torch.float64)
        found = []
        leaves += [t.requires_grad_() for t in others if isinstance(t, torch.Tensor) and t.is_floating_point()]
        for function in (_list_functions()[operator], operator):
            results = function(x, *others)
            y, *places = results if isinstance(results, (tuple, list)) else (results,)
            if y.dtype == torch.bool or operator in (aten.copy.default, aten.fill.Scalar):  # without a derivative
                found.append([y])
                continue
            weights = torch.arange(1.0, y.numel() + 1, dtype=torch.float64).view(y.shape)
            gradients = torch.autograd.grad((y * weights).nan_to_num(0, 0, 0).sum(), leaves, allow_unused=True)
            found.append(
                [y, *places, *(torch.zeros_like(t) if g is None else g for g, t in zip(gradients, leaves, strict=True))]
            )
        assert_close(*found, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (aten.remainder.Scalar, (torch.ones(2), -1.0)),
        (aten.linalg_vector_norm.default, (torch.ones(2), 3.0)),
        (aten.roll.default, (torch.ones(2, 2), [1])),
        (aten.flip.default, (torch.ones(2, 17), [1])),
        (aten.flip.default, (torch.ones(2, 3), [0])),
        (aten.roll.default, (torch.ones(2, 3), [1], [-2])),
        (aten.cumsum.default, (torch.ones(2, 17), -1)),
        (aten.sort.default, (torch.ones(2, 129), -1)),
        (aten.sort.default, (torch.ones(2, 3), 0)),
        (aten.max.dim, (torch.ones(2, 3), 0)),
        (aten.index.Tensor, (torch.ones(2, 3), [torch.tensor([1])])),
        (aten.index.Tensor, (torch.ones(2, 3), [None, torch.tensor([[1]])])),
        (aten.index_put.default, (torch.ones(2, 3), [None, torch.tensor([1])], torch.ones(()))),
        (aten.slice.Tensor, (torch.ones(4, 3), 0, 0, 4, 2)),
        (aten.constant_pad_nd.default, (torch.ones(4, 3), [0, 0, 1, 1])),
        (
            aten.convolution.default,
            (torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        ),
        (aten.prod.dim_int, (torch.ones(2, 3), 1, False)),
    ],
    ids=str,
)
def test_what_has_no_short_form_is_left_to_torch(operator, arguments):
    settings = {"dtype": torch.float64} if operator is aten.prod.dim_int else {}
    assert _list_functions()[operator](*arguments, **settings) is NotImplemented


class Many(Cell):
    """A step of many functions."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.w, self.u = torch.nn.Linear(input_size, hidden_size), torch.nn.Linear(hidden_size, hidden_size)

    def step(self, x, state):
        (h,) = state
        F = torch.nn.functional
        a = self.w(x) + self.u(h)
        a = F.leaky_relu(a, 0.2) + F.selu(a.roll(1, -1)) + torch.asinh(a).flip(-1)
        a = F.normalize(a, dim=-1) + 0.1 * a.cumsum(-1) + a.std(-1, keepdim=True) + F.hardtanh(a)
        a = a + 0.1 * torch.remainder(3 * a, 2.0) + F.softshrink(a) + torch.tan(0.1 * torch.tanh(a))
        h = torch.tanh(a + 0.1 * torch.tanh(a).prod(-1, keepdim=True))
        return h, (h,)


def test_a_cell_of_many_functions_is_compiled_and_matches_the_loop():
    layer = seqloom.Recurrent(Many, 5, 6, dtype=torch.float64)
    x = torch.randn(7, 3, 5, dtype=torch.float64, requires_grad=True)
    found = []
    for kernel in ("compiled", "loop"):
        layer.kernel = kernel
        y, _ = layer(x, lengths=[7, 0, 4])
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])])
    assert_close(*found)
