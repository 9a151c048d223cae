"""What is inferred from names and values: texts, Unix time, series with one label, classes with several spellings."""

import random

import polars as pl
import pytest

from seqloom.cli.main import main
from seqloom.lab.data.coders.labels import LabelCoder
from seqloom.lab.data.pipeline.columns import describe_columns
from seqloom.lab.data.pipeline.reading import make_reading
from seqloom.lab.data.pipeline.source import read_source
from seqloom.lab.data.registry import open_task
from seqloom.lab.data.task import UNSEEN, Notes

WORDS = ["good", "bad", "nice", "awful", "film", "food", "room", "staff", "slow", "warm"]
PHRASES = [f"{one} {other}" for one in WORDS for other in WORDS]


def find_role(name, values):
    source = read_source(pl.DataFrame({name: values}), make_reading(), Notes())
    return describe_columns(source)[0].role


def test_a_column_called_text_is_text_however_few_values_it_has():
    phrases = [random.Random(i).choice(PHRASES) for i in range(600)]
    assert find_role("text", phrases) == "text"
    assert find_role("comment", phrases) == "text"
    assert find_role("what", [f"{p} {i % 180}" for i, p in enumerate(phrases)]) == "text"
    assert find_role("comment", ["good", "bad"] * 30) == "label"
    assert find_role("intent", ["play music", "stop"] * 30) == "label"


@pytest.mark.parametrize("unit", [1, 1_000, 1_000_000_000])
def test_unix_time_is_a_time_stamp(unit):
    hours = [(1_700_000_000 + 3_600 * i + i % 3) * unit for i in range(100)]
    assert find_role("ts", hours) == "time"
    assert find_role("created_at", hours[::-1]) == "time"
    assert find_role("sensor", hours) == "time"  # sorted with unequal steps
    assert find_role("customer_id", hours) == "id"
    assert find_role("population", hours[::-1]) == "number"


def make_long_table(time, label="label"):
    rows = [(f"s{i}", time(t), 0.37 * (i * t % 71), ("run", "walk")[i % 2]) for i in range(20) for t in range(25)]
    return pl.DataFrame(rows, schema=["id", "t", "v", label], orient="row")


def test_one_label_for_each_id_is_a_label_of_the_series():
    task = open_task(make_long_table(int))
    assert (task.kind, task.group, task.target.names) == ("classify", "id", ("run", "walk"))
    assert sum(split.size for split in task.splits.values()) == 20
    assert "each 'id' is one series; choose another column with group=..." in [note.text for note in task.notes]


def test_a_constant_column_of_dated_series_is_forecast_unless_its_name_is_that_of_a_target():
    def date(t):
        return f"2026-01-{t + 1:02d}"

    table = make_long_table(date, "region")
    task = open_task(table, lookback=3, horizon=1)
    assert task.kind == "forecast"
    assert any("to predict that, give target=region kind=classify" in note.text for note in task.notes)
    assert open_task(table, target="region").kind == "classify"
    assert open_task(make_long_table(date)).kind == "classify"


def test_labels_that_differ_by_case_or_blanks_are_one_class_with_a_note():
    labels = ["positive", "positive", "Positive ", "neg", "NEG", "neg"] * 10
    table = pl.DataFrame({"text": [f"{p} {i}" for i, p in enumerate(PHRASES[:60])], "label": labels})
    task = open_task(table)
    assert task.target.names == ("neg", "positive")
    notes = [note.text for note in task.notes]
    assert "labels 'neg', 'NEG' are one class, 'neg'; keep them apart with merge_labels=False" in notes
    assert open_task(table, merge_labels=False).target.size == 4


def test_single_letters_and_tags_keep_their_case():
    letters = LabelCoder("c")
    letters.fit([pl.DataFrame({"c": ["a", "A", "b", "b "]})])
    assert letters.names == ("A", "a", "b")
    tags = LabelCoder("c", per_token=True)
    tags.fit([pl.DataFrame({"c": [["in", "IN"]]})])
    assert tags.names == ("IN", "in")


def test_names_of_an_older_coder_that_would_be_merged_stay_apart():
    coder = LabelCoder("c", names=["US", "us"])
    assert coder.encode(pl.DataFrame({"c": ["us", "US", "Us"]}))[0].tolist() == [1, 0, UNSEEN]


@pytest.mark.parametrize("names", [("False", "True"), ("false", "true"), ("FALSE", "TRUE")])
def test_true_keeps_its_spelling(tmp_path, names):
    rows = [f"{phrase},{names[i % 2]}" for i, phrase in enumerate(PHRASES)]
    (tmp_path / "a.csv").write_text("text,satisfied\n" + "\n".join(rows))
    assert open_task(tmp_path / "a.csv").target.names == names


def test_a_file_that_allows_two_tasks_is_an_error_with_both_commands(tmp_path, capsys):
    rows = [f"{phrase},{'abc'[i % 3]},{i * 0.37}" for i, phrase in enumerate(PHRASES)]
    file = tmp_path / "two.csv"
    file.write_text("text,topic,score\n" + "\n".join(rows))
    with pytest.raises(SystemExit, match="2"):
        main(["look", str(file)])
    assert capsys.readouterr().err.splitlines()[1:] == [
        f"seqloom look {file} --input text --target topic --kind classify",
        f"seqloom look {file} --input text --target score --kind regress",
    ]
