import pytest

from seqloom.studies.table import Outcome, conclusion, paired, table

LINE = "logistic regression"


def outcomes(**scores):
    """Test accuracies by model, one a seed, above a line of 0.5."""
    baseline = [Outcome(LINE, None, 650, test=0.5)]
    return baseline + [
        Outcome(model, seed, 100, 8, 0.0, score, 1, 0.1)
        for model, by_seed in scores.items()
        for seed, score in enumerate(by_seed)
    ]


def test_rows_are_sorted_by_accuracy_and_the_failed_come_last():
    mixed = [*outcomes(a=[0.6, 0.6], b=[0.9, 0.9]), Outcome("c", 0, failed="ValueError: no")]
    assert [row.model for row in table(mixed)] == ["b", "a", LINE, "c"]
    assert table(mixed)[-1].shown()["test accuracy"] == "failed: ValueError: no"


def test_a_model_that_fails_with_a_later_seed_has_failed():
    half = [*outcomes(a=[0.6]), Outcome("a", 1, failed="FloatingPointError: the loss is nan")]
    (row,) = [row for row in table(half) if row.model == "a"]
    assert row.test is None
    assert "nan" in row.failed


def test_a_row_shows_mean_interval_and_number_of_seeds():
    row = table(outcomes(a=[0.80, 0.82, 0.84]))[0].shown()
    assert (row["test accuracy"], row["seeds"], row["parameters"]) == ("82.0% +- 5.0", 3, 100)


def test_a_lead_is_called_where_the_paired_interval_excludes_zero():
    # The models vary far more from seed to seed than they differ, but always differ alike.
    said = conclusion(outcomes(a=[0.61, 0.72, 0.835], b=[0.60, 0.71, 0.82]), LINE)
    assert said.startswith("a leads b by 1.2 +- 0.7 points over 3 paired seeds")


def test_no_lead_is_called_where_the_paired_interval_contains_zero():
    said = conclusion(outcomes(a=[0.70, 0.90, 0.80], b=[0.80, 0.70, 0.85], c=[0.1, 0.1, 0.1]), LINE)
    assert said.startswith("No lead: a comes first")
    assert said.endswith("3 seeds cannot tell it from b.")


def test_the_conclusion_says_whether_the_first_is_above_the_baseline():
    assert "not clearly above" in conclusion(outcomes(a=[0.4, 0.4]), LINE)
    assert "not clearly above" in conclusion(outcomes(a=[0.4, 0.8]), LINE)
    assert "not clearly" not in conclusion(outcomes(a=[0.8, 0.81]), LINE)


def test_one_seed_or_no_model_concludes_nothing():
    assert conclusion(outcomes(a=[0.9], b=[0.1]), LINE).startswith("One seed shows no difference")
    assert conclusion([*outcomes(), Outcome("c", 0, failed="no")], LINE) == "No model was trained."


def test_pairs_are_made_by_seed_whatever_the_order():
    mixed = outcomes(a=[0.5, 0.7], b=[0.4, 0.6])
    assert paired(mixed[::-1], "a", "b").mean == pytest.approx(0.1)
    assert paired(mixed[::-1], "a", "b").half == pytest.approx(0, abs=1e-9)
    assert paired(mixed[:-1], "a", "b").n == 1
