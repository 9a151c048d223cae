import math

import pytest
import torch
from scipy import stats as scipy_stats

from research.studies.support.counts import compare_counts, count_hits
from research.studies.support.unpaired import SMALLEST, compare_groups, compare_on_scale, compare_ranks


def normal(n, seed, spread=1.0):
    return (spread * torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).tolist()


def test_groups_are_compared_by_scipys_welch_test():
    a, b = normal(7, 1), normal(5, 2, 3.0)
    theirs = scipy_stats.ttest_ind(a, b, equal_var=False)
    band = theirs.confidence_interval(0.95)
    actual = compare_groups(a, b)
    assert (actual.p, actual.low, actual.high) == pytest.approx((theirs.pvalue, band.low, band.high), rel=1e-9)
    assert actual.n == 5


def test_groups_without_spread_differ_or_do_not():
    assert (compare_groups([1.0, 1.0], [1.0, 1.0]).p, compare_groups([1.0, 1.0], [2.0, 2.0]).p) == (1.0, 0.0)
    one_sided = compare_groups([1.0, 1.0], [1.5, 2.0])
    assert one_sided.p == pytest.approx(2 * scipy_stats.t.sf(3, 1))  # 0.75 apart, standard error 0.25
    assert compare_groups([1.0], [0.0, 1.0]).p is None and compare_groups([], [1.0]).mean is None


def test_errors_are_compared_by_their_ratio_and_accuracies_by_their_odds():
    ratio = compare_on_scale([0.01, 0.04], [0.1, 0.4], "log", SMALLEST)
    assert (ratio.mean_a, ratio.mean_b, ratio.effect) == pytest.approx((0.025, 0.25, 0.1))
    odds = compare_on_scale([0.5, 0.5], [0.8, 0.8], "logit", 0.01)
    assert (odds.effect, odds.low, odds.high) == pytest.approx((0.25, 0.25, 0.25))
    plain = compare_on_scale([30.0, 32.0], [29.0, 29.5], "plain", SMALLEST)
    assert plain.effect == pytest.approx(1.75) and plain.n == (2, 2)


def test_perfect_scores_stay_finite_at_the_resolution_of_the_test_set():
    perfect = compare_on_scale([1.0, 1.0], [0.5, 0.6], "logit", resolution=0.5 / 1_000)
    assert math.isfinite(perfect.effect) and perfect.effect > 1_000 and perfect.p < 0.05
    wide = compare_on_scale([0.0, 1e-3], [1.0, 1e9], "log", SMALLEST)
    assert all(math.isfinite(v) for v in (wide.low, wide.high))


@pytest.mark.parametrize(("hits", "n"), [(0, 5), (4, 5), (5, 5), (1, 1), (7, 10)])
def test_counts_have_scipys_exact_interval(hits, n):
    theirs = scipy_stats.binomtest(hits, n).proportion_ci(0.95, method="exact")
    actual = count_hits([True] * hits + [False] * (n - hits))
    assert (actual.low, actual.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert str(actual) == f"{hits} of {n}"


def test_counts_are_compared_by_fishers_exact_test():
    five, none = count_hits([True] * 5), count_hits([False] * 5)
    assert compare_counts(five, none) == pytest.approx(2 / math.comb(10, 5))
    assert compare_counts(five, five) == 1
    assert compare_counts(five, count_hits([])) is None


def test_ranks_are_compared_by_scipys_mann_whitney_test():
    a, b = normal(7, 3), normal(8, 4)
    share, p = compare_ranks(a, b)
    theirs = scipy_stats.mannwhitneyu(a, b)
    assert (share, p) == pytest.approx((theirs.statistic / 56, theirs.pvalue))
    assert compare_ranks([-math.inf] * 3, [-math.inf] * 3) == (0.5, 1.0)
    assert compare_ranks([-math.inf, 1.0], [0.0]) == (None, None)
