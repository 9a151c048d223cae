import math

import pytest
from advise_data import facts

from seqloom.lab.advise.advice import LOSS_NOISE, RACE_POINTS, score_race, sum_points
from seqloom.lab.advise.baseline import Baseline
from seqloom.lab.advise.quick_training import QuickResult
from seqloom.lab.advise.rules import AdviceRule, MatchedRule


def rule(**worth):
    return MatchedRule(
        AdviceRule("r", "s", "", lambda _: "here", {k.replace("_2", ":2"): v for k, v in worth.items()}), "here", ""
    )


def test_points_cover_variants_unless_a_variant_is_named():
    both = rule(gru=1.0, bi_gru=2.0, lstm_2=3.0)
    points = {name: both.points(name) for name in ("gru", "bi_gru", "gru:2", "bi_gru:2", "lstm:2", "lstm", "rnn")}
    assert points == {"gru": 1, "bi_gru": 2, "gru:2": 1, "bi_gru:2": 2, "lstm:2": 3, "lstm": 0, "rnn": 0}
    assert sum_points("gru", [both, rule(gru=0.5)]) == 1.5


def trials(steps=200, **scores):
    return {name: QuickResult(steps=steps, score=score) for name, score in scores.items()}


def test_race_points_exceed_chance_and_are_limited():
    actual = score_race(trials(a=0.9, b=0.7, c=0.69), facts(), held=10_000)
    assert actual["a"] == RACE_POINTS and actual["b"] == 0 and -RACE_POINTS <= actual["c"] < 0
    assert score_race(trials(a=0.72, b=0.7, c=0.69), facts(), held=50)["a"] < 0.3


def test_after_few_steps_the_race_counts_less():
    early, late = (score_race(trials(steps, a=0.9, b=0.7), facts(), held=10_000)["a"] for steps in (50, 500))
    assert early == pytest.approx(late / 4) and late == RACE_POINTS


def test_a_lower_loss_scores_higher():
    actual = score_race(trials(a=1.0, b=1.1, c=1.2), facts(kind="translate"), held=100)
    assert actual["a"] > actual["b"] > actual["c"]


def test_a_loss_counts_in_units_of_its_noise():
    noise = LOSS_NOISE * 2.0
    actual = score_race(trials(500, a=2 - noise / 2, b=2.0, c=2 + noise / 4), facts(kind="translate"), held=100)
    assert actual == pytest.approx({"a": 0.5, "b": 0.0, "c": -0.25}, abs=1e-6)


def test_a_race_without_progress_gives_no_points():
    known = facts(baseline=Baseline("accuracy", 0.9, "linear", 0.5, "trivial"))
    assert score_race(trials(a=0.55, b=0.52), known, held=1_000) == {}
    assert score_race(trials(steps=5, a=0.9, b=0.6), known, held=1_000) == {}
    assert set(score_race(trials(a=0.8, b=math.nan, c=0.6), known, held=1_000)) == {"a", "c"}


def test_a_single_model_gets_no_race_points():
    assert score_race(trials(a=0.9), facts(), held=100) == {}


def test_perfect_scores_do_not_divide_by_zero():
    assert score_race(trials(a=1.0, b=1.0), facts(), held=100) == pytest.approx({"a": 0, "b": 0})
