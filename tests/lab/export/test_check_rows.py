"""The rows that an exported model is compared on."""

import numpy as np
import pytest

from seqloom.lab.data.memory import MemoryTask
from seqloom.lab.export.check import LENGTHS, ROWS, make_rows

SPLITS = {"train": np.arange(6), "valid": np.arange(6, 8)}
TEXTS = ["a good day", "a bad day", "one more", "and another"] * 2
LABELS = [0, 1] * 4


def test_rows_of_texts_are_texts_of_every_length():
    rows = make_rows(MemoryTask("classify", TEXTS, LABELS, SPLITS, {"unit": "words"}))
    assert all(isinstance(row, str) for row in rows)
    assert [len(row.split()) for row in rows[:-1]] == [n for n in LENGTHS for _ in range(ROWS)]


def test_rows_of_characters_have_no_blanks_in_between():
    rows = make_rows(MemoryTask("classify", ["abc", "cab"] * 4, LABELS, SPLITS, {"unit": "characters"}))
    assert [len(row) for row in rows[:-1]] == [n for n in LENGTHS for _ in range(ROWS)]


def test_rows_of_tokens_are_lists_of_tokens():
    rows = make_rows(MemoryTask("classify", [text.split() for text in TEXTS], LABELS, SPLITS))
    assert all(isinstance(row, list) and all(isinstance(token, str) for token in row) for row in rows)
    assert [len(row) for row in rows[:-1]] == [n for n in LENGTHS for _ in range(ROWS)]


@pytest.mark.parametrize("width", [1, 3])
def test_rows_of_numbers_have_the_width_of_the_data(width):
    series = [np.random.default_rng(n).normal(size=(5, width)) for n in range(8)]
    rows = make_rows(MemoryTask("classify", series, LABELS, SPLITS))
    assert {np.shape(row)[1:] for row in rows} == {(3,) if width == 3 else ()}
