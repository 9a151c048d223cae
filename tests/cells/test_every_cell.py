"""Properties of every registered cell, including new ones."""

import pytest
import torch

import seqloom
import seqloom.cells
from seqloom import measure
from seqloom.cells.ideas import IDEAS
from seqloom.core.cell import Cell
from seqloom.tools.testing import check_cell, check_layer

NAMES = sorted(Cell.registry)
PAIRS = [(1, 4), (3, 8), (8, 8), (5, 12), (16, 16), (7, 20), (24, 32), (64, 64), (64, 128), (100, 36)]


@pytest.mark.every_cell
@pytest.mark.parametrize("name", NAMES)
def test_a_cell_passes_the_public_check(name):
    check_cell(name)


@pytest.mark.sample(3)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_two_layers_of_a_cell_pass_the_public_check(name, bidirectional):
    check_layer(lambda: seqloom.Recurrent(name, 5, 8, 2, bidirectional=bidirectional, batch_first=True))


@pytest.mark.parametrize("size", PAIRS)
@pytest.mark.parametrize("name", sorted(measure.FORMULAS))
def test_parameters_are_those_of_the_formula(name, size):
    assert measure.parameters(seqloom.Recurrent(name, *size)) == measure.FORMULAS[name][1](*size)


@pytest.mark.every_cell
@pytest.mark.parametrize("name", NAMES)
def test_a_cell_names_its_source_and_its_equations(name):
    kind = Cell.registry[name]
    assert "'" in kind.__doc__ and "=" in kind.__doc__ and str(kind.year) in kind.__doc__
    assert kind.idea in IDEAS and (kind.parent in Cell.registry or not kind.parent)


@pytest.mark.every_cell
@pytest.mark.parametrize("name", [name for name in NAMES if getattr(Cell.registry[name], "enter", None)])
def test_coupled_memory_closes_the_input_gate_as_far_as_it_opens_the_other(name):
    cell, bias = Cell.registry[name](4, 8), torch.linspace(1, 3, 8)
    before = cell.gates(*make_step(cell))
    cell.remember(bias)
    alone = cell.gates(*make_step(cell))
    cell.remember(bias, coupled=True)
    both = cell.gates(*make_step(cell))
    assert (alone["f"] > before["f"]).all()
    assert (both["f"] >= alone["f"]).all()  # equal but for sLSTM, whose gates share a scale
    assert (both["i"] < alone["i"]).all()


def make_step(cell):
    """Return an input and a state of zeros, so that a gate is what its bias makes it."""
    x = torch.zeros(1, 1, 4)
    return cell.project(x)[:, 0], tuple(torch.zeros_like(s) for s in cell.initial_state(x[:, 0]))


LONG = ("ln_gru", "ln_lstm", "ntm", "ode_gru", "rnn_attention")  # seconds
SLOW = ("cornn", "ltc", "mass_lstm", "rhn", "scrn", "unicornn")  # to learn, most by small steps of time


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n in LONG)) for n in NAMES])
def test_a_cell_learns_to_carry_its_first_input(name):
    """Train it to output the sign of the first, marked input after five steps of noise."""
    torch.manual_seed(0)
    layer, head = seqloom.Recurrent(name, 2, 16, batch_first=True), torch.nn.Linear(16, 1)
    optimiser = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=1e-2)

    def answer(x):
        """A liquid time constant forgets within two units of time, so its six steps take one."""
        more = {"timespans": torch.full(x.shape[:2], 1 / 6)} if name == "ltc" else {}
        return head(layer(x, **more)[0][:, -1])

    for _ in range(600 if name in SLOW else 150):
        x, y = marked(64)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(answer(x), y)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimiser.step()
    x, y = marked(1000)
    assert ((answer(x) > 0) == y).float().mean() > 0.9


def marked(rows):
    x = torch.randn(rows, 6, 2)
    x[:, :, 1] = torch.tensor([1.0, 0, 0, 0, 0, 0])
    return x, (x[:, :1, 0] > 0).float()
