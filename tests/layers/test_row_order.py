"""The rows of a ragged batch are sorted by length inside a layer and returned in their own order."""

from unittest.mock import MagicMock, Mock

import pytest
import torch

import seqloom
from seqloom.layers.formats import read_input
from seqloom.layers.recurrent.gpu import row_order
from seqloom.layers.recurrent.gpu.row_order import permute_rows, should_sort, sort_longest_first

LENGTHS = [3, 9, 0, 9, 5, 1]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_order_of_rows_inside_a_layer_changes_nothing_outside(batch_first, bidirectional, monkeypatch):
    torch.manual_seed(0)
    layer = seqloom.LSTM(4, 8, 2, bidirectional=bidirectional, batch_first=batch_first, dtype=torch.float64)
    x = torch.randn((6, 9, 4) if batch_first else (9, 6, 4), dtype=torch.float64, requires_grad=True)
    hx = tuple(torch.randn(2 + 2 * bidirectional, 6, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    reset = torch.rand(x.shape[:2]) < 0.2
    actual = []
    for sort in (False, True):
        decide = Mock(return_value=sort)
        monkeypatch.setattr("seqloom.layers.recurrent.layer.should_sort", decide)
        y, end = layer(x, hx, LENGTHS, reset=reset)
        decide.assert_called_once()
        loss = sum((t * torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view(t.shape)).sum() for t in (y, *end))
        actual.append([y, *end, *torch.autograd.grad(loss, [x, *hx, *layer.parameters()])])
    for own, sorted_ in zip(*actual, strict=True):
        torch.testing.assert_close(sorted_, own, rtol=1e-12, atol=1e-13)


def test_the_longest_rows_stand_first():
    batch = sort_longest_first(read_input(torch.randn(6, 9, 4), LENGTHS, True, 4))
    assert batch.lengths.tolist() == sorted(LENGTHS, reverse=True)
    assert batch.order[batch.inverse].tolist() == list(range(6))


def test_moved_rows_have_first_and_second_derivatives():
    x, order = torch.randn(5, 2, dtype=torch.float64, requires_grad=True), torch.tensor([2, 0, 4, 1, 3])
    assert torch.autograd.gradcheck(lambda x: permute_rows(x, order, order.argsort()).sin(), x)
    assert torch.autograd.gradgradcheck(lambda x: permute_rows(x, order, order.argsort()).sin(), x)


def test_no_batch_is_sorted_on_the_cpu():
    assert not should_sort(
        read_input(torch.randn(6, 9, 4), LENGTHS, True, 4), seqloom.GRU(4, 1 << 12, device="meta").cell_at(0), "auto"
    )


@pytest.mark.parametrize(
    ("lengths", "source", "rows", "ends_early", "expected"),
    [
        (LENGTHS, None, 1 << 12, True, True),
        (None, None, 1 << 12, True, False),  # all rows have the same length
        (LENGTHS, "packed", 1 << 12, True, False),  # sorted already
        (LENGTHS, None, 1 << 6, True, False),  # all rows run at once
        (LENGTHS, None, 1 << 12, False, False),  # the kernel runs to the end of the longest row
    ],
)
def test_rows_are_sorted_on_a_gpu_if_a_kernel_gains_by_it(monkeypatch, lengths, source, rows, ends_early, expected):
    chosen = Mock(kernel=Mock(skips_ended_rows=ends_early))
    for name, value in (("why_not_fused", None), ("choose", chosen), ("ScanJob", None)):
        monkeypatch.setattr(row_order, name, Mock(return_value=value))
    x = MagicMock(is_cuda=True)
    x.__len__.return_value = rows
    assert should_sort(Mock(lengths=lengths, source=source, x=x), Mock(hidden_size=128), "auto") == expected
