"""Two ways of torch's fused LSTM through rows of different lengths."""

import pytest
import torch

from seqloom.cells import LSTMCell
from seqloom.kernels.aten import kernels
from seqloom.kernels.aten.cudnn import parameter_names


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
