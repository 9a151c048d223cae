import itertools

import pytest
import torch

from seqloom.layers.registry import make
from seqloom.models.decoding.ctc import greedy, prefix_beam
from seqloom.models.transcribe import Transcribe

SYMBOLS = 3


def read(path):
    return tuple(s for s, _ in itertools.groupby(path) if s)


def brute(log_p):
    """Return the log-probability of every symbol sequence as a sum over all paths."""
    sums = {}
    for path in itertools.product(range(log_p.shape[1]), repeat=len(log_p)):
        p = sum(log_p[t, s] for t, s in enumerate(path))
        sums[read(path)] = torch.logaddexp(sums[read(path)], p) if read(path) in sums else p
    return sums


def distributions(rows, steps, symbols=2):
    return torch.randn(rows, steps, 1 + symbols, dtype=torch.float64).mul(2).log_softmax(-1)


def test_a_beam_over_every_prefix_is_the_sum_over_every_path():
    log_p = distributions(4, 5)
    for row, actual in zip(log_p, prefix_beam(log_p, beam=10_000), strict=True):
        sums = brute(row)
        assert {tuple(symbols) for symbols, _ in actual} == set(sums)
        for symbols, p in actual:
            assert p == pytest.approx(float(sums[tuple(symbols)]), abs=1e-12)
        assert [p for _, p in actual] == sorted((p for _, p in actual), reverse=True)
        assert tuple(actual[0][0]) == max(sums, key=lambda s: sums[s])


def test_a_beam_may_find_what_the_likeliest_path_does_not():
    log_p = torch.tensor([[[0.6, 0.4], [0.6, 0.4]]]).log()  # blank blank 0.36; one symbol 0.16 + 0.24 + 0.24
    assert greedy(log_p) == [[]]
    assert prefix_beam(log_p)[0][0][0] == [1]


def test_greedy_joins_repeats_before_it_takes_blanks_out():
    path = torch.tensor([[1, 1, 0, 1, 2, 2, 0, 0]])
    log_p = torch.nn.functional.one_hot(path, 3).double().add(1e-9).log()
    assert greedy(log_p) == [[1, 1, 2]] and greedy(log_p, [2]) == [[1]] and greedy(log_p, [0]) == [[]]
    assert [best[0][0] for best in prefix_beam(log_p, beam=4)] == [[1, 1, 2]]


def test_lengths_hide_what_comes_after_from_both_searches():
    log_p = distributions(3, 6)
    lengths = torch.tensor([6, 2, 0])
    for i, n in enumerate(lengths):
        alone = log_p[i : i + 1, : int(n)]
        assert prefix_beam(log_p, lengths, 5)[i] == prefix_beam(alone, beam=5)[0]
        assert greedy(log_p, lengths)[i] == greedy(alone)[0]


def model(layer="bi_gru", stack=1):
    return Transcribe(make(layer, 4 * stack, 12), SYMBOLS, stack=stack).double().eval()


def batch():
    x, lengths = torch.randn(3, 11, 4, dtype=torch.float64), torch.tensor([11, 7, 8])
    return x, lengths, torch.tensor([[1, 2, 3], [3, 1, 0], [2, 0, 0]]), torch.tensor([3, 2, 1])


def test_the_loss_is_that_of_every_path_that_reads_as_the_target():
    transcribe, (x, lengths, y, y_lengths) = model(stack=2), batch()
    log_p, steps = transcribe(x, lengths)
    assert steps.tolist() == [6, 4, 4]
    each = [-brute(log_p[i, : steps[i]])[tuple(y[i, : y_lengths[i]].tolist())] / y_lengths[i] for i in range(3)]
    torch.testing.assert_close(transcribe.loss(x, y, lengths, y_lengths), torch.stack(each).mean())


@pytest.mark.parametrize("stack", [1, 3])
def test_padding_changes_neither_loss_nor_symbols(stack):
    transcribe, (x, lengths, y, y_lengths) = model(stack=stack), batch()
    loss, symbols = transcribe.loss(x, y, lengths, y_lengths), transcribe.decode(x, lengths, beam=4)
    for i in range(3):
        x[i, lengths[i] :], y[i, y_lengths[i] :] = 1e3, -7
    torch.testing.assert_close(transcribe.loss(x, y, lengths, y_lengths), loss)
    assert transcribe.decode(x, lengths, beam=4) == symbols
    assert transcribe.decode(x[1:2, :7], beam=4) == symbols[1:2]


@pytest.mark.parametrize("layer", ["bi_lstm", "tcn"])
def test_it_learns_saves_loads_and_reads_as_before(layer, tmp_path):
    transcribe, (x, lengths, y, y_lengths) = model(layer), batch()
    optimiser = torch.optim.Adam(transcribe.parameters(), 0.02)
    for _ in range(120):
        loss = transcribe.loss(x, y, lengths, y_lengths)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    expected = [[1, 2, 3], [3, 1], [2]]
    assert transcribe.decode(x, lengths) == expected and transcribe.decode(x, lengths, beam=4) == expected
    torch.save(transcribe.state_dict(), tmp_path / "weights.pt")
    again = model(layer)
    again.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert again.decode(x, lengths) == expected


def test_some_targets_may_be_empty_but_not_all():
    transcribe, (x, lengths, y, _) = model(), batch()
    assert torch.isfinite(transcribe.loss(x, y, lengths, [3, 2, 0]))
    with pytest.raises(ValueError, match="at least one target symbol"):
        transcribe.loss(x, y, lengths, [0, 0, 0])
    with pytest.raises(ValueError, match="at least one target symbol"):
        transcribe.loss(x, y[:, :0], lengths)


def test_bad_input_is_refused_with_what_is_wrong():
    transcribe, (x, lengths, y, y_lengths) = model(), batch()
    for wrong in (0, 4):
        with pytest.raises(ValueError, match=rf"symbols y must lie between 1 and 3 .*got {wrong} at \(0, 0\)"):
            transcribe.loss(x, y.index_fill(1, torch.tensor([0]), wrong), lengths, y_lengths)
    with pytest.raises(ValueError, match="row 1 has 2 steps, but its target needs 3"):
        transcribe.loss(x, torch.tensor([[1, 2], [2, 2], [1, 2]]), [11, 2, 8])
    for beam in (0, -1, True):
        with pytest.raises(ValueError, match="beam must be a whole number of at least 1"):
            transcribe.decode(x, lengths, beam=beam)
    with pytest.raises(ValueError, match="not a multiple of stack=3"):
        Transcribe(make("gru", 4, 8), SYMBOLS, stack=3)
    with pytest.raises(ValueError, match=r"\(B, T, 1 \+ symbols\), got \(5, 3\)"):
        greedy(distributions(1, 5)[0])
