from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from research.studies.adding import Adding
from research.studies.copy import KINDS, PRINTED, Copy, at, span
from research.studies.support.conditions import Condition
from research.studies.support.metric import ACCURACY, ERROR, TrialMetric
from research.studies.support.outcome import Trial
from research.studies.support.reproduction import is_reproduced
from seqloom.lab.training.recipe import Recipe

CPU = torch.device("cpu")


class Said(torch.nn.Module):
    """Return a fixed answer for every input."""

    def __init__(self, y):
        super().__init__()
        self.y = y

    def forward(self, x):
        return 50.0 * F.one_hot(self.y.clamp(min=0), KINDS + 1).float()


@pytest.mark.parametrize("form", ["delay", "selective", "third"])
def test_the_right_answer_scores_1_and_the_model_fits_the_problem(form):
    study, condition = Copy(), at(12, 1, form, count=4)
    x, y = study.draw(condition)(torch.Generator().manual_seed(0), CPU)
    assert x.shape == (64, span(condition.task))
    right = study.measure(Said(y), x, y)
    assert right["accuracy"] == 1 and right["loss"] < 1e-6
    asked = y > 0
    wrong = study.measure(Said(torch.where(asked, y % (KINDS - 1) + 1, y)), x, y)
    assert wrong["accuracy"] == 0
    model = study.build("gru", 8, "default", condition)
    assert model(x).shape == (*x.shape, KINDS if form == "third" else KINDS + 1)
    study.loss(model, (x, y)).backward()


def test_the_articles_numbers_appear_only_beside_its_own_form():
    study = Copy(protocol="paper")
    assert [study.article_value(c, "attn_rnn") for c in Copy.paper.conditions] == [
        PRINTED[T]["attn_rnn"] for T in PRINTED
    ]
    assert study.article_value(at(30, 1), "attn_rnn") is None
    assert (study.trivial(at(30, 1, "third")), study.trivial(at(30, 1))) == (1 / 7, 1 / 8)
    assert [c.after for c in Copy.paper.conditions[1:]] == [c.name for c in Copy.paper.conditions[:-1]]


def test_the_verdict_counts_a_condition_only_where_every_seed_solves_it():
    def trial(condition, model, seed, accuracy):
        scores = {"accuracy": accuracy, "loss": 0.1}
        return Trial(condition, model, 1e-2, "default", seed, "test", 8, 100, scores, [1.0, 0.5], 1.0)

    one, two = (c.name for c in Copy.quick.conditions)
    rows = [
        trial(c, m, seed, v)
        for c, m, values in (
            (one, "gru", (1, 0.5, 1)),
            (one, "attn_rnn", (1, 0.99, 1)),
            (two, "gru", (0.2, 0.2, 0.2)),
            (two, "attn_rnn", (0.9, 0.91, 0.9)),
        )
        for seed, v in enumerate(values)
    ]
    study = Copy(Copy.quick)
    said = study.verdict(rows)
    assert f"gru: none; attn_rnn: {one}." in said
    assert f"attn_rnn is better than gru in 1 of 2 conditions ({two}: 0.9033 against 0.2)" in said
    assert (
        f"shows no significant difference in 1 of 2 conditions ({one}: solved by 3 of 3 seeds against 2 of 3)." in said
    )
    assert len(study.blocks(rows)) == 2 + 2 * 2
    assert isinstance(Copy.quick.conditions[0], Condition)


def test_the_papers_protocol_trains_as_the_author_did():
    for study in (Copy, Adding):
        s = study.paper
        assert (s.batch, s.lrs, s.constant_rate, {c.steps for c in s.conditions}) == (128, (1e-3,), True, {30 * 100})
        assert "a constant rate of 0.001, as the author trained" in study(s, protocol="paper").caption()
        changed = study(replace(s, batch=64, constant_rate=False), protocol="paper").caption()
        assert "The author's training differs: 3,000 steps of 128 sequences per length" in changed
    assert {Recipe(9, 0.1, constant=True).rate(i) for i in range(9)} == {0.1}


def test_the_papers_verdict_starts_with_what_was_reproduced():
    def rows(accuracy):
        scores = {"accuracy": accuracy, "loss": 0.1}
        return [
            Trial(c.name, "gru", 1e-3, "default", 0, "test", 8, 100, scores, [1.0], 1.0)
            for c in Copy.paper.conditions[:1]
        ]

    study = Copy(protocol="paper")
    assert study.verdict(rows(0.66)).startswith("Reproduced: 1 of 1 printed numbers.")
    worse = "Not reproduced: worse than printed: gru, third, T = 30: 0.31 against 0.662. Reproduced: 0 of 1"
    assert study.verdict(rows(0.31)).startswith(worse)
    assert "better than printed: gru, third, T = 30: 0.9100 against 0.662" in study.verdict(rows(0.91))
    assert not Copy().verdict(rows(0.31)).startswith("Not reproduced")


@pytest.mark.parametrize(
    ("printed", "values", "lower", "expected"),
    [
        (0.0111, [0.31, 0.30], True, False),
        (0.0111, [0.31, 0.001], True, True),  # among the seeds
        (0.0111, [0.02, 0.021], True, True),  # within a factor of 2
        (0.0111, [0.001], True, False),
        (0.80, [0.84], False, True),
        (0.80, [0.90], False, False),
        (0.80, [], False, False),
    ],
)
def test_a_printed_number_is_reproduced_among_the_seeds_or_close_to_their_mean(printed, values, lower, expected):
    assert is_reproduced(printed, values, TrialMetric("x", ERROR if lower else ACCURACY)) is expected
