import numpy as np
import pytest
from scipy.stats import binomtest

from seqloom.lab.compare.metric import rank
from seqloom.lab.compare.significance import bootstrap, estimate, estimate_difference
from seqloom.lab.stats.metrics import METRICS, compute_scores

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
