"""Two ways of torch's fused LSTM through rows of different lengths, and when the engine runs an LSTM instead of it."""

import pytest
import torch

from seqloom.cells import LSTMCell
from seqloom.core.job import ScanJob
from seqloom.kernels.aten import kernels
from seqloom.kernels.aten.cudnn import parameter_names
from seqloom.kernels.cpu import kernels as cpu
from seqloom.kernels.cpu.engine import load_library
from seqloom.kernels.dispatch import choose


@pytest.mark.parametrize("settings", [{}, {"bias": False}, {"proj_size": 3}, {"bias": False, "proj_size": 3}])
def test_keeping_the_state_past_a_rows_end_matches_removing_the_row(settings):
    torch.manual_seed(0)
    cell = LSTMCell(4, 5, **settings).double()
    own = [getattr(cell, name) for name in parameter_names(cell)]
    x = torch.randn(6, 9, 4, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn_like(s).requires_grad_() for s in cell.initial_state(x))
    lengths = torch.tensor([9, 1, 4, 0, 9, 3])
    results = []
    for y, (h, c) in (kernels._run_held(cell, x, state, own, lengths), kernels._run_pieces(x, state, own, lengths)):
        loss = (y * torch.linspace(1, 2, 9, dtype=y.dtype)[:, None]).sum() + h.square().sum() + c.pow(3).sum()
        results.append([y, h, c, *torch.autograd.grad(loss, [x, *state, *own])])
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-12)


@pytest.mark.skipif(isinstance(load_library(), str), reason="no engine")
@pytest.mark.parametrize(
    ("units", "rows", "steps", "trains", "backend"),
    [
        (256, 32, 1, False, "cpu"),  # one step: oneDNN rearranges all weights for it
        (256, 32, 1, True, "aten"),
        (256, 32, 4, False, "aten"),
        (200, 32, 1, False, "aten"),  # parts of vectors
        (64, 20, 64, True, "cpu"),  # small
        (64, 32, 64, True, "aten"),
        (512, 32, 64, True, "cpu"),  # oneDNN is slow
    ],
)
def test_the_engine_runs_an_lstm_where_it_is_faster_than_onednn(units, rows, steps, trains, backend, monkeypatch):
    monkeypatch.setattr(cpu, "HAS_ONEDNN_LSTM", True)  # as on x86
    cell, x = LSTMCell(8, units), torch.zeros(rows, steps, 8)
    with torch.set_grad_enabled(trains):
        assert choose(cell, ScanJob(x, cell.start(x))).kernel.backend == backend
