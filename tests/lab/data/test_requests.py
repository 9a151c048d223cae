"""Requests that name input, target and kind: what they give, or an error that says why not and what works."""

import json
import random
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest
from scipy.io import wavfile

from seqloom.cli.main import main

RANDOM = random.Random(0)
WORDS = ["good", "bad", "nice", "slow", "film", "food", "room", "staff"]
PITCHES = ["60", "64", "67", "72"]
N = 80


def make_text(words=5):
    return " ".join(RANDOM.choice(WORDS) for _ in range(words))


def write_flowers(folder):
    """Write flowers, sorted by species and otherwise in no order, and as many rows of a sensor in time."""
    random = np.random.default_rng(0)
    species = np.repeat(["a", "b", "c"], 50)
    noise = random.normal(size=(150, 2))
    states = np.repeat(["off", "on"] * 5, 15)
    for name, rows, labels in (("flowers", noise, species), ("sensor", noise.cumsum(0), states)):
        columns = {"length": rows[:, 0].round(3), "width": rows[:, 1].round(3)}
        pl.DataFrame(columns | {"species": labels}).write_csv(folder / f"{name}.csv")


def write_date_parts(folder):
    """Write an hourly table whose dates are spread over four columns."""
    hours = [datetime(2026, 1, 1) + timedelta(hours=i) for i in range(200)]
    columns = {name: [getattr(hour, name) for hour in hours] for name in ("year", "month", "day", "hour")}
    measured = {f"m{k}": np.random.default_rng(k).normal(size=200).round(3) for k in range(5)}
    pl.DataFrame(columns | measured | {"wind": ["NW", "SE"] * 100}).write_csv(folder / "parts.csv")


def write_counter(folder):
    days = pl.date_range(pl.date(2026, 1, 1), pl.date(2026, 3, 1), eager=True)
    pl.DataFrame({"day": days, "visits": range(100, 100 + 3 * len(days), 3)}).write_csv(folder / "counter.csv")


def write_dates(folder):
    days = [f"2026-01-{i:02d}" if i % 2 else f"01/{i:02d}/2026" for i in range(1, 31)]
    pl.DataFrame({"day": days, "visits": [RANDOM.gauss(0, 1) for _ in days]}).write_csv(folder / "dates.csv")


def test_a_column_that_rises_steadily_is_forecast_if_that_is_asked_for(tmp_path, monkeypatch, capsys):
    write_counter(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["look", "counter.csv", "--target", "visits", "--kind", "forecast"])
    assert not end.value.code
    assert "counter: forecast, visits -> visits" in capsys.readouterr().out


def write_texts(folder):
    names = ["yes", "no"] * (N // 2)
    columns = {"question": [make_text() for _ in names], "answer": [make_text() for _ in names], "label": names}
    columns |= {"comment": columns["question"], "amount": [RANDOM.gauss(0, 1) for _ in names], "satisfied": names}
    pl.DataFrame(columns).write_csv(folder / "texts.csv")


def write_steps(folder):
    rows = [[f"s{i}", t, *(RANDOM.gauss(0, 1) for _ in range(3))] for i in range(30) for t in range(10)]
    table = pl.DataFrame(rows, schema=["id", "t", "ax", "ay", "az"], orient="row")
    series = table.with_columns(label=pl.col("id").replace_strict({f"s{i}": "ab"[i % 2] for i in range(30)}))
    series.write_csv(folder / "series.csv")
    steps = table.with_columns(label=pl.Series([RANDOM.choice("ab") for _ in rows]))
    steps.write_csv(folder / "steps.csv")
    steps.drop("id", "t").write_csv(folder / "recording.csv")
    steps.group_by("id", maintain_order=True).agg(pl.exclude("id")).write_ndjson(folder / "lists.jsonl")


def write_shop(folder):
    days = pl.date_range(pl.date(2024, 1, 1), pl.date(2024, 12, 30), eager=True)
    table = pl.DataFrame({"date": days.cast(pl.String), "sales": [RANDOM.gauss(9, 2) for _ in days]})
    promo, weather = ([RANDOM.choice(some) for _ in days] for some in ((0, 1), ("sun", "rain", "snow")))
    table.with_columns(promo=pl.Series(promo), weather=pl.Series(weather)).write_csv(folder / "shop.csv")


def write_pulse(folder):
    pl.DataFrame({"step": range(N), "volts": [RANDOM.gauss(0, 1) for _ in range(N)]}).write_csv(folder / "pulse.csv")


def write_nested(folder):
    rows = [{"data": {"content": make_text()}, "labels": {"emotion": "joy" if i % 3 else "fear"}} for i in range(N)]
    (folder / "nested.json").write_text(json.dumps(rows))


def write_phrases(folder):
    lines = [f"{make_text(2)},{'ab'[i % 2]}" for i in range(600)]
    (folder / "phrases.csv").write_text("text,topic\n" + "\n".join(lines))


def write_tones(folder):
    (folder / "tones").mkdir()
    lines = ["file,notes"]
    for i in range(12):
        wavfile.write(folder / "tones" / f"{i}.wav", 8_000, np.sin(np.arange(800) * (i + 1) / 9).astype(np.float32))
        lines.append(f"{i}.wav,{'abc'[i % 3]}")
    (folder / "tones" / "notes.csv").write_text("\n".join(lines))


def write_lists(folder):
    rolls = [[RANDOM.sample((60, 64, 67, 72), k=t % 3) for t in range(8)] for _ in range(N)]
    pl.DataFrame({"roll": rolls, "next": rolls}).write_ndjson(folder / "roll.jsonl")
    tags = [RANDOM.sample(WORDS, 2) for _ in range(N)]
    columns = {"text": [make_text() for _ in range(N)], "stars": [RANDOM.gauss(0, 1) for _ in range(N)], "tags": tags}
    pl.DataFrame(columns).write_ndjson(folder / "genres.jsonl")


@pytest.mark.parametrize(
    ("write", "command", "kind", "input", "target"),
    [
        (write_texts, "texts.csv --input question,answer --target label", "classify", "tokens", ["no", "yes"]),
        (write_texts, "texts.csv --input comment,amount --target satisfied", "classify", "tokens", ["no", "yes"]),
        (write_steps, "series.csv --input ax,ay,az --target label", "classify", "features", ["a", "b"]),
        (write_steps, "steps.csv --input ax,ay,az --target label --kind tag", "tag", "features", ["a", "b"]),
        (
            write_steps,
            "recording.csv --input ax,ay,az --target label --kind tag --lookback 20",
            "tag",
            "features",
            None,
        ),
        (write_steps, "lists.jsonl --input ax,ay,az --target label --kind tag", "tag", "features", ["a", "b"]),
        (write_shop, "shop.csv --input sales,promo,weather --target sales", "forecast", "features", ["sales"]),
        (write_nested, "nested.json --input content --target emotion", "classify", "tokens", ["fear", "joy"]),
        (write_nested, "nested.json --input data.content --target labels.emotion", "classify", "tokens", None),
        (write_phrases, "phrases.csv", "classify", "tokens", ["a", "b"]),
        (write_lists, "genres.jsonl --input text --target tags", "multilabel", "tokens", sorted(WORDS)),
        (write_lists, "genres.jsonl --input text,stars --target tags", "multilabel", "tokens", sorted(WORDS)),
        (write_lists, "roll.jsonl --input roll --target next --kind tag", "multilabel", "features", PITCHES),
        (write_tones, "tones --kind transcribe", "transcribe", "features", None),
    ],
)
def test_a_request_that_works(tmp_path, monkeypatch, capsys, write, command, kind, input, target):
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["look", *command.split(), "--json"])
    assert not ended.value.code
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["input"]["is"]) == (kind, input)
    assert target is None or document["target"]["names"] == target


def test_a_forecast_of_rows_in_no_order_is_warned_about(tmp_path, monkeypatch, capsys):
    write_flowers(tmp_path)
    monkeypatch.chdir(tmp_path)
    notes = {}
    for name in ("flowers", "sensor"):
        with pytest.raises(SystemExit):
            main(["look", f"{name}.csv", "--input", "length,width", "--kind", "forecast", "--json"])
        notes[name] = capsys.readouterr()
    assert "no row depends on those before it" in notes["flowers"].out + notes["flowers"].err
    assert "no row depends on those before it" not in notes["sensor"].out + notes["sensor"].err


@pytest.mark.parametrize(
    ("write", "command", "reason"),
    [
        (
            write_lists,
            "genres.jsonl --input text --target tags --kind classify",
            "'tags' holds lists, and a row has one label to classify; what works is --input text --target tags --kind",
        ),
        (
            write_texts,
            "texts.csv --input amount,satisfied --target label --kind classify",
            "rows without a text, series or recording are no sequences; use gradient boosting for them",
        ),
        (
            write_texts,
            "texts.csv --input question --target label --kind tag",
            "or a table with a label in each row; what works is --input question --target label --kind classify",
        ),
        (
            write_texts,
            "texts.csv --input question,amount --target answer --kind translate",
            "are read to classify or regress, not to translate; give one of them: --input question",
        ),
        (
            write_texts,
            "texts.csv --input question --target label,satisfied --kind classify",
            "2 targets (label, satisfied); one model predicts one label: give one",
        ),
        (
            write_shop,
            "shop.csv --input sales --target weather",
            "target weather (label) cannot be used; name the kind of task with --kind; what works is --input sales "
            "--target weather --kind tag",
        ),
        (write_pulse, "pulse.csv", "no task fits the columns step (id), volts (number); what works is --kind forecast"),
        (
            write_dates,
            "dates.csv",
            "'day' begins with a date, but not all its values are dates of that form; write all as",
        ),
        (
            write_flowers,
            "flowers.csv",
            "its rows are not sequences: there are 2 columns of numbers and the label 'species', no text, list or time "
            "stamps, and no row depends on those before it; use gradient boosting",
        ),
        (write_flowers, "flowers.csv --target species --kind classify", "(scikit-learn's HistGradientBoostingClass"),
        (write_flowers, "sensor.csv", "what works is --kind tag"),
        (
            write_date_parts,
            "parts.csv",
            "'year', 'month', 'day', 'hour' are parts of a date; write them as one column, such as 2026-12-31 23:00:00",
        ),
        (write_counter, "counter.csv", "if it is measured, forecast it with --target visits --kind forecast"),
    ],
)
def test_a_request_that_is_refused_says_why_and_what_works(tmp_path, monkeypatch, capsys, write, command, reason):
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["look", *command.split()])
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1
    assert "name input, target and kind" not in error


def test_a_row_whose_columns_are_read_as_steps_says_so(tmp_path, monkeypatch, capsys):
    values = np.random.default_rng(0).normal(size=(60, 9)).round(3)
    columns = {f"m{k}": values[:, k] for k in range(9)} | {"kind": ["a", "b", "c"] * 20}
    pl.DataFrame(columns).write_csv(tmp_path / "wide.csv")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["look", "wide.csv", "--json"])
    text = capsys.readouterr().out
    assert "its 9 columns of numbers, 'm0' to 'm8'; if they are different measurements and not steps, gradient" in text
