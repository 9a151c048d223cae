"""Collect the measurements that support the advice of `seqloom advise` from the records in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from seqloom.core.plurals import count

STREAM_WIDTH = 128  # hidden size of the streamed layers
FORMS = {"RNN": "rnn", "AttnRNN": "attn_rnn", "self-attention fused": "transformer", "TCN": "tcn"}
LONG = 8192  # steps at which the cost of layers is compared
FORMS_FOLDER = "variants"
LONG_TEXT = "T = 1,024"  # eight times the length of training

Entries = Iterator[tuple[str, float, str]]  # key, value, description


def collect(folder: Path) -> dict[str, Any]:
    """Collect the measurements from the records in a folder, in the format of `measurements.json`."""
    values: dict[str, dict[str, Any]] = {}
    sources: dict[str, dict[str, str]] = {}
    for file in sorted(folder.rglob("*.json")):
        if FORMS_FOLDER in file.parts:  # studies of forms that no advice names
            continue
        record, name = json.loads(file.read_text(encoding="utf-8")), file.relative_to(folder).as_posix()
        for key, value, what in _read(name, record):
            values[key] = {"value": float(f"{value:.4g}"), "what": what, "source": name}
            sources[name] = _source(record)
    return {"values": values, "sources": sources}


def _source(record: Mapping[str, Any]) -> dict[str, str]:
    command, machine = record["command"], record["hardware"]
    on = record.get("device") or machine.get("device") or "cpu"
    gpus = [gpu["name"] for gpu in machine["gpus"]] if on != "cpu" else []
    hardware = ", ".join(gpus) or f"{machine['cpu']}, {machine['instructions']}, {count(machine['threads'], 'thread')}"
    return {
        "command": command if isinstance(command, str) else " ".join(command),
        "date": record["date"],
        "hardware": hardware,
    }


def _read(name: str, record: Mapping[str, Any]) -> Entries:
    """Yield the measurements of a record; other records have none."""
    readers: dict[tuple[str, str | None], Callable[[Mapping[str, Any]], Entries]] = {
        ("complexity", None): _complexity,
        ("adding", "fair"): _adding,
        ("copy", "fair"): _copy,
        ("gradients", "paper"): _gradients,
        ("kinds", "fair"): _kinds,
    }
    study = record.get("study", ""), record.get("protocol")  # early records have no protocol
    if name.endswith("-stream.json"):
        yield from _stream(record)
    elif str(record.get("what", "")).startswith("Multi30k de-en"):
        yield from _translate(record)
    elif study in readers:
        yield from readers[study](record)
    elif "protocol" not in record:
        yield from _quality(record)


def _stream(record: Mapping[str, Any]) -> Entries:
    for row in record["rows"]:
        library, _, cell = row["layer"].partition(" ")
        if library == "seqloom" and row["input"] == STREAM_WIDTH:
            yield f"step.{cell.partition('.')[0]}", row["us_per_token"], "microseconds a step of one stream, 128 units"


def _complexity(record: Mapping[str, Any]) -> Entries:
    for row in record["rows"]:
        if row["form"] in FORMS and LONG in row["lengths"]:
            at = row["lengths"].index(LONG)
            name = FORMS[row["form"]]
            yield f"long.{name}", 1e3 * row["seconds"][at], f"milliseconds for {LONG:,} steps of one layer, forward"
            yield f"exponent.{name}", row["time_exponent"]["value"], "time grows as length to this power"


def _kinds(record: Mapping[str, Any]) -> Entries:
    found: dict[str, list[float]] = {}
    for row in record["rows"]:
        if row["split"] == "test" and row["condition"] == "text" and LONG_TEXT in row["scores"]:
            found.setdefault(row["model"], []).append(100 * row["scores"][LONG_TEXT])
    for model, values in found.items():
        seeds = count(len(values), "seed")
        what = f"percent of characters predicted in {LONG_TEXT.removeprefix('T = ')} steps, trained on 128, {seeds}"
        yield f"text.{model}", sum(values) / len(values), what


def _quality(record: Mapping[str, Any]) -> Entries:
    """Yield the measurements of a study with real data; other records have none of the metrics."""
    for row in record.get("table", ()):
        for metric in [m for m in ("upos_accuracy", "span_f1", "digit_error") if m in row]:
            task = row["task"].replace(", unheard recordings", "")
            if "unheard" not in task:
                yield f"{record['study']}.{task}.{row['layer']}", row[metric]["mean"], f"{metric} in percent, {task}"


def _adding(record: Mapping[str, Any]) -> Entries:
    for row in record["table"]:
        length, _, marks = row["condition"].removeprefix("T = ").partition(", marks ")
        if marks == "anywhere":
            seeds = count(row["seeds"], "seed")
            what = f"mean absolute error of adding two of {length} numbers, tuned, {seeds}; trivial 0.333"
            yield f"adding.{row['model']}.{length.replace(',', '')}", row["MAE"], what


def _copy(record: Mapping[str, Any]) -> Entries:
    for row in record["table"]:
        form, _, length = row["condition"].partition(", T = ")
        if form == "delay":
            seeds = count(row["seeds"], "seed")
            what = f"accuracy of copying 10 symbols after {length} steps, tuned, {seeds}; chance 0.125"
            yield f"copy.{row['model']}.{length.replace(',', '')}", row["accuracy"], what


def _gradients(record: Mapping[str, Any]) -> Entries:
    for row in record["table"]:
        yield f"gradient.{row['model']}.{row['T']}", row["norm"], f"|dL/dh_0| over {row['T']} steps before training"


def _translate(record: Mapping[str, Any]) -> Entries:
    for name, model in record["models"].items():
        yield f"translate.{name}", model["bleu"], record["what"] + ", BLEU, one seed"
