"""The parts of the page that maps the cells, from the registry and from stored records; see generate.py."""

from __future__ import annotations

import inspect
import json
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import torch

from research.pages.records import RESULTS, format_command, import_pyplot
from seqloom.cells.ideas import IDEAS
from seqloom.core.cell import Cell
from seqloom.lab.stats.intervals import mean_interval

COLOURS = dict(
    zip(
        IDEAS,
        ("#555555", "#3949ab", "#00897b", "#d81b60", "#e07b00", "#6a1b9a", "#795548", "#0277bd"),
        strict=True,
    )
)
TASKS = {"names": "names", "digits": "digits", "adding": "adding", "register": "register"}
SOLVED = 0.01  # mean squared error of the adding task; a constant has 0.167


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
    """Return how many times as fast as torchrecurrent each cell is, in a column for each machine and type."""
    columns: dict[str, dict[str, dict[str, Any]]] = {}
    records = find_records("torchrecurrent-cells")
    for record in records:
        machine = ", ".join(gpu["name"] for gpu in record["hardware"]["gpus"]) or record["hardware"]["cpu"]
        for row in record["rows"]:
            if row.get("against") == "torchrecurrent" and "both_ratio" in row:
                columns.setdefault(f"{machine}, {row['dtype']}", {})[row["cell"]] = row
    shown = {id(row) for rows in columns.values() for row in rows.values()}
    sources: list[str] = []
    for record in (record for record in records if any(id(row) in shown for row in record["rows"])):
        source = f"`{format_command(record)}`, {record['date'][:10]}, torch {record['versions']['torch']}"
        sources.append(source + (f"; {record['note']}." if "note" in record else "."))
    if not columns:
        return "\nNot measured yet.\n\n"
    lines = ["", "| | cells | median | slowest |", "|---|--:|--:|---|"]
    for title, rows in columns.items():
        ratios = {cell: row["both_ratio"] for cell, row in rows.items()}
        slowest = min(ratios, key=lambda cell: ratios[cell])
        median = statistics.median(ratios.values())
        lines.append(f"| {title} | {len(rows)} | {median:.3g} times | `{slowest}`, {ratios[slowest]:.3g} times |")
    lines += ["", "Milliseconds of both passes, and how many times as fast as torchrecurrent's:", ""]
    lines += [f"| cell | {' | '.join(columns)} |", "|---|" + "--:|" * len(columns)]
    for cell in sorted({cell for rows in columns.values() for cell in rows}):
        times = [describe_times(rows.get(cell)) for rows in columns.values()]
        lines.append(f"| `{cell}` | {' | '.join(times)} |")
    return "\n".join([*lines, "", *(line for source in sources for line in (source, "")), ""])


def describe_times(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    time = f"{row['both_ms']:,.0f}" if row["both_ms"] >= 100 else f"{row['both_ms']:.3g}"
    return f"{time} ms, {row['both_ratio']:.3g} times"


def cell_quality() -> str:
    """Return a table of all tasks: means with intervals, from the latest record in which all cells were trained."""
    latest: dict[str, dict[str, Any]] = {}
    for record in find_records("cells-table"):
        latest |= {task: record for task in TASKS if all(select_finals(record, task).values())}
    tasks = [task for task in TASKS if task in latest]
    records = list({record["date"]: record for record in latest.values()}.values())
    heads = " | ".join(f"{TASKS[task]} | rate" for task in tasks)
    sizes = " | ".join(f"weights ({', '.join(task for task in tasks if latest[task] is r)})" for r in records)
    lines = ["", f"| cell | {heads} | {sizes} |", "|---|" + "--:|--:|" * len(tasks) + "--:|" * len(records)]
    for cell in latest[tasks[0]]["units"]:
        scores = [
            f"{describe_scores(select_finals(latest[t], t)[cell])} | {find_rate(latest[t], t, cell)}" for t in tasks
        ]
        weights = [f"{record['weights'][cell]:,}" for record in records]
        lines.append(f"| `{cell}` | {' | '.join([*scores, *weights])} |")
    for record in records:
        mine = [task for task in tasks if latest[task] is record]
        seeds = len(select_finals(record, mine[0])["gru"])
        most = max(abs(weights / record["weights"]["gru"] - 1) for weights in record["weights"].values())
        about = f"{', '.join(mine)}: {seeds} seeds, {record['steps']:,} steps of {record['batch']} rows; the number of"
        about += f" weights differs from the GRU's by at most {100 * most:.0f} %. `{format_command(record)}`,"
        about += (
            f" {record['date'][:10]}, {record['hardware']['gpus'][0]['name']}, torch {record['versions']['torch']};"
        )
        about += f" {record['note']}."
        lines += ["", about[0].upper() + about[1:]]
    return "\n".join([*lines, "", ""])


def select_finals(record: dict[str, Any], task: str) -> dict[str, list[dict[str, Any]]]:
    """Return the trainings of a task by cell, with the rate that was chosen and the seeds that all cells have."""
    rows = {cell: select(record, task, cell, "final") for cell in record["units"]}
    rates = {cell: find_best_rate(select(record, task, cell, "tune")) for cell in rows}
    rows = {cell: [row for row in some if row["rate"] == rates[cell]] for cell, some in rows.items()}
    shared = set.intersection(*({row["seed"] for row in some} for some in rows.values()))
    return {cell: [row for row in some if row["seed"] in shared] for cell, some in rows.items()}


def find_best_rate(rows: list[dict[str, Any]]) -> float | None:
    """Return the rate with the lowest mean validation loss; None if nothing was tried."""
    losses: dict[float, list[float]] = {}
    for row in rows:
        losses.setdefault(row["rate"], []).append(row["valid"])
    return min(losses, key=lambda rate: statistics.mean(losses[rate])) if losses else None


def select(record: dict[str, Any], task: str, cell: str, part: str) -> list[dict[str, Any]]:
    """Return the rows of a task and a cell that did not fail."""
    rows = record["rows"]
    return [r for r in rows if (r["task"], r["cell"], r["part"]) == (task, cell, part) and "valid" in r]


def describe_scores(rows: list[dict[str, Any]]) -> str:
    """Return the mean accuracy with its 95 % interval, or the median error and how many seeds solved the task."""
    if not rows:
        return "failed"
    if "error" in rows[0]:
        errors = [row["error"] for row in rows]
        solved = sum(error < SOLVED for error in errors)
        return f"{statistics.median(errors):.2g} ({solved} of {len(errors)})"
    accuracy = mean_interval([100 * row["accuracy"] for row in rows])
    return f"{accuracy.mean:.1f}" + (f" ± {accuracy.half:.1f}" if accuracy.half is not None else "")


def find_rate(record: dict[str, Any], task: str, cell: str) -> str:
    """Return the chosen learning rate, with a mark if it lies at an end of the rates that were tried."""
    rows = select(record, task, cell, "tune")
    rate, tried = find_best_rate(rows), {row["rate"] for row in rows}
    return "-" if rate is None else f"{rate:g}{' (end)' if rate in (min(tried), max(tried)) else ''}"


@cache
def find_gates(name: str) -> dict[str, tuple[bool, bool, bool]]:
    """Return for each value inside a step whether it stays within [0, 1], reads the input, and reads the state."""
    torch.manual_seed(0)
    cell = Cell.registry[name](4, 8)
    x = 3 * torch.randn(64, 1, 4)
    x.requires_grad_()
    state = tuple(torch.rand_like(s).requires_grad_() for s in cell.initial_state(x[:, 0]))
    result = {}
    for letter, value in cell.gates(cell.project(x)[:, 0], state).items():
        loss = (value * torch.rand_like(value)).sum()  # the plain sum of a softmax would be constant
        grads = torch.autograd.grad(loss, (x, *state), retain_graph=True, allow_unused=True)
        reads = [grad is not None and bool(grad.any()) for grad in grads]
        result[letter] = (bool(((value >= 0) & (value <= 1)).all()), reads[0], any(reads[1:]))
    return result


def draw_gates(file: Path) -> None:
    """Draw the values inside a step of every cell: which are gates, and what they read."""
    plt = import_pyplot()
    names = [kind for idea in IDEAS for kind in list_cells(idea)]
    figure, axis = plt.subplots(figsize=(9, 0.21 * len(names) + 0.9), layout="constrained")
    colours = {(True, True): "#3949ab", (True, False): "#00897b", (False, True): "#e07b00", (False, False): "#999999"}
    for row, kind in enumerate(names):
        axis.text(-0.7, -row, kind.name, ha="right", va="center", fontsize=8, color=COLOURS[kind.idea])
        for column, (letter, (gate, *reads)) in enumerate(find_gates(kind.name).items()):
            colour = colours[reads[0], reads[1]]
            face = colour if gate else "white"
            axis.plot([column], [-row], "o" if gate else "s", color=colour, markerfacecolor=face, markersize=6)
            axis.text(column + 0.18, -row, letter, va="center", fontsize=7.5, color="#333333")
    texts = ("input and state", "input alone", "state alone")
    keys = ((True, True), (True, False), (False, True))
    marks = [axis.plot([], [], "o", color=colours[key], label=text)[0] for key, text in zip(keys, texts, strict=True)]
    marks += [axis.plot([], [], "s", color="#555555", markerfacecolor="white", label="not a gate")[0]]
    axis.legend(handles=marks, loc="lower right", fontsize=8, title="reads", title_fontsize=8)
    axis.set_xlim(-4.2, 10)
    axis.set_ylim(-len(names), 1)
    axis.set_axis_off()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


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
