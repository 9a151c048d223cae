"""Attention, linear and nonlinear recurrence against length: accuracy, time and memory, from stored records.

Accuracies come from the studies `linear` and `kinds`, times and bytes from research/speed/kinds_by_length.py.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from research.pages.records import RESULTS, format_command, import_pyplot

STUDIES = RESULTS / "studies"
COLOURS = {"attention": "#3949ab", "linear": "#00897b", "nonlinear": "#d81b60"}
ATTENTION, NONLINEAR = ("transformer", "transformer conv", "attention"), ("gru", "lstm", "attn_rnn")
LINES = ("-", "--", ":", "-.", (0, (1, 3)))
TIME_COLUMNS = {"forward_ms": "forward, ms", "both_ms": "both passes, ms", "both_bytes": "memory of both, MB"}
FORMS = {
    "gated_delta": "Gated DeltaNet",
    "delta": "DeltaNet",
    "scalar": "one decay for each head",
    "channel": "one for each channel",
}
OF_STATE = ("transformer", "min_gru", "gru", "lstm", "attn_rnn")  # models of the study state that this page shows
SHOWN = (
    (("state-fair", "linear-fair"), ("parity",)),
    (("linear-fair",), ("parity, up to 128", "S5 generators", "S5 generators, lower rate")),
    (("linear-fair",), ("S5 generators, up to 64", "S5 generators, up to 128, steady growth")),
    (("linear-fair",), ("S5 generators, up to 128", "S5 generators, up to 128, tuned at 40")),
    (("state-fair",), ("A5",)),
    (("kinds-fair",), ("text", "recall, 32 pairs", "first symbol")),
)
FEATURED = {
    "parity": ("state-fair", "linear-fair"),
    "parity, up to 128": ("linear-fair",),
    "S5 generators": ("linear-fair",),
    "S5 generators, up to 128": ("linear-fair",),
    "recall, 32 pairs": ("kinds-fair",),
    "text": ("kinds-fair",),
}


def find_kind(model: str) -> str:
    return "attention" if model in ATTENTION else "nonlinear" if model in NONLINEAR else "linear"


@cache
def read_trials(study: str) -> list[dict[str, Any]]:
    """Return the finished results of a stored study."""
    file = STUDIES / study / "study.json"
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    rows = [t for t in rows if study != "state-fair" or t["model"] in OF_STATE]
    return [t for t in rows if t["split"] == "test" and not t["failed"]]


def read_accuracies(studies: Sequence[str], condition: str) -> dict[str, dict[int, list[float]]]:
    """Return the accuracies of all seeds by model and test length, each model from the first study that has it."""
    table: dict[str, dict[int, list[float]]] = {}
    sources: dict[str, str] = {}
    for source, trial in ((study, t) for study in studies for t in read_trials(study)):
        if trial["condition"] == condition and sources.setdefault(trial["model"], source) == source:
            for name, value in trial["scores"].items():
                if name.startswith("T = "):
                    length = int(name.removeprefix("T = ").replace(",", ""))
                    table.setdefault(trial["model"], {}).setdefault(length, []).append(value)
    order = ("attention", "linear", "nonlinear")
    return dict(sorted(table.items(), key=lambda item: order.index(find_kind(item[0]))))


def kinds_accuracy() -> str:
    """Return one table for each condition: the mean accuracy of every model at each test length."""
    lines: list[str] = []
    for studies, shown in SHOWN:
        known = dict.fromkeys(trial["condition"] for study in studies for trial in read_trials(study))
        for condition in (c for c in known if c in shown):
            table = read_accuracies(studies, condition)
            lengths = sorted({T for row in table.values() for T in row})
            head = "".join(f" T = {T:,} |" for T in lengths)
            lines += [
                f"### {condition}",
                "",
                f"| kind | model | seeds |{head}",
                "|---|---|--:|" + "--:|" * len(lengths),
            ]
            for model, row in table.items():
                cells = "".join(f" {statistics.mean(row[T]):.3f} |" if T in row else " |" for T in lengths)
                lines.append(f"| {find_kind(model)} | {model} | {len(next(iter(row.values())))} |{cells}")
            lines.append("")
    return "\n".join(lines) if lines else "Not measured.\n"


@cache
def read_times() -> list[dict[str, Any]]:
    """Return the rows of all records of time against length, the newest row for each layer, kernel and length."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.rglob("h200-kinds-by-length*.json")]
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    for record in sorted(files, key=lambda record: record["date"]):
        for row in record["rows"]:
            if "failed" not in row:
                rows[row["layer"], row["kernel"], row["T"]] = row | {"record": record}
    return list(rows.values())


def kinds_times() -> str:
    """Return times and memory of one layer of each kind at every length."""
    rows = read_times()
    if not rows:
        return "Not measured.\n"
    lengths = sorted({row["T"] for row in rows})
    lines = []
    for key, title in TIME_COLUMNS.items():
        lines += [
            f"| {title} | kernel |" + "".join(f" T = {T:,} |" for T in lengths),
            "|---|---|" + "--:|" * len(lengths),
        ]
        for layer, kernel in dict.fromkeys((row["layer"], row["kernel"]) for row in rows):
            here = {row["T"]: row[key] for row in rows if (row["layer"], row["kernel"]) == (layer, kernel)}
            scale = 1e-6 if key.endswith("bytes") else 1.0
            cells = "".join(f" {scale * here[T]:.3g} |" if T in here else " |" for T in lengths)
            lines.append(f"| {layer} | {kernel} |{cells}")
        lines.append("")
    return "\n".join([*lines, *describe_records([row["record"] for row in rows]), ""])


def fla_times() -> str:
    """Return the time and memory of flash-linear-attention itself, through this package, and of torch's chunks."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.rglob("h200-linear-speed-*.json")]
    if not files:
        return "Not measured.\n"
    rows: dict[tuple[str, bool, int], dict[str, dict[str, Any]]] = {}
    for record in sorted(files, key=lambda record: record["date"]):
        for row in record["rows"]:
            rows.setdefault((row["form"], row["backward"], row["T"]), {})[row["kernel"]] = row
    names = ("fla itself", "fla", "chunk")
    lines = [
        "| recurrence | passes | T | fla itself, ms | `fla` | `chunk` | fla itself, MB | `fla` | `chunk` |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for (form, backward, T), by_kernel in sorted(rows.items()):
        cells = [
            show_measure(by_kernel.get(name), key, scale)
            for key, scale in (("ms", 1.0), ("bytes", 1e-6))
            for name in names
        ]
        passes = "both" if backward else "forward"
        lines.append(f"| {FORMS[form]} | {passes} | {T:,} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def show_measure(row: dict[str, Any] | None, key: str, scale: float) -> str:
    """Return a measurement, or that the kernel refuses to run."""
    return "" if row is None else f"{scale * row[key]:.3g}" if key in row else "refuses"


def describe_records(records: Sequence[dict[str, Any]]) -> list[str]:
    """Return the date, hardware and command of each record."""
    lines = []
    for r in records:
        gpu, torch, sizes = r["hardware"]["gpus"][0]["name"], r["versions"]["torch"], r["settings"]
        shape = f"width {sizes['width']}, {sizes['batch']} sequences, {sizes['heads']} heads, bfloat16"
        lines.append(f"- {r['date'][:10]}, {gpu}, torch {torch}: `{format_command(r)}`; {shape}")
    return list(dict.fromkeys(lines))


def draw_kinds(file: Path) -> None:
    """Draw accuracy, time and memory against length."""
    plt = import_pyplot()
    figure, grid = plt.subplots(2, 4, figsize=(13, 7.6), layout="constrained")
    axes = list(grid.flat)[: len(FEATURED) + 2]
    for axis in list(grid.flat)[len(axes) :]:
        axis.set_axis_off()
    for axis, (condition, studies) in zip(axes, FEATURED.items(), strict=False):
        for model, row in read_accuracies(studies, condition).items():
            draw_line(axis, model, list(row), [statistics.mean(values) for values in row.values()])
        axis.set(title=f"{condition}: accuracy", xscale="log", xlabel="test length", ylim=(-0.03, 1.03))
        add_legend(axis)
    for axis, key, title, scale in zip(
        axes[-2:], ("both_ms", "both_bytes"), ("both passes, ms", "memory, MB"), (1.0, 1e-6), strict=True
    ):
        for layer, kernel in dict.fromkeys((row["layer"], row["kernel"]) for row in read_times()):
            here = sorted(
                (row["T"], scale * row[key]) for row in read_times() if (row["layer"], row["kernel"]) == (layer, kernel)
            )
            draw_line(axis, f"{layer}, {kernel}", [T for T, _ in here], [y for _, y in here])
        axis.set(title=title, xscale="log", yscale="log", xlabel="length")
        add_legend(axis)
    for axis in axes:
        axis.grid(alpha=0.25)
        lengths = sorted({int(T) for line in axis.get_lines() for T in line.get_xdata()})
        axis.set_xticks(lengths[:: 1 + len(lengths) // 5], [f"{T:,}" for T in lengths[:: 1 + len(lengths) // 5]])
        axis.minorticks_off()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def add_legend(axis: Any) -> None:
    if axis.get_lines():
        axis.legend(
            fontsize=7, handlelength=3, edgecolor="none", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2)
        )


def draw_line(axis: Any, name: str, x: Sequence[float], y: Sequence[float]) -> None:
    """Draw a curve in the colour of its kind, with another line for each model of it."""
    kind = find_kind(name.partition(",")[0])
    before = sum(line.get_color() == COLOURS[kind] for line in axis.get_lines())
    axis.plot(x, y, linestyle=LINES[before % len(LINES)], color=COLOURS[kind], marker="o", markersize=3, label=name)


PARTS = (kinds_accuracy, kinds_times, fla_times)
