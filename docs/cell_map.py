"""The parts of the page that maps the cells, from the registry and from stored records; see generate.py."""

from __future__ import annotations

import inspect
import json
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import torch
from records import RESULTS, import_pyplot

from seqloom.cells.ideas import IDEAS
from seqloom.core.cell import Cell

COLOURS = dict(
    zip(
        IDEAS,
        ("#555555", "#3949ab", "#00897b", "#d81b60", "#e07b00", "#6a1b9a", "#795548", "#0277bd"),
        strict=True,
    )
)
TASKS = {"names": "names", "digits": "digits", "adding": "adding (error)", "register": "register"}


def list_cells(idea: str) -> list[type[Cell]]:
    """Return the cells of the package with this idea, oldest first."""
    own = [kind for kind in Cell.registry.values() if kind.__module__.startswith("seqloom.cells.")]
    return sorted((kind for kind in own if kind.idea == idea), key=lambda kind: (kind.year, kind.name))


def read_doc(kind: type[Cell]) -> tuple[str, list[str], str]:
    """Return the first line, the equations and the text of a cell's docstring."""
    lines = inspect.cleandoc(kind.__doc__ or "").splitlines()
    end = next(i for i, line in enumerate(lines) if line == "Args:")
    body = lines[1:end]
    equations = [line for line in body if line.startswith("    ") or not line]
    text = " ".join(line for line in body if line and not line.startswith("    "))
    return lines[0], inspect.cleandoc("\n".join(equations)).strip("\n").splitlines(), text


@cache
def look_inside(name: str) -> tuple[list[str], list[tuple[int, ...]], int]:
    """Return the letters of the values inside a step, the shapes of the states with 8 units, and the parameters."""
    cell = Cell.registry[name](4, 8)
    x = torch.zeros(1, 1, 4)
    state = cell.initial_state(x[:, 0])
    letters = list(cell.gates(cell.project(x)[:, 0], state))
    count = sum(p.numel() for p in Cell.registry[name](64, 128).parameters())
    return letters, [tuple(s.shape[1:]) for s in state], count


def cell_overview() -> str:
    """Return one table per idea: year, what the cell changes, the values inside a step, states, parameters."""
    lines: list[str] = []
    for idea, about in IDEAS.items():
        lines += ["", f"## {idea[0].upper()}{idea[1:]}", "", f"{about[0].upper()}{about[1:]}.", ""]
        lines += ["| cell | year | changes | inside a step | states | parameters |", "|---|--:|---|---|--:|--:|"]
        for kind in list_cells(idea):
            letters, states, count = look_inside(kind.name)
            parent = f"`{kind.parent}`" if kind.parent else ""
            inside = ", ".join(f"`{letter}`" for letter in letters)
            lines.append(f"| `{kind.name}` | {kind.year} | {parent} | {inside} | {len(states)} | {count:,} |")
        for kind in list_cells(idea):
            first, equations, text = read_doc(kind)
            lines += ["", f"### {kind.name}", "", first, "", "```text", *(line.rstrip() for line in equations), "```"]
            lines += ["", escape(text)]
    return "\n".join([*lines, "", ""])


def escape(text: str) -> str:
    """Return text in which Markdown finds no emphasis."""
    return text.replace("*", r"\*").replace("_", r"\_").replace("<", "&lt;")


def cell_count() -> str:
    """Return how many cells there are."""
    groups = {idea: len(list_cells(idea)) for idea in IDEAS}
    parts = ", ".join(f"{count} {idea}" for idea, count in groups.items())
    return f"{sum(groups.values())} cells: {parts}.\n"


def find_records(name: str) -> list[dict[str, Any]]:
    """Return the records of this file name, oldest first."""
    return [json.loads(file.read_text()) for file in sorted(RESULTS.rglob(f"*-{name}.json"))]


def cell_speed() -> str:
    """Return how many times as fast as torchrecurrent each cell is, from the newest record of each machine."""
    lines: list[str] = []
    for record in find_records("torchrecurrent-cells"):
        rows = [row for row in record["rows"] if row.get("against") == "torchrecurrent" and "both_ratio" in row]
        machine = ", ".join(gpu["name"] for gpu in record["hardware"]["gpus"]) or record["hardware"]["cpu"]
        for dtype in dict.fromkeys(row["dtype"] for row in rows):
            here = sorted((row for row in rows if row["dtype"] == dtype), key=lambda row: row["both_ratio"])
            median = statistics.median(row["both_ratio"] for row in here)
            lines += ["", f"**{machine}, {dtype}**: median {median:.3g} times as fast in both passes; slowest "]
            lines[-1] += f"`{here[0]['cell']}` with {here[0]['both_ratio']:.3g}."
            lines += ["", "| cell | ours, ms | torchrecurrent, ms | times as fast | forward | kernel |"]
            lines += ["|---|--:|--:|--:|--:|---|"]
            lines += [
                f"| `{row['cell']}` | {row['both_ms']:.3g} | {row['both_theirs_ms']:.3g} | {row['both_ratio']:.3g} | "
                f"{row['forward_ratio']:.3g} | `{row['kernel'].partition(' (')[0]}` |"
                for row in here
            ]
            lines += ["", f"`{record['command']}`, {record['date'][:10]}, torch {record['versions']['torch']}"]
            lines[-1] += f"; {record['note']}." if "note" in record else "."
    return "\n".join([*(lines or ["", "Not measured yet."]), "", ""])


def cell_quality() -> str:
    """Return the table of sixteen cells on four tasks: the mean of three seeds and their range."""
    records = find_records("cells-table")
    if not records:
        return "\nNot measured yet.\n\n"
    record = records[-1]
    tasks = [task for task in TASKS if any(row["task"] == task for row in record["rows"])]
    lines = ["", f"| cell | units | {' | '.join(TASKS[task] for task in tasks)} |", "|---|--:|" + "--:|" * len(tasks)]
    for cell, units in record["units"].items():
        scores = [summarise(record["rows"], task, cell) for task in tasks]
        lines.append(f"| `{cell}` | {units} | {' | '.join(scores)} |")
    lines += ["", f"`{record['command']}`, {record['date'][:10]}, {record['hardware']['gpus'][0]['name']}."]
    return "\n".join([*lines, "", ""])


def summarise(rows: list[dict[str, Any]], task: str, cell: str) -> str:
    """Return the mean and the range of the seeds with the learning rate that was best on validation data."""
    mine = [row for row in rows if (row["task"], row["cell"]) == (task, cell) and row.get("valid") is not None]
    if not mine:
        return "failed"
    best = min((row for row in mine if row["seed"] == 0), key=lambda row: row["valid"])["rate"]
    key = "error" if "error" in mine[0] else "accuracy"
    scores = [row[key] for row in mine if row["rate"] == best]
    form = "{:.2g}" if key == "error" else "{:.3f}"
    mean, low, high = (form.format(value) for value in (statistics.mean(scores), min(scores), max(scores)))
    return f"{mean} ({low} to {high})"


def draw_tree(file: Path) -> None:
    """Draw every cell at its year, with a line from the cell that it changes."""
    plt = import_pyplot()
    names = [kind for idea in IDEAS for kind in list_cells(idea)]
    years = sorted({kind.year for kind in names})
    places = {kind.name: (years.index(kind.year), -row) for row, kind in enumerate(names)}
    figure, axis = plt.subplots(figsize=(9, 0.21 * len(names) + 0.6), layout="constrained")
    for kind in names:
        (x, y), colour = places[kind.name], COLOURS[kind.idea]
        if kind.parent:
            a, b = places[kind.parent]
            axis.plot([a, x], [b, y], color=COLOURS[kind.idea], alpha=0.25, linewidth=1, zorder=1)
        axis.plot([x], [y], "o", color=colour, markersize=5, zorder=2)
        axis.text(x + 0.25, y, kind.name, va="center", fontsize=8, color=colour)
    for idea in IDEAS:
        rows = [places[kind.name][1] for kind in list_cells(idea)]
        axis.text(-0.6, max(rows), idea, ha="right", va="center", fontsize=9, color=COLOURS[idea], weight="bold")
    axis.set_xticks(range(len(years)), [str(year) for year in years], rotation=60, fontsize=8)
    axis.set_yticks([])
    axis.set_xlim(-0.5, len(years) + 1.5)
    axis.set_ylim(-len(names), 1)
    axis.xaxis.tick_top()
    for side in ("left", "right", "bottom"):
        axis.spines[side].set_visible(False)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


PARTS = (cell_count, cell_overview, cell_speed, cell_quality)
