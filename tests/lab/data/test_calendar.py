"""Frequencies of time stamps, the dates that follow, and rows on a regular grid."""

from datetime import date, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from seqloom.lab.data.coders.calendar import Calendar, find_style
from seqloom.lab.data.coders.table import fill_gaps
from seqloom.lab.data.coders.times import to_seconds
from seqloom.lab.data.registry import open_task

SMALL = {"lookback": 6, "horizon": 2}


def infer(stamps):
    """Return the calendar of one series of stamps as a file would hold them."""
    column = pl.Series("t", stamps)
    seconds = to_seconds(column)
    return Calendar.infer("t", [seconds], find_style(column, seconds))


def months(first, count, last_day=False):
    """Return the first or last days of consecutive months."""
    days = [date(first + i // 12, i % 12 + 1, 1) for i in range(count + 1)]
    return [str(d - timedelta(1)) for d in days[1:]] if last_day else [str(d) for d in days[:-1]]


DAYS = [str(date(2026, 1, 1) + timedelta(i)) for i in range(40)]
HOURS = [str(datetime(2026, 1, 1) + timedelta(hours=i)) for i in range(60)]
WEEKDAYS = [day for day in DAYS if date.fromisoformat(day).weekday() < 5]
UNIX = 1_767_225_600  # the start of 2026
CASES = [
    ([UNIX + 3_600 * i for i in range(60)], "hourly", [UNIX + 216_000, UNIX + 219_600], (24, 168)),
    ([UNIX + 86_400 * i for i in range(40)], "daily", [UNIX + 3_456_000, UNIX + 3_542_400], (7,)),
    *(
        (
            [(UNIX + 3_600 * i) * unit for i in range(60)],
            "hourly",
            [(UNIX + n) * unit for n in (216_000, 219_600)],
            (24, 168),
        )
        for unit in (10**3, 10**6, 10**9)
    ),
    ([f"{d:%b %d, %Y}" for d in map(date.fromisoformat, DAYS)], "daily", ["2026-02-10", "2026-02-11"], (7,)),
    ([f"{d:%d-%B-%Y}" for d in map(date.fromisoformat, DAYS)], "daily", ["2026-02-10", "2026-02-11"], (7,)),
    ([f"{h + timedelta(20):%m/%d/%Y %I:%M %p}" for h in map(datetime.fromisoformat, HOURS)], "hourly", None, (24, 168)),
    (HOURS, "hourly", ["2026-01-03 12:00:00", "2026-01-03 13:00:00"], (24, 168)),
    (DAYS, "daily", ["2026-02-10", "2026-02-11"], (7,)),
    (DAYS[::7], "weekly", ["2026-02-12", "2026-02-19"], (52,)),
    (WEEKDAYS, "business days", ["2026-02-10", "2026-02-11"], (5,)),
    (WEEKDAYS[:-1], "business days", ["2026-02-09", "2026-02-10"], (5,)),
    (months(2020, 15), "monthly", ["2021-04-01", "2021-05-01"], (12,)),
    (months(2020, 13, last_day=True), "monthly", ["2021-02-28", "2021-03-31"], (12,)),
    ([m[:7] for m in months(2020, 14)], "monthly", ["2021-03", "2021-04"], (12,)),
    (months(2020, 24)[::3], "quarterly", ["2022-01-01", "2022-04-01"], (4,)),
    ([str(datetime(2026, 1, 1) + timedelta(minutes=15 * i)) for i in range(9)], "every 15 minutes", None, (96, 672)),
    ([1700, 1701, 1702, 1703], "1 apart", [1704, 1705], ()),
]


@pytest.mark.parametrize(("stamps", "name", "dates", "seasons"), CASES)
def test_the_frequency_is_inferred_and_the_next_dates_are_written_like_the_others(stamps, name, dates, seasons):
    calendar = infer(stamps)
    assert (calendar.name, calendar.seasons, calendar.is_regular) == (name, seasons, True)
    if dates is not None:
        assert calendar.follow(stamps[-1], 2) == dates


@pytest.mark.parametrize("stamps", [case[0] for case in CASES if case[2]])
def test_stamps_without_every_fifth_one_have_the_same_frequency_and_steps_count_the_gaps(stamps):
    rest = [s for i, s in enumerate(stamps) if i % 5 != 4 or i == len(stamps) - 1]
    calendar, seconds = infer(rest), to_seconds(pl.Series(rest))
    assert calendar.name == infer(stamps).name
    assert calendar.count_steps(seconds).sum() == len(stamps) - 1
    assert calendar.advance(seconds[:1], np.array([len(stamps) - 1])).tolist() == seconds[-1:].tolist()


def test_events_at_any_time_are_not_regular_and_a_step_is_a_row():
    times = np.cumsum(np.random.default_rng(0).exponential(100, 80)).round(3)
    task = open_task(pl.DataFrame({"time": times, "v": np.sin(times)}), **SMALL)
    assert not task.calendar.is_regular
    assert "irregular, so a step is a row" in str(task.notes)
    assert next(task.batches("test", batch=4)).timespans is not None


def test_a_gap_takes_its_time_its_inputs_repeat_the_season_before_and_its_targets_are_missing():
    values = np.arange(40.0)
    keep = [i for i in range(40) if i not in (10, 11, 12)]
    task = open_task(pl.DataFrame({"day": [DAYS[i] for i in keep], "v": values[keep]}), **SMALL)
    assert any("steps without a row: 3 of 40 (daily)" in note.text for note in task.notes)
    assert task.input.names == ("v", "missing:v")
    mean, deviation = task.encoding.x.scale.mean[0], task.encoding.x.scale.deviation[0]
    windows = {int(task._starts["train"][b.rows[0]]): b for b in task.batches("train", batch=1)}
    assert 4 not in windows and 5 not in windows  # their forecasts would be of days 10 to 12 alone
    raw = (windows[6].x[0, :, 0] * deviation + mean).round().tolist()  # days 6 to 11
    assert raw == [6, 7, 8, 9, 3, 4]  # a week before
    assert windows[6].x[0, :, 1].tolist() == [0, 0, 0, 0, 1, 1]
    assert windows[6].y[0, 0].isnan() and not windows[6].y[0, 1].isnan()  # days 12 and 13


def test_each_series_has_its_own_dates(tmp_path):
    rows = [("a", DAYS[i], float(i)) for i in range(30)] + [("b", DAYS[i], float(i)) for i in range(5, 40)]
    task = open_task(pl.DataFrame(rows, schema=["shop", "day", "v"], orient="row"), **SMALL)
    (ends,) = task.read_rows(pl.DataFrame(rows, schema=["shop", "day", "v"], orient="row"))
    assert [task.list_dates(row) for row in ends] == [["2026-01-31", "2026-02-01"], ["2026-02-10", "2026-02-11"]]


def test_the_hour_that_repeats_when_summer_time_ends_is_averaged():
    stamps = [*HOURS[:30], HOURS[29], *HOURS[30:]] + [
        str(datetime(2026, 1, 3, 12) + timedelta(hours=i)) for i in range(60)
    ]
    values = np.ones(len(stamps))
    values[29:31] = (4.0, 6.0)
    task = open_task(pl.DataFrame({"time": stamps, "v": values}), target="v", kind="forecast", **SMALL)
    assert any("rows in the same step as another: 1 of 121; they are averaged" in text for text in task.notes.warnings)
    raw = task._x[:, 0] * task.encoding.x.scale.deviation[0] + task.encoding.x.scale.mean[0]
    assert len(raw) == 120 and raw[29] == pytest.approx(5.0, abs=1e-5)


def test_gaps_are_filled_from_the_past_of_the_same_series_alone():
    nan = np.nan
    values = np.array([[nan], [1.0], [2.0], [nan], [nan], [3.0], [nan], [7.0], [nan]])
    first = np.array([0, 0, 0, 0, 0, 0, 6, 6, 6])
    filled = fill_gaps(values, first, season=2)[:, 0].tolist()
    assert filled[1:6] == [1.0, 2.0, 1.0, 2.0, 3.0] and filled[7:] == [7.0, 7.0]
    assert np.isnan(filled[0]) and np.isnan(filled[6])


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("01/13/2026 12:00 AM", "2026-01-13T00:00:00"),
        ("2026-01-13 12:30:05 pm", "2026-01-13T12:30:05"),
        ("Sept. 2, 2026 9:05 p.m.", "2026-09-02T21:05:00"),
        ("2 June 2026", "2026-06-02T00:00:00"),
        ("01-Jun-2026 23:59:59", "2026-06-01T23:59:59"),
    ],
)
def test_names_of_months_and_halves_of_days_are_read(text, second):
    assert to_seconds(pl.Series([text])).astype("datetime64[s]").astype(str).tolist() == [second]


def test_a_table_with_names_of_months_is_a_forecast():
    days = [f"{date(2026, 1, 1) + timedelta(i):%b %d, %Y}" for i in range(60)]
    task = open_task(pl.DataFrame({"Date": days, "Close": [float(i * 7 % 31) for i in range(60)]}), **SMALL)
    assert (task.kind, task.calendar.name) == ("forecast", "daily")
