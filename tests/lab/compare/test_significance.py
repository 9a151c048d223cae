import numpy as np
import pytest
from scipy.stats import binomtest

from seqloom.lab.compare.search import rank
from seqloom.lab.compare.significance import bootstrap, estimate, estimate_difference
from seqloom.lab.stats.intervals import mean_interval
from seqloom.lab.stats.metrics import METRICS, compute_scores
from seqloom.lab.stats.resampling import explain_few_rows

ACCURACY, MSE, RMSE = (METRICS[name] for name in ("accuracy", "mse", "rmse"))


def rows(right):
    right = np.asarray(right, dtype=float)
    return {"right": right, "scored": np.ones_like(right)}


def random_rows(n, p, seed):
    return rows(np.random.default_rng(seed).random(n) < p)


def test_an_estimate_matches_the_metrics_module():
    one = random_rows(500, 0.8, 0)
    result = estimate(bootstrap({"a": [one]}, ACCURACY)["a"])
    whole = compute_scores(one, intervals=True)
    assert result.mean == pytest.approx(whole.values["accuracy"])
    low, high = whole.intervals["accuracy"]
    assert result.half == pytest.approx((high - low) / 2, rel=0.1)


def test_seeds_that_disagree_widen_the_interval():
    same = estimate(bootstrap({"a": [random_rows(500, 0.8, 0)] * 3}, ACCURACY)["a"])
    other = estimate(bootstrap({"a": [random_rows(500, p, s) for s, p in enumerate((0.7, 0.8, 0.9))]}, ACCURACY)["a"])
    assert other.half > 2 * same.half


def test_a_paired_lead_is_significant():
    base = np.random.default_rng(0).random(400) < 0.7
    better = base | (np.random.default_rng(1).random(400) < 0.15)
    result = bootstrap({"one": [rows(better)] * 3, "other": [rows(base)]}, ACCURACY)
    difference = estimate_difference(result["one"], result["other"])
    assert difference.is_significant and difference.mean > 0 and len(difference.values) == 3
    assert estimate_difference(result["other"], result["one"]).mean == -difference.mean
    unpaired = np.hypot(estimate(result["one"]).half, estimate(result["other"]).half)
    assert difference.half < 0.7 * unpaired  # both vary with the same rows


def test_equal_models_rarely_differ_significantly():
    significant = 0
    for s in range(40):
        models = {m: [random_rows(200, 0.8, 100 * s + 10 * i + k) for k in range(3)] for i, m in enumerate("ab")}
        result = bootstrap(models, ACCURACY)
        significant += estimate_difference(result["a"], result["b"]).is_significant
    assert significant <= 4


def test_twenty_right_rows_of_twenty_have_a_wilson_interval():
    result = estimate(bootstrap({"a": [rows(np.ones(20))] * 3}, ACCURACY)["a"])
    assert result.mean == 1 and result.half == pytest.approx(1 - binomtest(20, 20).proportion_ci(method="wilson").low)


@pytest.mark.parametrize("n", [20, 1000])
def test_small_differences_agree_with_mcnemars_test(n):
    for more in range(9):  # rows that one has right and the other wrong, none the other way
        one = np.arange(n) < 8 + more
        result = bootstrap({"one": [rows(one)], "other": [rows(np.arange(n) < 8)]}, ACCURACY)
        p = 0.5**more  # McNemar's exact test, mid-p
        assert estimate_difference(result["one"], result["other"]).is_significant == (p < 0.05)


def test_overlapping_windows_are_resampled_in_blocks():
    noise = np.repeat(np.random.default_rng(0).random(20), 50)
    columns = {"square": noise, "values": np.ones(1000)}
    alone, together = (estimate(bootstrap({"a": [columns]}, MSE, block)["a"]).half for block in (1, 50))
    assert together > 4 * alone
    assert estimate(bootstrap({"a": [columns]}, RMSE)["a"]).mean == pytest.approx(np.sqrt(noise.mean()))


def test_ranks_put_the_better_first_and_break_ties_by_the_loss():
    ranks = [rank(ACCURACY, {"accuracy": a, "loss": x}) for a, x in ((0.9, 0.5), (0.9, 0.3), (0.95, 0.9))]
    assert sorted(range(3), key=ranks.__getitem__) == [2, 1, 0]
    assert rank(MSE, {"mse": 0.4}) < rank(MSE, {"mse": 0.5}) < rank(MSE, {"mse": None})
    assert rank(METRICS["bleu"], {"loss": 0.4}) < rank(METRICS["bleu"], {"loss": 0.5})  # nothing was decoded yet


@pytest.mark.parametrize("errors", [[1.0, 3.0], [1.0, 3.0, 8.0]])
def test_two_or_three_windows_have_the_interval_of_the_t_distribution(errors):
    models = {
        name: [{"square": np.array(errors) * k, "values": np.ones(len(errors))}] for k, name in enumerate("ab", 1)
    }
    samples = bootstrap(models, MSE)
    expected = mean_interval(errors).half
    assert estimate(samples["a"]).half == pytest.approx(expected, rel=0.05)  # of 1,000 resamples
    difference = estimate_difference(samples["b"], samples["a"])
    assert difference.half == pytest.approx(expected, rel=0.05) and not difference.is_significant
    low, high = compute_scores(models["a"][0], intervals=True).intervals["mse"]
    assert low == 0 and high == pytest.approx(np.mean(errors) + expected, rel=0.05)


def test_models_without_any_error_are_not_known_to_be_equal():
    perfect = {name: np.full(66, 2.0) for name in ("spans_right", "spans_predicted", "spans_true")}
    nothing = perfect | {"spans_right": np.zeros(66)}
    samples = bootstrap({"a": [perfect], "b": [perfect], "c": [nothing]}, METRICS["span_f1"])
    low = binomtest(66, 66).proportion_ci(method="wilson").low
    assert estimate(samples["a"]).half == pytest.approx(1 - low) == pytest.approx(estimate(samples["c"]).half)
    equal = estimate_difference(samples["a"], samples["b"])
    assert equal.mean == 0 and 0.02 < equal.half < 0.04  # a rate of errors of 3 / n is seen with a chance of 95%
    assert estimate_difference(samples["a"], samples["c"]).is_significant


def test_windows_that_all_overlap_have_no_interval_and_no_significant_difference():
    models = {name: [{"square": np.full(20, k), "values": np.ones(20)}] for k, name in enumerate("ab", 1)}
    samples = bootstrap(models, MSE, overlap=12)
    difference = estimate_difference(samples["b"], samples["a"])
    assert difference.mean == 1 and not difference.has_interval and not difference.is_significant


def test_the_note_on_few_windows_says_how_many_an_interval_needs():
    assert explain_few_rows(20, 12, "window") == (
        "There are no 95% intervals: the forecasts of neighbouring windows overlap, so they need 36 windows or more, "
        "and there are 20."
    )
    assert "60 windows count as 3 independent ones (t-distribution, 2 degrees of" in explain_few_rows(60, 12, "window")
    assert explain_few_rows(1, 1) == "There are no 95% intervals: they need 2 rows or more, and there is 1."
    assert not explain_few_rows(180, 12) and not explain_few_rows(10, 1)
