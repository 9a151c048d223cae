from dataclasses import replace

import numpy as np
import pytest

from seqloom.lab.compare.choice import choose_row, mark_choice, state_rule
from seqloom.lab.compare.leaderboard import (
    build_leaderboard,
    build_summary,
    caption,
    format_interval,
    format_lead,
    short_caption,
)
from seqloom.lab.compare.rows import Results, Row
from seqloom.lab.compare.significance import Estimate, bootstrap, estimate
from seqloom.lab.compare.verdict import write_verdict
from seqloom.lab.console import show_table
from seqloom.lab.stats.metrics import METRICS

ACCURACY, RMSE = METRICS["accuracy"], METRICS["rmse"]

N = 2000


def rows(share, n=N):
    right = (np.arange(n) < round(share * n)).astype(float)
    return {"right": right, "scored": np.ones(n)}


def build_results(models, simple=0.5, name="logistic regression", trivial=None, n=N, **latencies):
    """Build results of models from their accuracies, the best on validation first."""
    columns = {m: [rows(share + d, n) for d in (-0.002, 0.0, 0.002)] for m, share in models.items()}
    shares = {name: simple} | ({} if trivial is None else {"majority": trivial})
    samples = bootstrap(columns | {k: [rows(share, n)] for k, share in shares.items()}, ACCURACY)
    lines = [
        Row(m, m, False, rank=(-share, 0.0), test=estimate(samples[m]), latency=(latencies.get(m, 1.0), 1.0))
        for m, share in models.items()
    ]
    lines += [Row(k, k, True, rank=(-share, 0.0), test=estimate(samples[k])) for k, share in shares.items()]
    return mark_choice(Results(sorted(lines, key=lambda r: r.rank), ACCURACY, samples, test_rows=n))


def test_a_significant_lead_is_stated_with_its_cost():
    text = write_verdict(build_results({"attn_rnn": 0.9, "gru": 0.8}, attn_rnn=0.7))
    assert text.startswith("Use attn_rnn (accuracy 90.0%): it leads gru by 10.0 +- ")
    assert " percentage points at 0.7 times the latency. attn_rnn beats logistic regression by 40.0 +- " in text


def test_without_a_significant_lead_the_fastest_model_is_recommended():
    results = build_results({"lstm": 0.8, "gru": 0.8, "rnn": 0.7}, lstm=2.0)
    assert write_verdict(results).startswith(
        "Use gru (accuracy 80.0%), the fastest of 2 similar models: lstm (accuracy 80.0%) has no significant lead "
        "over gru (95% interval -0.1 to 0.1)."
    )
    assert results.chosen == "gru"


def test_a_lead_must_be_significant_over_all_models():
    results = build_results({"attn_rnn": 0.9, "gru": 0.8, "tcn": 0.9})
    order = {"attn_rnn": 0, "gru": 1, "tcn": 2}  # on validation
    rows = sorted(results.rows, key=lambda row: order.get(row.name, 3))
    text = write_verdict(replace(results, rows=rows))
    assert text.startswith(
        "Use attn_rnn (accuracy 90.0%), the fastest of 2 similar models: it has no significant lead over tcn "
    )


@pytest.mark.parametrize(
    ("simple", "text"),
    [
        (0.8, "it is simpler, and the best model (gru, accuracy 80.0%) is no better; 95% interval of its difference "),
        (0.795, "it is simpler, and the lead of the best model (gru, accuracy 80.0%) is within the margin of 1.0 per"),
        (0.82, "it is ahead of the best model (gru, accuracy 80.0%) by 2.0 +- "),
    ],
)
def test_a_baseline_is_recommended_if_no_model_leads_it_by_more_than_the_margin(simple, text):
    results = build_results({"gru": 0.8}, simple)
    assert results.chosen == "logistic regression"
    assert write_verdict(results).startswith(f"Use logistic regression (accuracy {simple:.1%}): {text}")


def test_a_baseline_far_behind_is_not_recommended_because_the_interval_is_wide():
    results = build_results({"tcn": 0.525}, 0.425, n=40)
    noisy = {
        "tcn": rows(0.525, 40),
        "logistic regression": {"right": rows(0.425, 40)["right"][::-1], "scored": np.ones(40)},
    }
    samples = bootstrap({name: [columns] for name, columns in noisy.items()}, ACCURACY)
    results = mark_choice(replace(results, bootstraps=samples))
    assert results.chosen == "tcn"
    assert "which is not significant with 40 test rows" in write_verdict(results)


def test_the_interval_of_the_verdict_has_the_direction_of_the_table():
    results = build_results({"gru": 0.8}, 0.795)  # the model is ahead, within the margin
    assert build_summary(results)[0]["difference"].startswith("+0.5 +- ")
    assert "95% interval of its difference -0.1 to 1.1 percentage points" in write_verdict(results)


def test_a_row_that_leads_on_the_test_rows_alone_is_named():
    results = build_results({"gru": 0.7, "tcn": 0.9}, 0.8, trivial=0.5)
    ranks = {"logistic regression": 0, "gru": 1, "tcn": 2, "majority": 3}  # on validation
    ranked = [replace(row, rank=(float(ranks[row.name]), 0.0)) for row in results.rows]
    results = mark_choice(replace(results, rows=sorted(ranked, key=lambda row: row.rank)))
    assert results.chosen == "logistic regression"
    text = write_verdict(results)
    assert "On the test rows tcn (accuracy 90.0%, by 10.0 +- " in text
    assert "percentage points) is ahead of it, but the validation rows decide: " in text
    assert "On the test rows" not in write_verdict(build_results({"gru": 0.7}, 0.8, trivial=0.5))


def test_a_difference_of_huge_errors_is_short():
    assert RMSE.format_difference(370086173413.0) == "3.7e+11" and RMSE.format_difference(123456.0) == "123456"


def test_a_difference_has_the_decimals_of_its_interval():
    def lead(mean, half):
        return format_lead(RMSE, Estimate(mean, half, [mean]))

    assert lead(2.971, 0.6812) == "2.97 +- 0.68" and lead(25.35, 5.91) == "25.4 +- 5.9"
    assert lead(2.2, 2.01) == "2.2 +- 2.0" and lead(0.00312, 0.0004) == "0.00312 +- 0.00040"
    assert lead(512.3, 130.0) == "512 +- 130"
    assert format_interval(RMSE, Estimate(0.5, 2.0, [0.5])) == "-1.5 to 2.5"


def test_the_margin_can_be_set():
    results = build_results({"gru": 0.83}, 0.8)
    assert choose_row(results).row.name == "gru"
    assert choose_row(replace(results, margin=5.0)).row.name == "logistic regression"


@pytest.mark.parametrize("share", [0.5, 0.504])
def test_it_says_when_nothing_has_learned_and_what_to_try(share):
    results = replace(build_results({"gru": share}, 0.49, trivial=0.5), more="--budget 10m would allow 900 steps")
    text = write_verdict(results)
    assert text.startswith("Nothing has learned yet: the best that reads its input, ")
    assert "beat majority (accuracy 50.0%), a trivial baseline." in text
    assert "--budget 10m would allow 900 steps." in text and "Use " not in text
    assert "best yet" in [row["verdict"] for row in build_summary(results)]


def test_a_trivial_baseline_that_is_ahead_is_called_ahead():
    text = write_verdict(build_results({"gru": 0.3}, 0.2, trivial=0.5))
    assert "gru (accuracy 30.0%), is behind majority (accuracy 50.0%), a trivial baseline." in text


def test_few_test_rows_are_the_first_thing_to_say():
    text = write_verdict(build_results({"gru": 0.5}, 0.5, trivial=0.5, n=12))
    assert "There are only 12 test rows, so more rows come first." in text


def test_without_a_trained_model_the_best_baseline_is_recommended_with_what_time_would_buy():
    results = build_results({}, 0.8, trivial=0.5)
    results = replace(results, is_short=True, more="--budget 5m would allow 300 steps of one model")
    assert write_verdict(results) == (
        "Use logistic regression (accuracy 80.0%): there was no time to train a model. "
        "--budget 5m would allow 300 steps of one model."
    )


def test_the_margin_of_an_error_is_relative():
    values = {
        "a": {"square": np.full(50, 1.0), "values": np.ones(50)},
        "ridge": {"square": np.full(50, 1.015), "values": np.ones(50)},
    }
    samples = bootstrap({name: [columns] for name, columns in values.items()}, RMSE)
    lines = [
        Row(name, name, name == "ridge", rank=(k, 0.0), test=estimate(samples[name])) for k, name in enumerate(values)
    ]
    results = Results(lines, RMSE, samples)
    assert choose_row(results).row.name == "ridge" and choose_row(replace(results, margin=0.5)).row.name == "a"


def test_a_lead_without_an_interval_is_neither_significant_nor_similar():
    values = {"a": 1.0, "b": 1.001, "ridge": 2.0}
    columns = {name: [{"square": np.full(8, value), "values": np.ones(8)}] for name, value in values.items()}
    samples = bootstrap(columns, RMSE, overlap=12)
    lines = [
        Row(name, name, name == "ridge", rank=(k, 0.0), test=estimate(samples[name])) for k, name in enumerate(values)
    ]
    results = mark_choice(Results(lines, RMSE, samples, test_rows=8, example="window", overlap=12))
    text = write_verdict(results)
    assert text.startswith("Use a (RMSE 1), the fastest of 2 similar models: it has no significant lead over b. ")
    assert "a is ahead of ridge (RMSE 1.414) by 0.41 in RMSE, which is not significant with 8 test windows." in text
    shown = build_leaderboard(results)
    assert [row["difference"] for row in shown] == ["recommended", "unclear (no interval)", "unclear (no interval)"]
    assert shown[0]["test RMSE"] == "1" and build_summary(results)[1]["difference"] == "+0.0005"
    for words in (short_caption(results), caption(results, 1, None)):
        assert "There are no 95% intervals: " in words and "36 test windows or more, and there are 8." in words
        assert "with a 95% interval" not in words and "+-" not in words


def test_the_captions_state_the_rule_of_the_recommendation():
    results = build_results({"gru": 0.8})
    rule = (
        "The validation rows choose the best model and the best baseline, and the test rows decide between the two: "
        "the model is recommended if it leads by more than 1 percentage point (--margin), and of similar models the "
        "fastest."
    )
    assert rule in short_caption(results) and rule in caption(results, 3, 20)
    assert "by more than 0.5 percent (--margin)" in state_rule(replace(results, metric=RMSE, margin=0.5))


def test_an_interrupted_comparison_has_no_verdict():
    assert write_verdict(build_results({"gru": 0.8}), finished=False).startswith("Interrupted: the table")
    assert write_verdict(replace(build_results({"gru": 0.8}), rows=[]), finished=False).startswith("Interrupted before")


def test_the_leaderboard_shows_differences_and_the_caption_what_was_left_out():
    results = build_results({"gru": 0.8})
    left = replace(results, rows=[*results.rows, Row("tcn", "tcn 5x8", False, left_out=True)])
    assert [row["model"] for row in build_leaderboard(left)] == ["gru", "logistic regression *"]
    assert build_leaderboard(left)[0]["test accuracy"].startswith("80.0% +- ")
    first, second = build_leaderboard(results)
    assert first["difference"] == "recommended"
    assert second["difference"].endswith(" worse") and second["difference"].startswith("30.0 +- ")
    equal = replace(results.rows[1], behind=Estimate(-0.001, 0.004, []))
    assert build_leaderboard(replace(results, rows=[equal]))[0]["difference"] == "similar (-0.5 to 0.3)"
    apart = replace(results.rows[1], behind=Estimate(-0.033, 0.037, []))  # beyond the margin of one percentage point
    assert build_leaderboard(replace(results, rows=[apart]))[0]["difference"] == "unclear (-7.0 to 0.4)"
    assert build_summary(replace(results, rows=[equal, apart]))[1]["verdict"] == "unclear"
    windows = replace(results, example="window", test_rows=1)
    assert "accuracy of 1 test window" in short_caption(windows).lower()
    assert "only 20 validation windows the selection is uncertain; --borders" in caption(windows, 3, 20)
    text = caption(left, 3, 20)
    assert "Left out for lack of time: tcn 5x8." in text and "only 20 validation rows" in text
    many = [Row(f"m{i}", f"m{i} 1x8", False, left_out=True) for i in range(100)]
    assert "m10 1x8, m11 1x8 and 88 more." in caption(replace(left, rows=many), 3, 20)


def test_the_table_of_the_terminal_fits_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    results = build_results({"bi_linear_transformer 2x128": 0.9}, 0.6, "most frequent tag of each token", trivial=0.1)
    early = Row("gru", "gru 1x8", False, valid=0.7, seconds=1234.5)
    results = replace(results, rows=[*results.rows, early, Row("x", "x" * 40, False, note="failed: why")])
    show_table(build_summary(results))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) == 7  # two of them are the heading
    assert lines[2].endswith("use this") and lines[3].endswith("worse")
    assert lines[5].split() == ["gru", "1x8", "(70.0%)", "-", "1,234.5", "stopped"]
    assert lines[6].endswith("failed") and "in brackets" in short_caption(results)
