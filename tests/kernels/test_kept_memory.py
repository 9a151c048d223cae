"""Memory that kernels use again on a CPU."""

import pytest
import torch

import seqloom
from seqloom.cells.t_gru import TGRUCell
from seqloom.core.job import ScanJob
from seqloom.kernels.compiled import kernel
from seqloom.kernels.cpu import kept_memory as module
from seqloom.kernels.cpu.kept_memory import LEAST_BYTES, KeptMemory, kept_memory
from seqloom.kernels.cpu.machine import why_not_machine

ROW = LEAST_BYTES // 4  # float32 numbers of the smallest piece
LIKE = torch.zeros(1)

needs_counts = pytest.mark.skipif(module._count_uses is None, reason="this torch does not count uses of memory")
needs_machine = pytest.mark.skipif(why_not_machine() is not None, reason=str(why_not_machine()))


@needs_counts
def test_memory_that_no_tensor_refers_to_is_used_again():
    memory = KeptMemory(limit=10 * LEAST_BYTES)
    first = memory.allocate(LIKE, 2, ROW)
    place = first.data_ptr()
    assert first.shape == (2, ROW) and first.is_contiguous()
    del first
    assert memory.allocate(LIKE.double(), ROW, 1).data_ptr() == place  # the same number of bytes


def test_sizes_are_rounded_up_by_less_than_an_eighth_to_eight_sizes_between_powers_of_two():
    sizes = range(LEAST_BYTES, 2 * LEAST_BYTES, 37)
    rounded = [module._round_up(size) for size in sizes]
    assert all(size <= more < size * 9 / 8 for size, more in zip(sizes, rounded, strict=True))
    assert len({more for more in rounded if more < 2 * LEAST_BYTES}) == 8
    assert module._round_up(LEAST_BYTES) == LEAST_BYTES


@needs_counts
def test_memory_that_a_view_refers_to_is_not_used_again():
    memory = KeptMemory(limit=10 * LEAST_BYTES)
    first = memory.allocate(LIKE, 2, ROW)
    row = first[1]
    del first
    second = memory.allocate(LIKE, 2, ROW)
    assert second.untyped_storage().data_ptr() != row.untyped_storage().data_ptr()


@needs_counts
def test_no_more_memory_is_kept_than_the_limit():
    memory = KeptMemory(limit=3 * LEAST_BYTES)
    tensors = [memory.allocate(LIKE, ROW) for _ in range(5)]
    assert len({t.data_ptr() for t in tensors}) == 5
    assert memory.bytes == sum(p.nbytes() for _, p in memory.pieces) == 3 * LEAST_BYTES


@needs_counts
def test_memory_that_another_process_may_read_or_that_was_resized_is_not_used_again():
    memory = KeptMemory(limit=10 * LEAST_BYTES)
    shared, resized = (memory.allocate(LIKE, ROW) for _ in range(2))
    shared.share_memory_()
    resized.resize_(3 * ROW)
    places = {t.data_ptr() for t in (shared, resized)}
    alive = [piece for _, piece in memory.pieces]  # so that nothing else gets these addresses
    del shared, resized
    fresh = [memory.allocate(LIKE, ROW) for _ in range(2)]
    assert len(alive) == 2 and places.isdisjoint(t.data_ptr() for t in fresh)
    assert memory.bytes == 2 * LEAST_BYTES


def test_small_tensors_are_not_kept():
    memory = KeptMemory(limit=LEAST_BYTES)
    assert memory.allocate(LIKE, 3, 4).shape == (3, 4)
    assert memory.pieces == []


@needs_machine
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mgu", "compiled"),
        ("t_lstm", "compiled"),
        ("gru", "cpu"),
        ("lstm", "cpu"),
        ("attn_rnn", "cpu"),
        ("ln_gru", "cpu"),
    ],
)
def test_results_do_not_change_when_a_later_call_runs(name, kind):
    torch.manual_seed(0)
    layer, loop = (seqloom.Recurrent(name, 32, 64, kernel=k) for k in (kind, "loop"))
    loop.load_state_dict(layer.state_dict())
    batches = [torch.randn(64, 8, 32) for _ in range(3)]
    results = []
    for batch in batches:  # the results of all calls are alive at the end
        x = batch.clone().requires_grad_()
        y, _ = layer(x)
        results.append((x, y, y.detach().clone()))
    for _, y, _ in results:
        y.square().sum().backward()
    for batch, (x, y, before) in zip(batches, results, strict=True):
        torch.testing.assert_close(y.detach(), before, rtol=0, atol=0)
        own = batch.clone().requires_grad_()
        expected = loop(own)[0]
        expected.square().sum().backward()
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(x.grad, own.grad, rtol=1e-4, atol=1e-4)
    if module._count_uses is not None:
        assert kept_memory.bytes > 0


@needs_counts
@needs_machine
def test_the_engine_takes_the_same_memory_in_every_training_step():
    layer, x = seqloom.LSTM(64, 64, kernel="cpu"), torch.randn(32, 20, 64)
    kept_memory.forget()
    sizes = []
    for _ in range(3):
        layer(x)[0].sum().backward()
        sizes.append([size for size, _ in kept_memory.pieces])
    assert sizes[0] and sizes[0] == sizes[1] == sizes[2]


@needs_machine
def test_pieces_of_a_concatenation_are_not_put_together_for_gradients():
    cell = TGRUCell(16, 16)
    x = torch.randn(2, 5, 16)
    plan = kernel.compile_cell(cell, ScanJob(x, cell.start(x)))
    operators = {call.operator.partition(".")[0] for call in plan.calls.values()}
    assert not operators & {"cat", "full", "slice"}
