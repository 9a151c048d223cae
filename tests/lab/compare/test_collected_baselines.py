"""Rows of baselines that failed, or that there was no time for."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from seqloom.lab.compare import results as module
from seqloom.lab.compare.jobs import baseline_key
from seqloom.lab.compare.results import _collect_baselines

VALUE = {"latency": {"one": 0.1, "many": 0.2}, "parameters": 7, "seconds": 2.0, "valid": {"accuracy": 0.5}}


def collect(monkeypatch, results, is_out_of_time=False, folds=1):
    monkeypatch.setattr(module, "baselines", lambda _: ["first", "second", "third"])
    found = {baseline_key(name, k): SimpleNamespace(value=value, failed=failed) for name, k, value, failed in results}
    comparison = SimpleNamespace(
        task=SimpleNamespace(splits={"train": SimpleNamespace(size=1000)}),
        results=found,
        is_out_of_time=is_out_of_time,
        folds=folds,
        folder=Path("here"),
    )
    return [(row.name, row.note, row.left_out, valid) for row, valid, _ in _collect_baselines(comparison)]


def test_the_others_are_listed_after_one_that_failed(monkeypatch):
    rows = collect(monkeypatch, [("first", 0, None, "no memory"), ("third", 0, VALUE | {"rows": 100}, "")])
    assert rows == [
        ("first", "failed: no memory", False, {}),
        ("third", "fitted to 100 of 1,000 rows", False, {0: {"accuracy": 0.5}}),
    ]


@pytest.mark.parametrize("is_out_of_time", [False, True])
def test_those_without_a_result_are_left_out_if_time_is_up(monkeypatch, is_out_of_time):
    rows = collect(monkeypatch, [("second", 0, VALUE, "")], is_out_of_time)
    assert [name for name, _, left_out, _ in rows if left_out] == (["first", "third"] if is_out_of_time else [])
    assert ("second", "", False, {0: {"accuracy": 0.5}}) in rows


def test_every_fold_that_ended_counts(monkeypatch):
    results = [("first", 0, VALUE, ""), ("first", 1, None, "no memory"), ("first", 2, VALUE, "")]
    ((_, _, _, valid),) = collect(monkeypatch, results, folds=3)
    assert list(valid) == [0, 2]


def test_parts_of_the_rows_rank_only_if_every_baseline_has_them(monkeypatch):
    scored = VALUE | {"parts": {"rows": 40, "valid": {"accuracy": 0.75}}}
    rows = collect(monkeypatch, [("first", 0, scored, ""), ("second", 0, None, "no memory"), ("third", 0, scored, "")])
    assert [valid for *_, valid in rows] == [{0: {"accuracy": 0.75}}, {}, {0: {"accuracy": 0.75}}]
    rows = collect(monkeypatch, [("first", 0, scored, ""), ("second", 0, VALUE | {"parts": None}, "")])
    assert [valid for *_, valid in rows] == [{0: {"accuracy": 0.5}}] * 2
