"""Rows as they stand in the user's file."""

import pytest

from seqloom.lab.data.pipeline.rows import read_original
from seqloom.lab.data.registry import open_data, open_task

WORDS = ("Zebra", "yak", "XENOPS", "wolf")


@pytest.fixture
def file(tmp_path):
    lines = [f"{WORDS[n % 4]} number{n},,{'ab'[n % 2]}" for n in range(60)]
    place = tmp_path / "animals.csv"
    place.write_text("\n".join(["text,note,label", *lines]))
    return place


@pytest.mark.parametrize("options", [{}, {"rows": 40}])
def test_a_row_is_found_with_its_rare_words_and_its_case(file, options):
    task, source = open_data(str(file), {"input": "text", "target": "label", **options})
    batch = next(iter(task.batches("test", batch=3)))
    originals = read_original(source, task, "test", batch.rows.tolist())
    lines = file.read_text().splitlines()
    assert set(originals) == set(batch.rows.tolist())
    for position, label in zip(batch.rows.tolist(), task.decode(batch.y), strict=True):
        place, text = originals[position]
        number = int(place.removeprefix("animals.csv: row "))
        assert lines[number] == f"{text},,{label}" and text.split()[1].startswith("number")


def test_rows_that_are_not_text_are_not_read():
    assert read_original({"data": "digits", "options": {}}, open_task("digits"), "test", [0]) == {}
