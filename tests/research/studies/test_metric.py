import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from research.studies.study import Study, list_studies
from research.studies.support.metric import ACCURACY, AMOUNT, COST, ERROR, MIXED_ERROR, SCALED, TrialMetric
from research.studies.support.outcome import Trial, contests
from research.studies.support.replay import STUDY, restore_study
from research.studies.support.reproduction import is_reproduced
from research.studies.support.trial_report import blocks
from research.studies.support.trials import Trials

ROOT = Path(__file__).resolve().parents[3]
NAMES = [name for name in list_studies() if issubclass(Study.registry[name], Trials)]
# Of every name that a study uses, the kinds that it may have: "bits" are a loss, or the information in a state.
KINDS = {
    "MAE": (ERROR,),
    "MSE": (ERROR,),
    "loss": (ERROR,),
    "bits": (ERROR, AMOUNT),
    "error": (MIXED_ERROR,),
    "absolute error": (MIXED_ERROR,),
    "accuracy": (ACCURACY,),
    "last round": (ACCURACY,),
    "while training": (ACCURACY,),
    "training task": (ACCURACY,),
    "scaled": (SCALED,),
    "reach": (AMOUNT,),
    "BLEU": (AMOUNT,),
    "ms per batch": (COST,),
    "MB saved": (COST,),
}
UNCOUNTED = ("topologies",)  # its tokens are counted by rows, of which there are fewer
DRAWN = "keyed"  # chance decides what is asked, so that devices differ


def forms(fits):
    """Return every study of trainings whose first metric fits, in each of its forms."""
    kinds = [Study.registry[name] for name in NAMES if fits(Study.registry[name].metrics[0])]
    wanted = [(k, getattr(k, form), form) for k in kinds for form in ("full", "quick", "paper", "paper_quick")]
    return [
        pytest.param(k(settings, protocol="paper" if "paper" in form else "fair"), id=f"{k.name}-{form}")
        for k, settings, form in wanted
        if settings is not None
    ]


def trials_of(study, condition, mine, theirs):
    """Return two seeds with each value for the reference model and another one."""
    reference = condition.task.get("against", study.against)
    return [
        Trial(condition.name, model, 1e-3, "default", seed, "test", 4, 9, {study.metrics[0].name: value}, [], None)
        for model, values in ((reference, mine), ("another", theirs))
        for seed, value in enumerate(values)
    ]


def compare(study, condition, mine, theirs):
    (contest,) = study.compare_models(trials_of(study, condition, mine, theirs))
    return contest.change


def test_a_metric_without_a_kind_cannot_be_made():
    with pytest.raises(TypeError, match="kind"):
        TrialMetric("MAE")


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_of_a_study_has_the_kind_that_its_name_says(name):
    for metric in Study.registry[name].metrics:
        assert metric.kind in KINDS[metric.name], metric.name


@pytest.mark.parametrize("study", forms(lambda metric: not metric.kind.is_counted))
def test_errors_below_half_a_test_row_are_compared_as_they_are(study):
    small = 0.1 / study.settings.test
    for condition in study.settings.conditions:
        if study.metrics[0].scale == "plain":
            assert compare(study, condition, (3 * small, 3 * small), (small, small)).effect == pytest.approx(2 * small)
        elif study.find_answers(condition.name) is None:
            change = compare(study, condition, (small, small / 4), (5 * small, 5 * small / 4))
            assert change.effect == pytest.approx(0.2)


@pytest.mark.parametrize("study", forms(lambda metric: metric.kind.is_counted is not False))
def test_a_wrong_answer_differs_from_none_and_no_wrong_answer_counts_as_half_of_one(study):
    for condition in study.settings.conditions:
        n = study.find_answers(condition.name)
        if n is None:
            assert study.metrics[0].kind.is_counted is not True
        elif study.metrics[0].lower:
            assert compare(study, condition, (0.0, 0.0), (1 / n, 1 / n)).effect == pytest.approx(0.5)
        else:
            change = compare(study, condition, (1.0, 1.0), (1 - 1 / n, 1 - 1 / n))
            assert change.effect == pytest.approx((2 * n - 1) / (n - 1))  # odds of 2 n - 1 against n - 1


FILES = [
    *(file for name in NAMES for file in sorted((ROOT / "research/results/studies").glob(f"{name}-*/study.json"))),
    *sorted((ROOT / "research/results").glob("*/variants*/*/study.json")),
]
STORED = [file.parent for file in FILES]


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_stored_scores_are_whole_numbers_of_answers_and_possible_values(folder):
    study, document = restore_study(folder), json.loads((folder / STUDY).read_text())
    first = study.metrics[0]
    asked = {c.name: c.task.get("problem", "") for c in study.settings.conditions}
    for trial in document["rows"]:
        if trial["split"] != "test" or trial["failed"]:
            continue
        for metric in study.metrics:
            assert metric.cut(trial["scores"][metric.name]) == pytest.approx(trial["scores"][metric.name], abs=1e-5)
        value, n = trial["scores"][first.name], study.find_answers(trial["condition"])
        if n is None:
            continue
        if study.name in UNCOUNTED:
            assert 0.5 / n < value < 1 - 0.5 / n  # so that the exact number does not matter
        elif not asked[trial["condition"]].startswith(DRAWN):
            assert value * n == pytest.approx(round(value * n), abs=0.02), trial["condition"]  # float32 means


CONTINUOUS = [f for f in STORED if (kind := Study.registry.get(f.name.split("-")[0])) and kind.metrics[0].kind is ERROR]


@pytest.mark.parametrize("folder", CONTINUOUS, ids=lambda folder: folder.name)
def test_the_ratio_of_stored_errors_is_that_of_their_geometric_means(folder):
    document = json.loads((folder / STUDY).read_text())
    metric, logs = Study.registry[document["study"]].metrics[0], {}
    for t in document["rows"]:
        if t["split"] == "test" and not t["failed"]:
            logs.setdefault((t["condition"], t["model"]), []).append(math.log(t["scores"][metric.name]))
    means = {place: sum(values) / len(values) for place, values in logs.items()}
    (table,) = (b for b in document["page"]["blocks"] if b["title"] == f"Differences in {metric.name}")
    assert table["rows"]
    for row in table["rows"]:
        one, other = row["comparison"].split(" - ")
        expected = math.exp(means[row["condition"], one] - means[row["condition"], other])
        assert row["ratio"] == pytest.approx(expected), row["condition"]


def test_an_accuracy_needs_the_number_of_answers_and_an_error_has_none():
    assert TrialMetric("accuracy", ACCURACY).resolution(50) == 0.01
    with pytest.raises(ValueError, match="'accuracy' needs a number of answers, got None"):
        TrialMetric("accuracy", ACCURACY).resolution(None)
    with pytest.raises(ValueError, match="'MAE' needs no number of answers: it is continuous, got 50"):
        TrialMetric("MAE", ERROR).resolution(50)
    mixed = TrialMetric("error", MIXED_ERROR)
    assert mixed.resolution(50) == 0.01 and mixed.resolution(None) < 1e-9
    rows = [Trial("c", m, 1e-3, "default", i, "test", 4, 9, {"x": 0.5}, [], None) for m in "ab" for i in range(2)]
    with pytest.raises(ValueError, match="'x' needs a number of answers"):
        contests(rows, TrialMetric("x", ACCURACY), "a")


def test_an_interval_ends_at_values_that_the_metric_can_have():
    assert [TrialMetric("accuracy", ACCURACY).cut(v) for v in (-0.2, 0.4, 1.7, None)] == [0.0, 0.4, 1.0, None]
    assert [TrialMetric("error", ERROR).cut(v) for v in (-0.2, 1.7)] == [0.0, 1.7]
    assert [TrialMetric("bits", AMOUNT, highest=3.0).cut(v) for v in (-0.2, 2.0, 3.1)] == [0.0, 2.0, 3.0]
    assert [TrialMetric("scaled", SCALED).cut(v) for v in (-0.2, 1.1)] == [-0.2, 1.0]


def test_the_intervals_of_a_picture_are_those_of_the_table():
    study = Study.registry["adding"](protocol="fair")
    study.settings = replace(study.settings, conditions=study.settings.conditions[:1])
    rows = trials_of(study, study.settings.conditions[0], (0.1, 0.4), (0.3, 0.31))
    rows = [replace(t, scores=t.scores | {"MSE": 0.1}) for t in rows]
    page = {block.title: block for block in blocks(study, rows)}
    table = page["MAE by condition and model"].rows
    (dots,) = (block for title, block in page.items() if title.endswith("all seeds"))
    assert table[0]["low"] == 0.0  # the t-interval of two seeds reaches below 0
    assert dots.intervals == {row["model"]: (row["low"], row["high"]) for row in table}


def test_no_rule_says_when_an_amount_is_reproduced():
    with pytest.raises(NotImplementedError, match="printed BLEU"):
        is_reproduced(28.4, [35.0, 36.0], TrialMetric("BLEU", AMOUNT))
