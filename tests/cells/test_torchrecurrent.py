"""Cells give the results of torchrecurrent 0.2.5 with the same weights, except where that package leaves its paper."""

import pytest
import torch

import seqloom
import seqloom.cells
from seqloom.core.cell import Cell

theirs = pytest.importorskip("torchrecurrent", reason="torchrecurrent is not installed")

B, T, D, H = 3, 5, 4, 6
# Our name of a parameter for theirs, where the two differ.
NAMES = {
    "br": {"weight_hh": "scale_hh"},
    "cornn": {"weight_ch": "weight_zh"},
    "dsgu": {},
    "fast_rnn": {"alpha": "scale_n", "beta": "scale_h"},
    "fast_grnn": {"zeta": "scale_z", "nu": "scale_n"},
    "indrnn": {"vector_u": "scale_hh"},
    "minimal_rnn": {"weight_mm": "weight_zu"},
    "multiplicative_lstm": {
        "weight_hh": "weight_hm",
        "weight_mh": "weight_hh",
        "bias_hh": "bias_hm",
        "bias_mh": "bias_hh",
    },
    "peephole_lstm": {"weight_ph": "scale_c"},
    "res_lstm": {"weight_ph": "scale_c", "weight_proj": "weight_p", "weight_res": "weight_r"},
    "t_gru": {"weight_hh": "weight_ph"},
    "t_lstm": {"weight_hh": "weight_ph"},
    "unicornn": {"weight_hh": "scale_hh", "weight_ch": "scale_dt"},
    "wmc_lstm": {"weight_mh": "weight_ch", "bias_mh": "bias_ch"},
}
# A bias of theirs that ours has not: it adds to the bias of the input, in these blocks of it.
ADDED = {
    "br": ("bias_hh", slice(0, 2)),
    "cornn": ("bias_ch", slice(0, 1)),
    "fast_grnn": ("bias_hh", slice(0, 2)),
    "gated_antisymmetric_rnn": ("bias_hh", slice(1, 2)),
    "indrnn": ("bias_hh", slice(0, 1)),
    "t_gru": ("bias_hh", slice(0, 3)),
    "t_lstm": ("bias_hh", slice(0, 3)),
    "unicornn": ("bias_hh", slice(0, 1)),
}
SETTINGS = {  # ours, theirs
    "antisymmetric_rnn": ({"epsilon": 0.3, "gamma": 0.1},) * 2,
    "gated_antisymmetric_rnn": ({"epsilon": 0.3, "gamma": 0.1},) * 2,
    "fast_grnn": ({}, {"nonlinearity": "sigmoid"}),  # their default is tanh
    "indrnn": ({}, {"nonlinearity": "relu"}),  # their default is tanh
}
# Their name of each cell that both packages have: ours without underscores, in any case.
THEIRS = {name.lower(): name for name in dir(theirs) if hasattr(theirs, f"{name}Cell")}
BOTH = {name: THEIRS[name.replace("_", "")] for name in sorted(Cell.registry) if name.replace("_", "") in THEIRS}
UNLIKE = ("lem", "nas", "scrn")  # theirs differ from the papers; test_equations.py has ours
CELLS = [name for name in BOTH if name not in UNLIKE]


def make_pair(name):
    """Return a cell of ours and a layer of theirs in float64 with the same weights."""
    ours, other = SETTINGS.get(name, ({}, {}))
    size = H if name == "intersection_rnn" else D
    cell = Cell.registry[name](size, H, dtype=torch.float64, **ours)
    layer = getattr(theirs, BOTH[name])(size, H, **other).double()
    names, (added, _) = NAMES.get(name, {}), ADDED.get(name, ("", None))
    with torch.no_grad():
        for theirs_name, p in layer.cells[0].named_parameters():
            p.uniform_(-0.7, 0.7)
            if theirs_name == "beta" and name == "janet":
                p.fill_(1.0)  # a constant in the paper
            elif theirs_name != added:
                getattr(cell, names.get(theirs_name, theirs_name)).copy_(p)
        if added:
            sum_biases(name, cell, layer.cells[0])
    return cell, layer


def sum_biases(name, cell, theirs_cell):
    bias, blocks = ADDED[name]
    more = getattr(theirs_cell, bias)
    cell.bias_ih.view(-1, H)[blocks] += more.view(-1, H)


def run_both(name):
    """Return outputs and gradients of the input, ours and theirs."""
    cell, layer = make_pair(name)
    x = torch.randn(T, B, cell.input_size, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(T, B, H, dtype=torch.float64)
    y, _ = seqloom.scan(cell, x.transpose(0, 1), kernel="loop")
    mine = {"y": y.transpose(0, 1), "dx": torch.autograd.grad((y.transpose(0, 1) * dy).sum(), x, retain_graph=True)[0]}
    grads = torch.autograd.grad((y.transpose(0, 1) * dy).sum(), list(cell.parameters()))
    mine |= {f"d{n}": g for (n, _), g in zip(cell.named_parameters(), grads, strict=True)}
    out, _ = layer(x)
    others = {"y": out, "dx": torch.autograd.grad((out * dy).sum(), x, retain_graph=True)[0]}
    own = [(n, p) for n, p in layer.cells[0].named_parameters() if not (name == "janet" and n == "beta")]
    grads = torch.autograd.grad((out * dy).sum(), [p for _, p in own])
    names, (added, _) = NAMES.get(name, {}), ADDED.get(name, ("", None))
    others |= {f"d{names.get(n, n)}": g for (n, _), g in zip(own, grads, strict=True) if n != added}
    return mine, others


@pytest.mark.every_cell
@pytest.mark.parametrize("name", CELLS)
def test_outputs_and_gradients_are_those_of_torchrecurrent(name):
    mine, others = run_both(name)
    assert set(mine) == set(others)
    near = 1e-7 if name in ("sgu", "dsgu") else 1e-9  # torch's hardsigmoid takes 1/6 in float32 for its derivative
    for result, expected in others.items():
        torch.testing.assert_close(mine[result], expected, rtol=near, atol=near, msg=lambda m, r=result: f"{r}: {m}")


def test_every_cell_of_torchrecurrent_is_here():
    assert set(BOTH.values()) == set(THEIRS.values())
