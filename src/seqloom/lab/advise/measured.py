"""Numbers that advice rests on: measured before, kept in the package with where each came from.

`measured.json` is made by `collect` from the records of measurements (`python benchmarks/advice.py store`); nothing in
it is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "measured.json"
UNITS = 128  # width of a streamed layer whose times are kept
FORMS = {"RNN": "rnn", "AttnRNN": "attn_rnn", "self-attention fused": "transformer", "TCN": "tcn"}
LONG = 8192  # steps at which forms are compared

Found = Iterator[tuple[str, float, str]]  # key, value, what it is


@dataclass(frozen=True)
class Measured:
    """Values by key; `source(key)` says how one was made."""

    values: Mapping[str, Mapping[str, Any]]
    sources: Mapping[str, Mapping[str, str]]

    def __call__(self, key: str) -> float:
        return float(self.values[key]["value"])

    def has(self, *keys: str) -> bool:
        return all(key in self.values for key in keys)

    def source(self, key: str) -> dict[str, str]:
        """The command, the date, the hardware, and the record's name."""
        name = self.values[key]["source"]
        return {"what": self.values[key]["what"], "record": name, **self.sources[name]}


@lru_cache
def measured() -> Measured:
    """What is in the package."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    return Measured(found["values"], found["sources"])


def collect(folder: Path) -> dict[str, Any]:
    """What the records in a folder say, as `measured.json` holds it."""
    values: dict[str, dict[str, Any]] = {}
    sources: dict[str, dict[str, str]] = {}
    for file in sorted(folder.rglob("*.json")):
        record, name = json.loads(file.read_text(encoding="utf-8")), file.relative_to(folder).as_posix()
        for key, value, what in _read(name, record):
            values[key] = {"value": float(f"{value:.4g}"), "what": what, "source": name}
            sources[name] = _source(record)
    return {"values": values, "sources": sources}


def _source(record: Mapping[str, Any]) -> dict[str, str]:
    command, machine = record["command"], record["hardware"]
    on = record.get("device") or machine.get("device") or "cpu"
    gpus = [gpu["name"] for gpu in machine["gpus"]] if on != "cpu" else []
    hardware = ", ".join(gpus) or f"{machine['cpu']}, {machine['instructions']}, {machine['threads']} threads"
    return {
        "command": command if isinstance(command, str) else " ".join(command),
        "date": record["date"],
        "hardware": hardware,
    }


def _read(name: str, record: Mapping[str, Any]) -> Found:
    """Whatever else lies in the folder says nothing."""
    readers: dict[tuple[str, str | None], Callable[[Mapping[str, Any]], Found]] = {
        ("tag", None): _quality,
        ("transcribe", None): _quality,
        ("complexity", None): _complexity,
        ("adding", "fair"): _adding,
        ("copy", "fair"): _copy,
        ("gradients", "paper"): _gradients,
        ("long", "fair"): _pixels,
    }
    study = record.get("study", ""), record.get("protocol")
    if name == "stream-cpu.json":
        yield from _stream(record)
    elif str(record.get("what", "")).startswith("Multi30k de-en"):
        yield from _translate(record)
    elif study in readers:
        yield from readers[study](record)


def _stream(record: Mapping[str, Any]) -> Found:
    for row in record["rows"]:
        library, _, cell = row["layer"].partition(" ")
        if library == "seqloom" and row["input"] == UNITS:
            yield f"step.{cell.partition('.')[0]}", row["us_per_token"], "microseconds a step of one stream, 128 units"


def _complexity(record: Mapping[str, Any]) -> Found:
    for row in record["rows"]:
        if row["form"] in FORMS and LONG in row["lengths"]:
            at = row["lengths"].index(LONG)
            name = FORMS[row["form"]]
            yield f"long.{name}", 1e3 * row["seconds"][at], f"milliseconds for {LONG:,} steps of one layer, forward"
            yield f"exponent.{name}", row["time_exponent"]["value"], "time grows as length to this power"


def _quality(record: Mapping[str, Any]) -> Found:
    for row in record["table"]:
        for metric in [m for m in ("upos_accuracy", "span_f1", "digit_error") if m in row]:
            task = row["task"].replace(", unheard recordings", "")
            if "unheard" not in task:
                yield f"{record['study']}.{task}.{row['layer']}", row[metric]["mean"], f"{metric} in percent, {task}"


def _adding(record: Mapping[str, Any]) -> Found:
    for row in record["table"]:
        length, _, marks = row["condition"].removeprefix("T = ").partition(", marks ")
        if marks == "anywhere":
            what = f"mean absolute error of adding two of {length} numbers, tuned, {row['seeds']} seeds; trivial 0.333"
            yield f"adding.{row['model']}.{length.replace(',', '')}", row["MAE"], what


def _copy(record: Mapping[str, Any]) -> Found:
    for row in record["table"]:
        form, _, length = row["condition"].partition(", T = ")
        if form == "delay":
            what = f"accuracy of copying 10 symbols after {length} steps, tuned, {row['seeds']} seeds; chance 0.125"
            yield f"copy.{row['model']}.{length.replace(',', '')}", row["accuracy"], what


def _pixels(record: Mapping[str, Any]) -> Found:
    for row in record["table"]:
        if row["condition"] == "sequential MNIST":
            what = f"accuracy on MNIST a pixel at a time, 784 steps, 4 epochs, tuned, {row['seeds']} seeds"
            yield f"pixels.{row['model']}", 100 * row["accuracy"], f"{what}, in percent"


def _gradients(record: Mapping[str, Any]) -> Found:
    for row in record["table"]:
        yield f"gradient.{row['model']}.{row['T']}", row["norm"], f"|dL/dh_0| over {row['T']} steps before training"


def _translate(record: Mapping[str, Any]) -> Found:
    for name, model in record["models"].items():
        yield f"translate.{name}", model["bleu"], record["what"] + ", BLEU, one seed"
