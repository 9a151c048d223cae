"""What is inferred from names and values: texts, Unix time, series with one label, classes with several spellings."""

import random
from datetime import date

import polars as pl
import pytest

from seqloom.cli.main import main
from seqloom.lab.data.coders.labels import LabelCoder
from seqloom.lab.data.pipeline import columns
from seqloom.lab.data.pipeline.columns import describe_columns
from seqloom.lab.data.pipeline.reading import make_reading
from seqloom.lab.data.pipeline.source import read_source
from seqloom.lab.data.registry import open_task
from seqloom.lab.data.task import UNSEEN, Column, Notes

WORDS = ["good", "bad", "nice", "awful", "film", "food", "room", "staff", "slow", "warm"]
PHRASES = [f"{one} {other}" for one in WORDS for other in WORDS]


def find_role(name, values):
    source = read_source(pl.DataFrame({name: values}), make_reading(), Notes())
    return describe_columns(source)[0].role


NUMBERS = [0.5, 1.5, 2.5] * 20
# name and values -> role, and whether the values are whole numbers: a label that could also be a number
ROLES = {
    "whole numbers of few values": ("stars", [1, 2, 3] * 20, "label", True),
    "whole floats": ("stars", [1.0, 2.0, 3.0] * 20, "label", True),
    "fractions": ("weight", NUMBERS, "number", False),
    "many whole numbers": ("price", [n * n for n in range(60)], "number", True),
    "twenty values": ("grade", [n % 20 for n in range(60)], "label", True),
    "twenty-one values": ("grade", [n % 21 for n in range(63)], "number", True),
    "as many values as half of the rows": ("grade", [n % 5 for n in range(10)], "label", True),
    "more values than half of the rows": ("grade", [n % 6 for n in range(11)], "number", True),
    "one number": ("stars", [3] * 9, "constant", True),
    "one name": ("town", ["here"] * 9, "constant", False),
    "truth values": ("seen", [True, False] * 9, "label", False),
    "dates": ("day", [date(2025, 1, 1 + n) for n in range(20)], "time", False),
    "numbers called t": ("t", NUMBERS, "time", False),
    "each year once": ("year", list(range(1990, 2020)), "time", False),
    "years of a calendar": ("year", [2019, 2020, 2021] * 20, "label", True),
    "seconds since 1970": ("created_at", [1_700_000_000 + 60 * n for n in range(30)], "time", False),
    "numbered rows": ("row", list(range(5, 35)), "id", False),
    "numbers called id": ("user_id", [7, 3, 3, 9] * 9, "id", False),
    "names of splits": ("split", ["train", "train", "test"] * 9, "split", False),
    "codes": ("code", [f"a{n}" for n in range(40)], "id", False),
    "many towns": ("town", [f"town{n % 210}" for n in range(2100)], "category", False),
    "sentences": ("what", [f"{p} and {p}" for p in PHRASES], "text", False),
}


@pytest.mark.parametrize(("name", "values", "role", "is_whole"), ROLES.values(), ids=ROLES)
def test_the_role_of_a_column_follows_from_its_name_and_values(name, values, role, is_whole):
    source = read_source(pl.DataFrame({name: values}), make_reading(), Notes())
    (column,) = describe_columns(source)
    assert (column.role, column.is_whole) == (role, is_whole)


@pytest.mark.parametrize(
    ("names", "is_noted"),
    [(("a", "b", "a|b"), True), (("a", "b", "a;b"), True), (("a", "b", "a, b"), False), ("abc", False)],
)
def test_classes_that_look_like_several_labels_are_noted(names, is_noted):
    rows = pl.DataFrame({"text": [f"word {n} of many" for n in range(60)], "label": list(names) * 20})
    task = open_task(rows, target="label", kind="classify")
    assert any("may be several labels" in note.text for note in task.notes) == is_noted


def test_a_target_of_one_class_is_not_predicted_by_every_column():
    rows = pl.DataFrame({"c": ["x", "y"] * 30, "y": ["a"] * 60})
    column = Column("c", "label", 2, 0, "x", False, True)
    assert columns._measure_accuracy(rows, column) is None
    assert columns._measure_accuracy(rows.with_columns(y=pl.col("c")), column) == "100.0% right"


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
