"""Rare classes that look like misspelt frequent ones are named."""

import pytest

from seqloom.lab.data.coders.labels import find_typos, is_edited
from seqloom.lab.data.registry import open_task


@pytest.mark.parametrize("typo", ["positve", "posittive", "positivr", "psoitive", "ositive", "positives"])
def test_one_edit_is_found(typo):
    assert is_edited(typo, "positive") and is_edited("positive", typo)


@pytest.mark.parametrize(
    ("name", "other"),
    [("positive", "positive"), ("class1", "class2"), ("class1", "class12"), ("bad", "sad"), ("posvtive2", "positive")],
)
def test_other_names_are_no_typos(name, other):
    assert not is_edited(name, other)


def test_only_a_rare_class_is_a_typo():
    assert find_typos({"north": 20, "nort": 1}) == [("nort", "north")]
    assert not find_typos({"north": 20, "nort": 2}) and not find_typos({"north": 20, "nort": 0})


def test_the_most_frequent_of_several_classes_is_meant():
    assert find_typos({"north": 20, "nortg": 40, "nortx": 1}) == [("nortx", "nortg")]


def test_a_task_warns_of_a_misspelt_class(tmp_path):
    rows = [f"word{i} and more,{'good' if i % 2 else 'poor'}" for i in range(100)] + ["a lonely text,goood"] * 1
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows]))
    warnings = open_task(tmp_path / "a.csv", valid=0.05, test=0.05).notes.warnings
    assert any("class 'goood' (1 training row) may be a misspelt 'good' (" in text for text in warnings)
