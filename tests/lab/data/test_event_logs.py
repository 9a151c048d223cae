"""Logs in which every row is one event: the events of a session are a sequence of names."""

import random

import polars as pl
import pytest

from seqloom.core.errors import UserError
from seqloom.lab.data.registry import open_task

PAGES = ("home", "search", "item", "cart")


def make_log(sessions=60, **columns):
    """Return a log of sessions of three to nine events, with the second of each and whether the session bought."""
    source = random.Random(0)
    rows = []
    for number in range(sessions):
        second = 0
        for _ in range(source.randint(3, 9)):
            second += source.randint(1, 60)
            rows.append((f"s{number}", second, source.choice(PAGES), "yes" if number % 3 else "no"))
    frame = pl.DataFrame(rows, ["session", "second", "page", "bought"], orient="row")
    return frame.with_columns(**{name: pl.Series([make(source) for _ in rows]) for name, make in columns.items()})


def test_names_of_events_are_the_steps_of_each_series(tmp_path):
    log = make_log()
    task = open_task(log)
    assert (task.kind, task.encoding.plan.group, task.input.unit) == ("classify", "session", "tokens")
    assert sum(split.size for split in task.splits.values()) == 60
    assert any("each 'session' is one sequence of 'page'" in note.text for note in task.notes)
    log.drop("bought").write_csv(tmp_path / "new.csv")
    (rows,) = task.read_rows(tmp_path / "new.csv")
    expected = log.filter(pl.col("session") == "s0")["page"].to_list()
    assert rows[0]["page"] == expected and int(task.encode(rows).lengths[0]) == len(expected)


def test_events_are_put_in_order_by_their_time():
    log = make_log()
    shuffled = log.sample(fraction=1.0, shuffle=True, seed=1)
    first, second = (open_task(frame, group="session", time="second", target="bought") for frame in (log, shuffled))
    (rows,), (others,) = (list(task.read_rows(frame)) for task, frame in ((first, log), (second, shuffled)))
    assert {row["session"]: row["page"] for row in rows} == {row["session"]: row["page"] for row in others}


def test_numbers_that_are_measured_are_read_unless_names_are_asked_for():
    log = make_log(amount=lambda source: round(source.random(), 3))
    assert open_task(log).encoding.plan.input == ("second", "amount")
    assert open_task(log, input="page").input.unit == "tokens"


def test_events_with_a_label_each_are_tagged():
    log = make_log(next=lambda source: source.choice("ab")).rename({"session": "session_id"})
    task = open_task(log.drop("bought"), kind="tag", target="next")
    assert (task.kind, task.encoding.plan.input, task.target.names) == ("tag", ("page",), ("a", "b"))


def test_a_log_without_a_target_says_what_it_lacks():
    with pytest.raises(
        UserError, match="each 'session' is a sequence of 'page', but has no label or number to predict"
    ):
        open_task(make_log().drop("bought"))


def test_a_log_whose_events_have_labels_says_how_to_predict_them():
    log = make_log(next=lambda source: source.choice("ab")).rename({"session": "session_id"})
    with pytest.raises(UserError, match="to predict a label for each 'page', give kind=tag and target=next"):
        open_task(log.drop("bought", "second"))


def test_a_number_of_each_series_is_proposed_as_the_target():
    engines = pl.DataFrame({"unit_id": [i // 5 for i in range(60)]}).with_columns(
        pl.Series("heat", [(i * 7) % 60 + 0.5 for i in range(60)]),
        pl.Series("life", [3.5 * (i // 5) for i in range(60)]),
    )
    with pytest.raises(UserError, match="each 'unit_id' is a series with one 'life'; to predict it, give target=life"):
        open_task(engines)
    task = open_task(engines, target="life")
    assert (task.kind, task.encoding.plan.group, task.encoding.plan.input) == ("regress", "unit_id", ("heat",))


def test_dates_may_name_the_series():
    days = [f"2026-01-{i // 5 + 1:02d}" for i in range(100)]
    rows = pl.DataFrame({"day": days, "heat": [i * 7 % 60 + 0.5 for i in range(100)]}).with_columns(
        pl.Series("weather", [("sun", "rain")[i // 5 % 2] for i in range(100)])
    )
    assert open_task(rows, group="day", target="weather", kind="classify").encoding.plan.time is None
    with pytest.raises(UserError, match="'day' cannot be both the group and the time; leave one of them out"):
        open_task(rows, group="day", time="day", kind="classify")
