from dataclasses import replace

import numpy as np
import pytest

from seqloom.lab.compare.leaderboard import build_leaderboard, caption, verdict
from seqloom.lab.compare.metric import ACCURACY
from seqloom.lab.compare.results import Results, Row
from seqloom.lab.compare.significance import Estimate, bootstrap, estimate

N = 2000


def rows(share):
    right = (np.arange(N) < share * N).astype(float)
    return {"right": right, "scored": np.ones(N)}


def build_results(models, simple=0.5, name="logistic regression", **latencies):
    """Build results of models from their accuracies, the best on validation first."""
    columns = {m: [rows(share + d) for d in (-0.002, 0.0, 0.002)] for m, share in models.items()}
    samples = bootstrap(columns | {name: [rows(simple)]}, ACCURACY)
    lines = [
        Row(m, m, False, rank=(-share, 0.0), test=estimate(samples[m]), latency=(latencies.get(m, 1.0), 1.0))
        for m, share in models.items()
    ]
    baseline = Row(name, name, True, rank=(-simple, 0.0), test=estimate(samples[name]))
    return Results(sorted([*lines, baseline], key=lambda r: r.rank), ACCURACY, samples)


def test_a_significant_lead_is_stated_with_its_cost():
    text = verdict(build_results({"attn_rnn": 0.9, "gru": 0.8}, attn_rnn=0.7))
    assert text.startswith("Use attn_rnn: it leads gru by 10.0 +- ")
    assert " percentage points at 0.7 times the latency. attn_rnn beats logistic regression by 40.0 +- " in text


def test_without_a_significant_lead_the_fastest_model_is_recommended():
    text = verdict(build_results({"lstm": 0.8, "gru": 0.8, "rnn": 0.7}, lstm=2.0))
    assert text.startswith(
        "Use gru (accuracy 80.0%), the fastest of 2 similar models: lstm (accuracy 80.0%) has no significant lead "
        "over gru (95% interval -0.1 to 0.1)."
    )


def test_a_lead_must_be_significant_over_all_models():
    results = build_results({"attn_rnn": 0.9, "gru": 0.8, "tcn": 0.9})
    order = {"attn_rnn": 0, "gru": 1, "tcn": 2}  # on validation
    rows = sorted(results.rows, key=lambda row: order.get(row.name, 3))
    text = verdict(Results(rows, ACCURACY, results.bootstraps))
    assert text.startswith(
        "Use attn_rnn (accuracy 90.0%), the fastest of 2 similar models: it has no significant lead over tcn "
    )


@pytest.mark.parametrize(
    ("simple", "name", "text"),
    [
        (
            0.8,
            "logistic regression",
            "Use logistic regression (accuracy 80.0%): no significant difference to the best model (gru, "
            "accuracy 80.0%); 95% interval ",
        ),
        (
            0.9,
            "logistic regression",
            "Use logistic regression: it beats the best model (gru, accuracy 80.0%) by 10.0 +- ",
        ),
        (0.8, "majority", "Nothing was learned: the best model (gru, accuracy 80.0%) does not beat majority"),
    ],
)
def test_an_unbeaten_baseline_is_recommended_unless_it_ignores_the_input(simple, name, text):
    assert verdict(build_results({"gru": 0.8}, simple, name)).startswith(text)


def test_an_interrupted_comparison_has_no_verdict():
    assert verdict(build_results({"gru": 0.8}), finished=False).startswith("Interrupted")


def test_the_leaderboard_shows_differences_and_the_caption_what_was_left_out():
    results = build_results({"gru": 0.8})
    left = Results([*results.rows, Row("tcn", "tcn 5x8", False, left_out=True)], ACCURACY, results.bootstraps)
    assert [row["model"] for row in build_leaderboard(left)] == ["gru", "logistic regression (baseline)"]
    assert build_leaderboard(left)[0]["test accuracy"].startswith("80.0% +- ")
    behind = [replace(row, behind=results.difference(row, results.models[0])) for row in results.baselines]
    (row,) = build_leaderboard(Results(behind, ACCURACY, results.bootstraps))
    assert row["difference to best"].endswith(" worse") and row["difference to best"].startswith("30.0 +- ")
    equal = Estimate(-0.001, 0.004, [])
    (row,) = build_leaderboard(Results([replace(behind[0], behind=equal)], ACCURACY, {}))
    assert row["difference to best"] == "not significant (-0.5 to 0.3)"
    text = caption(left, 3, 20)
    assert "Left out for lack of time: tcn 5x8." in text and "only 20 validation rows" in text
