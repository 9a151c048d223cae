import itertools
import math

import pytest
import torch

from seqloom.models.decoding.beam import Beam, Hypotheses, beam_search, follow

STOP = 0


class Chain:
    """A random Markov chain for each row and time step; its state is the row and the time."""

    def __init__(self, rows, vocabulary, seed=0, times=10):
        g = torch.Generator().manual_seed(seed)
        logits = torch.randn(rows, times, vocabulary, vocabulary, generator=g, dtype=torch.float64)
        self.table = (2 * logits).log_softmax(-1)
        self.calls = 0

    def start(self, batch):
        return torch.stack([batch, torch.zeros_like(batch)], 1)

    def step(self, tokens, state):
        self.calls += 1
        row, t = state.unbind(1)
        return self.table[row, t % self.table.shape[1], tokens], torch.stack([row, t + 1], 1)

    def select(self, state, rows):
        return state[rows]

    def log_p(self, row, tokens, first=1):
        pairs = itertools.pairwise([first, *tokens])
        return sum(float(self.table[row, t % self.table.shape[1], a, b]) for t, (a, b) in enumerate(pairs))


def exhaustive(chain, row, vocabulary, beam):
    """Return every finished sequence of at most max_length tokens including stop, best first."""
    words = [v for v in range(vocabulary) if v != STOP]
    actual = []
    for n in range(beam.max_length):
        for words_of_it in itertools.product(words, repeat=n):
            score = chain.log_p(row, [*words_of_it, STOP]) / ((5 + n + 1) / 6) ** beam.length_penalty
            actual.append((score, list(words_of_it)))
    return sorted(actual, reverse=True)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_what_trying_everything_finds(length_penalty, seed):
    rows, vocabulary, beam = 3, 4, Beam(244, length_penalty, 5, best=121)
    chain = Chain(rows, vocabulary, seed)
    actual = beam_search(chain, torch.arange(rows), torch.ones(rows, dtype=torch.long), STOP, beam)
    for row in range(rows):
        best = exhaustive(chain, row, vocabulary, beam)
        # 243 = 3^5 hypotheses can live and there is room for one more; 121 = 1 + 3 + ... + 3^4 can end.
        assert actual.lists()[row] == [tokens for _, tokens in best]
        torch.testing.assert_close(actual.scores[row].tolist(), [score for score, _ in best])
    assert actual.finished.all()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_rows_searched_together_are_as_each_alone(size):
    chain, beam = Chain(6, 7), Beam(size, max_length=12, best=size)
    first = torch.randint(1, 7, (6,))
    together = beam_search(chain, torch.arange(6), first, STOP, beam)
    for row in range(6):
        alone = beam_search(chain, torch.tensor([row]), first[row : row + 1], STOP, beam)
        assert together.lists()[row] == alone.lists()[0]
        torch.testing.assert_close(together.scores[row], alone.scores[0])


def test_a_beam_of_two_by_hand():
    """Greedy takes 1 (0.6) and then has 0.5 at most; 2 (0.4) goes on with 0.9."""
    p = torch.tensor([[1e-9, 0.6, 0.4], [0.5, 0.25, 0.25], [0.9, 0.05, 0.05]], dtype=torch.float64)

    class Two:
        def start(self, batch):
            return torch.ones(batch, dtype=torch.bool)

        def step(self, tokens, state):
            return p[torch.where(state, 0, tokens)].log(), torch.zeros_like(state)

        def select(self, state, rows):
            return state[rows]

    first = torch.tensor([1])
    assert follow(Two(), 1, first, 0, 10).lists() == [[1]]
    actual = beam_search(Two(), 1, first, 0, Beam(2, 0.0, 10, best=2))
    assert actual.lists() == [[[2], [1]]]
    torch.testing.assert_close(actual.scores, torch.tensor([[math.log(0.36), math.log(0.30)]], dtype=torch.float64))


def test_scores_are_those_of_the_tokens_and_the_best_comes_first():
    chain, beam = Chain(4, 6, seed=3), Beam(4, 0.6, 20, best=4)
    actual = beam_search(chain, torch.arange(4), torch.ones(4, dtype=torch.long), STOP, beam)
    assert actual.finished.all()
    assert (actual.scores.diff(dim=1) <= 0).all()
    for row, hypotheses in enumerate(actual.lists()):
        for k, tokens in enumerate(hypotheses):
            log_p = torch.tensor(chain.log_p(row, [*tokens, STOP]), dtype=torch.float64)
            torch.testing.assert_close(actual.scores[row, k], beam.score(log_p, len(tokens) + 1))


def test_finished_hypotheses_are_kept_while_others_continue():
    """The likeliest sequence is the empty one; it ends at once and is still returned at the end."""
    table = torch.tensor([0.55, 0.40, 0.05], dtype=torch.float64).log()

    class Same:
        start = staticmethod(lambda batch: torch.zeros(batch, 1))
        step = staticmethod(lambda tokens, state: (table.expand(len(tokens), 3), state))
        select = staticmethod(lambda state, rows: state[rows])

    actual = beam_search(Same(), 2, torch.tensor([1, 2]), 0, Beam(3, 0.0, 8, best=3))
    assert actual.lists() == [[[], [1], [1, 1]]] * 2


def test_cut_sequences_rank_after_finished_ones():
    never = torch.tensor([0.0, 0.7, 0.3], dtype=torch.float64).log()

    class Never:
        start = staticmethod(lambda batch: torch.zeros(batch, 1))
        step = staticmethod(lambda tokens, state: (never.expand(len(tokens), 3), state))
        select = staticmethod(lambda state, rows: state[rows])

    actual = beam_search(Never(), 1, torch.tensor([1]), 0, Beam(2, 0.6, 3, best=2))
    assert not actual.finished.any()
    assert actual.lists()[0][0] == [1, 1, 1]
    assert follow(Never(), 1, torch.tensor([1]), 0, 3).finished.tolist() == [False]
    # Within one step only the empty sequence can end.
    actual = beam_search(Chain(1, 3), torch.tensor([0]), torch.tensor([1]), STOP, Beam(2, 0.6, 1, best=2))
    assert actual.finished.tolist() == [[True, False]] and actual.lengths.tolist() == [[0, 1]]


def test_hypotheses_that_do_not_exist_are_empty_and_impossible():
    actual = beam_search(Chain(1, 2), torch.tensor([0]), torch.tensor([1]), STOP, Beam(5, 0.0, 1, best=5))
    assert actual.scores.isfinite().tolist() == [[True, True, False, False, False]]
    assert actual.lengths.tolist() == [[0, 1, 0, 0, 0]]


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_of_one_without_penalty_is_greedy(seed):
    chain, first = Chain(8, 5, seed), torch.ones(8, dtype=torch.long)
    beam = beam_search(chain, torch.arange(8), first, STOP, Beam(1, 0.0, 15))
    greedy = follow(chain, torch.arange(8), first, STOP, 15)
    assert [actual[0] for actual in beam.lists()] == greedy.lists()
    assert torch.equal(beam.finished[:, 0], greedy.finished)
    torch.testing.assert_close(beam.scores[:, 0], greedy.scores)


def test_an_unlikely_finished_sequence_does_not_rank_above_a_likely_prefix():
    """max_length cuts every likely sequence; the empty one is finished but very unlikely."""
    p = torch.tensor([1e-6, 0.5, 0.5 - 1e-6], dtype=torch.float64).log()

    class Long:
        start = staticmethod(lambda batch: torch.zeros(batch, 1))
        step = staticmethod(lambda tokens, state: (p.expand(len(tokens), 3), state))
        select = staticmethod(lambda state, rows: state[rows])

    actual = beam_search(Long(), 1, torch.tensor([1]), 0, Beam(2, 0.6, 4))
    assert actual.lists() == [[[1, 1, 1, 1]]] and not actual.finished.any()


def test_the_search_ends_when_nothing_better_can_come():
    chain = Chain(2, 5)
    beam_search(chain, torch.arange(2), torch.ones(2, dtype=torch.long), STOP, Beam(3, 0.6, 1000))
    assert chain.calls < 100


@pytest.mark.parametrize("seed", range(4))
def test_asking_for_the_best_alone_ends_earlier_with_the_same_answer(seed):
    one, all_five = Chain(3, 6, seed), Chain(3, 6, seed)
    first = torch.ones(3, dtype=torch.long)
    best = beam_search(one, torch.arange(3), first, STOP, Beam(5, 0.6, 60))
    five = beam_search(all_five, torch.arange(3), first, STOP, Beam(5, 0.6, 60, best=5))
    assert one.calls < all_five.calls
    assert [actual[0] for actual in five.lists()] == [actual[0] for actual in best.lists()]


def test_greedy_takes_the_likeliest_each_time_and_returns_its_log_probability():
    chain = Chain(5, 6, seed=1)
    actual = follow(chain, torch.arange(5), torch.ones(5, dtype=torch.long), STOP, 30)
    for row, tokens in enumerate(actual.lists()):
        path = [*tokens, STOP] if actual.finished[row] else tokens
        for t, (before, token) in enumerate(itertools.pairwise([1, *path])):
            assert token == int(chain.table[row, t % 10, before].argmax())
        torch.testing.assert_close(float(actual.scores[row]), chain.log_p(row, path))


def test_without_a_stop_token_every_path_has_the_full_length():
    actual = follow(Chain(2, 4), torch.arange(2), torch.ones(2, dtype=torch.long), None, 7)
    assert actual.lengths.tolist() == [7, 7] and actual.tokens.shape == (2, 7)


def test_invalid_arguments_are_refused():
    for wrong, message in ((dict(size=0), "at least 1 hypothesis, got 0"), (dict(max_length=0), "at least 1 token")):
        with pytest.raises(ValueError, match=message):
            Beam(**wrong)
    with pytest.raises(ValueError, match="best must be from 1 to the beam's size of 2, got 3"):
        Beam(2, best=3)
    with pytest.raises(ValueError, match="at least 0, got -1"):
        Beam(length_penalty=-1)
    with pytest.raises(ValueError, match="B of at least 1; got \\(0,\\)"):
        beam_search(Chain(1, 3), torch.arange(0), torch.ones(0, dtype=torch.long), STOP)
    with pytest.raises(ValueError, match="max_length must be at least 1 token, got 0"):
        follow(Chain(1, 3), torch.arange(1), torch.ones(1, dtype=torch.long), STOP, 0)


def test_tokens_are_returned_as_lists_of_their_lengths():
    tokens = torch.tensor([[[4, 5, 0], [6, 0, 0]]])
    n, x = torch.tensor([[2, 1]]), torch.zeros(1, 2)
    assert Hypotheses(tokens, n, x, n > 0).lists() == [[[4, 5], [6]]]
