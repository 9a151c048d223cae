"""Roles of columns, the choice of a plan, and notes on columns that are not used."""

import numpy as np
import polars as pl
import pytest

from seqloom.lab.data.description import describe_task
from seqloom.lab.data.pipeline.columns import describe_columns
from seqloom.lab.data.pipeline.reading import make_reading
from seqloom.lab.data.pipeline.source import read_source
from seqloom.lab.data.registry import open_task
from seqloom.lab.data.task import Notes

N = 60
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "others", "watch"]
TEXT = [" ".join(WORDS[(i * k) % 12] for k in range(1, 7)) + f" {i}" for i in range(N)]


def frame(**columns):
    return pl.DataFrame(columns)


def roles(data):
    return {column.name: column.role for column in describe_columns(read_source(data, make_reading(), Notes()))}


def test_roles_of_columns():
    detected = roles(
        frame(
            text=TEXT,
            intent=["play", "stop", "go on"] * 20,
            id=[i * 3 % N for i in range(N)],
            counter=list(range(100, 100 + N)),
            uuid=[f"a{i}-x" for i in range(N)],
            price=[i * 0.37 for i in range(N)],
            stars=[1, 2, 3, 4, 5, 5] * 10,
            flag=[True, False] * 30,
            same=["x"] * N,
            when=[f"2026-01-{i % 28 + 1:02d} 10:00:00" for i in range(N)],
            month=[f"{1950 + i // 12}-{i % 12 + 1:02d}" for i in range(N)],
            title=[f"tt{i % 9 * 111}" for i in range(N)],
            split=["train"] * 50 + ["dev"] * 10,
            series=[[1.0, 2.0]] * N,
            wide=[[[1.0, 2.0]]] * N,
            times=[[0.0, 1.5]] * N,
            tokens=[["a", "b", f"c{i}"] for i in range(N)],
            slots=[["O", "O", "B"]] * N,
        )
    )
    assert detected == {
        "text": "text",
        "intent": "label",
        "id": "id",
        "counter": "id",
        "uuid": "id",
        "price": "number",
        "stars": "label",
        "flag": "label",
        "same": "constant",
        "when": "time",
        "month": "time",
        "title": "label",
        "split": "split",
        "series": "series",
        "wide": "series",
        "times": "times",
        "tokens": "tokens",
        "slots": "tags",
    }


def test_many_repeated_names_are_a_category():
    names = [f"tt{i}" for i in range(300)] * 10
    assert (
        roles(frame(title=names, text=[f"{t} is a good one {i}" for i, t in enumerate(names)]))["title"] == "category"
    )


def kind(data, **options):
    task = open_task(data, **options)
    return task.kind, task.encoding.plan.input, task.encoding.plan.target


LABEL = ["a", "b", "c"] * 20
NUMBER = [i * 0.5 for i in range(N)]
TOKENS = [["a", "b", f"c{i}"] for i in range(N)]
TAGS = [["O", "B", "O"]] * N


@pytest.mark.parametrize(
    ("data", "options", "expected"),
    [
        (frame(review=TEXT, lang=LABEL), {}, ("classify", ("review",), ("lang",))),
        (frame(text=TEXT, label=LABEL, stars=[1, 2, 3, 4] * 15), {}, ("classify", ("text",), ("label",))),
        (frame(text=TEXT, price=NUMBER), {}, ("regress", ("text",), ("price",))),
        (frame(text=TEXT, stars=[1, 2, 3, 4] * 15), {"kind": "regress"}, ("regress", ("text",), ("stars",))),
        (frame(tokens=TOKENS, slots=TAGS), {}, ("tag", ("tokens",), ("slots",))),
        (frame(tokens=TOKENS, slots=TAGS, intent=LABEL), {"target": "intent"}, ("classify", ("tokens",), ("intent",))),
        (frame(a=TEXT, b=TEXT[::-1]), {"input": "b"}, ("translate", ("b",), ("a",))),
        (frame(a=TEXT, target=TEXT[::-1]), {}, ("translate", ("a",), ("target",))),
        (frame(text=TEXT), {}, ("generate", ("text",), ("text",))),
        (frame(text=TEXT, label=LABEL), {"kind": "generate"}, ("generate", ("text",), ("text",))),
        (frame(series=[[1.0, 2.0, i] for i in range(N)], label=LABEL), {}, ("classify", ("series",), ("label",))),
        (frame(text=TEXT, x=NUMBER, y2=NUMBER[::-1]), {"target": "x,y2"}, ("regress", ("text",), ("x", "y2"))),
    ],
)
def test_the_task_that_the_columns_suggest(data, options, expected):
    assert kind(data, **options) == expected


def test_a_table_in_time_is_forecast():
    table = frame(date=[f"2026-{i // 28 + 1:02d}-{i % 28 + 1:02d}" for i in range(N)], a=NUMBER, b=NUMBER[::-1])
    plan = kind(table, lookback=5, horizon=2)
    assert plan == ("forecast", ("a", "b"), ("a", "b"))
    assert kind(table, lookback=5, horizon=2, target="b") == ("forecast", ("a", "b"), ("b",))


def test_many_columns_of_numbers_are_one_series_a_row_constants_too():
    columns = {f"p{i}": [float((i * j) % 7) for j in range(N)] for i in range(10)}
    task = open_task(frame(**columns, label=LABEL))
    assert task.kind == "classify" and task.input.names == ("value",)
    assert next(task.batches("test", batch=3)).x.shape == (3, 10, 1)  # p0 is always 0, and still a step


def test_rows_of_a_group_are_one_series_and_keep_irregular_times():
    n = 12
    table = frame(
        who=[i // 5 for i in range(5 * n)],
        time=[[0.0, 1.0, 1.5, 4.0, 5.0][(i * 2) % 5] for i in range(5 * n)],
        v=[float(i) for i in range(5 * n)],
        label=["ab"[i // 5 % 2] for i in range(5 * n)],
    )
    task = open_task(table, group="who")
    assert task.kind == "classify" and sum(split.size for split in task.splits.values()) == n
    batch = next(task.batches("train", batch=4))
    assert batch.x.shape == (4, 5, 1)
    assert batch.timespans[0].tolist() == [0.0, 1.0, 0.5, 2.5, 1.0]
    new = task.encode([{"v": [1.0, 2.0, 3.0], "time": [0.0, 0.5, 3.0]}, {"v": [1.0], "time": [9.0]}])
    assert new.timespans.tolist() == [[0.0, 0.5, 2.5], [0.0, 0.0, 0.0]]
    with pytest.raises(ValueError, match="row 2: 1 time stamp in 'time' for 2 steps"):
        task.encode([{"v": [1.0], "time": [0.0]}, {"v": [1.0, 2.0], "time": [0.0]}])
    mixed = table.with_columns(label=pl.Series(["a", "b"] * (5 * n // 2)))
    with pytest.raises(ValueError, match="a series needs one target"):
        open_task(mixed, group="who")


@pytest.mark.parametrize(
    ("data", "choices"),
    [
        (
            frame(tokens=TOKENS, slots=TAGS, intent=LABEL),
            ["target=slots kind=tag (2 ", "target=intent kind=classify (3 "],
        ),
        (frame(one=TEXT, other=TEXT[::-1]), ["input=one target=other", "input=other target=one"]),
        (frame(text=TEXT, a=LABEL, b=LABEL[::-1]), ["target=a kind=classify", "target=b kind=classify"]),
        (frame(text=TEXT, a=LABEL, b=NUMBER), ["target=a kind=classify", "target=b kind=regress"]),
    ],
)
def test_an_ambiguous_table_is_an_error_that_lists_the_choices(data, choices):
    with pytest.raises(ValueError, match="choose one") as caught:
        open_task(data)
    assert all(choice in str(caught.value) for choice in choices)


def test_nothing_to_learn_is_an_error_that_names_the_columns():
    with pytest.raises(ValueError, match=r"no task fits the columns a \(label\), b \(label\)"):
        open_task(frame(a=LABEL, b=LABEL))


def test_a_column_that_gives_the_target_away_is_warned_about_by_name():
    label = [i % 2 for i in range(N)]
    rating = [1 + i % 4 + 5 * (i % 2) for i in range(N)]
    noise = [(i * 7) % 5 for i in range(N)]
    task = open_task(frame(text=TEXT, label=label, rating=rating, noise=noise))
    assert task.notes.warnings == ["column 'rating' alone predicts 'label' (100.0% right); it is not used"]


def test_a_number_that_is_the_target_in_other_units_is_warned_about():
    task = open_task(frame(text=TEXT, price=NUMBER, cents=[n * 100 for n in NUMBER]), target="price")
    assert "column 'cents' alone predicts 'price' (correlation 1.0000)" in task.notes.warnings[0]


def test_unused_columns_are_listed_with_the_reason():
    task = open_task(frame(text=TEXT, label=LABEL, id=list(range(N)), source=["web"] * N))
    assert "columns not used: id (id), source (constant)" in [note.text for note in task.notes]


def test_the_table_of_columns_is_short_and_complete():
    lines = describe_task(open_task(frame(text=TEXT, label=LABEL, id=list(range(N)))))
    lines = lines[: lines.index("")]
    assert lines[0].split() == ["column", "type", "used", "as", "distinct", "missing", "example"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["text", "text", "input"],
        ["label", "label", "target"],
        ["id", "id", "-"],
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "lable"}, "no column 'lable'; did you mean 'label'\\? the columns are text, label"),
        ({"inptu": "text"}, "no option 'inptu': did you mean 'input'"),
        ({"kind": "clasify"}, "option kind='clasify'"),
        ({"valid": 1.5}, "option valid=1.5"),
        ({"borders": "a/b"}, "option borders='a/b'"),
    ],
)
def test_options_that_are_wrong_are_one_line(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        open_task(frame(text=TEXT, label=LABEL), **options)
    assert "\n" not in str(caught.value)


def test_a_missing_value_is_not_a_distinct_one_in_the_table_of_columns():
    labels = [None if i % 3 == 0 else "ab"[i % 2] for i in range(N)]
    line = next(line for line in describe_task(open_task(frame(text=TEXT, label=labels))) if line.startswith("label"))
    assert line.split()[:5] == ["label", "label", "target", "2", str(len(range(0, N, 3)))]


def test_of_many_columns_the_first_and_last_of_each_kind_are_listed():
    values = {f"f{i}": np.random.default_rng(i).normal(size=N) for i in range(60)}
    lines = describe_task(open_task(frame(**values, label=LABEL)))
    assert [line.split()[0] for line in lines[:5]] == ["column", "f0", "...", "f59", "label"]
    assert "... 58 more  number  input" in lines[2]


def test_an_empty_column_and_marks_for_missing_numbers_are_no_texts(tmp_path):
    marks = ["n/a", "NA", "#N/A", "-", "?", "--", "null", ""]
    rows = [f"{i / 7:.3f},,{text},{label}" for i, (text, label) in enumerate(zip(TEXT, LABEL, strict=True))]
    rows[: len(marks)] = [mark + row[row.index(",") :] for mark, row in zip(marks, rows, strict=False)]
    (tmp_path / "t.csv").write_text("\n".join(["a,nothing,text,label", *rows]))
    assert roles(tmp_path / "t.csv") == {"a": "number", "nothing": "constant", "text": "text", "label": "label"}
    columns = {c.name: c for c in open_task(tmp_path / "t.csv").columns}
    assert columns["a"].missing == len(marks) and columns["text"].use == "input"


def test_a_short_table_that_is_one_series_is_cut_into_ten_pieces():
    rows = frame(a=NUMBER, b=NUMBER[::-1], label=LABEL)
    task = open_task(rows, kind="tag")
    assert {name: split.size for name, split in task.splits.items()} == {"train": 8, "valid": 1, "test": 1}
    assert any("cut into pieces of 6 steps" in note.text for note in task.notes)
    with pytest.raises(
        ValueError, match=r"one series of 60 rows; pieces of 40 steps leave none to train on; set lookb"
    ):
        open_task(rows, kind="tag", lookback=40)
