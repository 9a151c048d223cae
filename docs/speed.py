"""The speed of layers against torch.nn on a GPU, from the newest records of benchmarks/speed_table.py.

Records are named <machine>-speed-table-*.json. The newest row counts for each type, shape, mode, pass and layer; a
ratio compares rows of one record alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from records import GRU, RESULTS, SPEED_RANGE, SPEED_ROWS, SPEED_STEPS, import_pyplot, span

TYPES = ("bfloat16", "float16", "float32", "tf32")
LAYERS = {"gru": ("GRU", GRU), "lstm": ("LSTM", "torch.nn.LSTM"), "attn_rnn": ("AttnRNN", GRU)}  # name, opponent
OTHERS = ("GRU, compiled loop", "FlashRNN LSTM", "torchrecurrent MGU")  # layers of other packages
PASSES, MODES = ("forward", "both"), ("eager", "graph")
SLOWER = 0.95  # ratios above this are called even


class Place(NamedTuple):
    """A row of the table."""

    type: str
    hidden: int
    batch: int


def find_place(row: dict[str, Any]) -> Place:
    return Place(row["type"], row["hidden"], row["batch"])


@cache
def read_records() -> list[dict[str, Any]]:
    """Return the records, newest first; those of `seqloom bench` stand in for what no newer one has.

    Last come those whose graphs of torch's layers have 128 steps (`--torch-steps`, an option that is gone): a step took
    up to 25 % longer or 21 % less than in graphs of 512.
    """
    files = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.rglob("*-speed-table-*.json")]
    for path in RESULTS.rglob("*-other-layers.json"):  # of an earlier form of the script
        record = json.loads(path.read_text(encoding="utf-8"))
        rows = [row | {"mode": "eager", "kernel": ""} for row in record["rows"] if row["layer"] in OTHERS]
        refused = [row | {"cell": row["layer"]} for row in rows if "error" in row]
        rows = [row for row in rows if "error" not in row]
        files.append(record | {"rows": rows, "refused": refused, "finished": True})
    for kind in TYPES:
        for path in RESULTS.rglob(f"h200-bench-{kind}*.json"):
            record = json.loads(path.read_text(encoding="utf-8"))
            files.append(record | {"rows": list(convert_bench_rows(kind, record["rows"]))})
    files.sort(key=lambda record: record["date"], reverse=True)
    return sorted(files, key=lambda record: "--torch-steps" in record["command"])


def convert_bench_rows(kind: str, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield rows of `seqloom bench` in the form of benchmarks/speed_table.py."""
    for row in rows:
        if row["length"] != SPEED_STEPS or row["cell"] not in (GRU, "torch.nn.LSTM", *LAYERS):
            continue
        for mode, key in (("eager", "us_per_step"), ("graph", "graph_us_per_step")):
            if row.get(key):
                place = {"type": kind, "hidden": row["hidden"], "batch": row["batch"], "mode": mode}
                name = "forward" if row["pass"] == "forward" else "both"
                yield place | {"pass": name, "layer": row["cell"], "kernel": row["kernel"], "us_per_step": row[key]}


class Time(NamedTuple):
    """A time of the table."""

    us: float
    ratio: float | None  # speed relative to the opponent in the same record
    kernel: str
    record: int  # its place in `read_records`


@cache
def read_times() -> dict[Place, dict[tuple[str, str, str], Time]]:
    """Return the newest time by place, then by layer, mode and pass."""
    table: dict[Place, dict[tuple[str, str, str], Time]] = {}
    for number, record in enumerate(read_records()):
        here: dict[Any, dict[str, Any]] = {}
        for r in record["rows"]:  # the first of several kernels is that of kernel="auto"
            here.setdefault((Place(r["type"], r["hidden"], r["batch"]), r["layer"], r["mode"], r["pass"]), r)
        for (place, layer, *key), row in here.items():
            opponent = here.get((place, LAYERS[layer][1], *key)) if layer in LAYERS else None
            ratio = opponent["us_per_step"] / row["us_per_step"] if opponent else None
            table.setdefault(place, {}).setdefault(
                (layer, *key), Time(row["us_per_step"], ratio, row["kernel"], number)
            )
    return table


@cache
def list_failures() -> set[tuple[Place, str, str, str]]:
    """Return where layers of other packages failed: place, layer, mode and pass."""
    refused = (row for record in read_records() for row in record.get("refused", ()) if row["cell"] in OTHERS)
    return {(find_place(row), row["cell"], row["mode"], row["pass"]) for row in refused}


def show_other(place: Place, layer: str) -> str:
    """Return the microseconds of another package's layer, eager and as a graph; empty if it was not measured."""
    cells = []
    for mode in MODES:
        times = []
        for name in PASSES:
            us = read_times()[place].get((layer, mode, name))
            failed = (place, layer, mode, name) in list_failures()
            times.append(f"{us[0]:.3g}" if us else "fails" if failed else "")
        if any(times):
            cells.append(" / ".join(time or "-" for time in times) + " (graph)" * (mode == "graph"))
    return "; ".join(cells)


def speed_tables() -> str:
    """Return one table for each type, with all layers in every row."""
    lines, table = [], read_times()
    for kind in TYPES:
        places = sorted(place for place in table if place.type == kind)
        if not places:
            continue
        names = [f"{name}, {mode}" for name, _ in LAYERS.values() for mode in MODES]
        others = [layer for layer in OTHERS if any(show_other(place, layer) for place in places)]
        names += [f"{layer}, us" for layer in others]
        lines += ["", f"### {kind}", "", f"| H | B | {GRU}, us | torch.nn.LSTM, us | {' | '.join(names)} |"]
        lines += ["|--:|--:|--:|--:|" + "--:|" * len(names)]
        for place in places:
            times = [join_passes(table[place], layer, "eager", 0) for layer in (GRU, "torch.nn.LSTM")]
            ratios = [join_passes(table[place], layer, mode, 1) for layer in LAYERS for mode in MODES]
            rest = [show_other(place, layer) for layer in others]
            lines.append(f"| {place.hidden} | {place.batch} | {' | '.join([*times, *ratios, *rest])} |")
    return "\n".join([*lines, "", *(f"- {note}" for note in list_commands()), ""])


def join_passes(row: dict[tuple[str, str, str], Any], layer: str, mode: str, which: int) -> str:
    """Return the time (0) or ratio (1) of both passes in one cell, bold where the layer is slower than torch's."""
    values = [row[layer, mode, name][which] if (layer, mode, name) in row else None for name in PASSES]
    if all(value is None for value in values):
        return ""
    text = " / ".join("-" if value is None else f"{value:.2f}" if which else f"{value:.3g}" for value in values)
    return f"**{text}**" if which and min(v for v in values if v is not None) < SLOWER else text


def list_commands() -> Iterator[str]:
    """Yield the date, hardware and command of every record that the tables take a number from."""
    shown = {
        time.record
        for row in read_times().values()
        for (layer, mode, _), time in row.items()
        if layer in LAYERS or layer in OTHERS or mode == "eager"
    }
    for number, record in enumerate(read_records()):
        if number not in shown:
            continue
        gpu, torch = record["hardware"]["gpus"][0]["name"], record["versions"]["torch"]
        end = "" if record.get("finished") else " (stopped early)"
        end += f"; {record['note']}" if "note" in record else ""
        yield f"{record['date'][:10]}, {gpu}, torch {torch}: `{record['command']}`{end}"


def speed_summary() -> str:
    """Return the range of the speed of both passes for each type and layer, eager and as CUDA graphs on both sides."""
    (least, most), rows = SPEED_RANGE
    names = [f"{name}, {mode}" for name, _ in LAYERS.values() for mode in MODES]
    lines = [f"| | {' | '.join(names)} |", "|---|" + "--:|" * len(names)]
    for kind in TYPES:
        places = [p for p in read_times() if p.type == kind and p.batch in rows and least <= p.hidden <= most]
        cells = [span([find_ratio(p, layer, mode, "both") for p in places]) for layer in LAYERS for mode in MODES]
        if any(cells):
            lines.append(f"| {kind} | {' | '.join(cell or 'not measured' for cell in cells)} |")
    return "\n".join([*lines, ""])


def find_ratio(place: Place, layer: str, mode: str, pass_: str) -> float | None:
    time = read_times()[place].get((layer, mode, pass_))
    return None if time is None else time.ratio


def slower_places() -> str:
    """Return the shapes at which a layer is slower than torch's in a pass, as ordinary calls and as CUDA graphs."""
    lines = [f"- {name} in {kind}: {shapes}" for name, kind, shapes in list_slower("eager")]
    graphs = [f"- {name} in {kind}: {shapes}" for name, kind, shapes in list_slower("graph")]
    text = "Slower than torch's layer in at least one pass, as ordinary calls:\n\n" if lines else ""
    text += "\n".join(lines) or "No layer is slower than torch's in any pass, as ordinary calls."
    if graphs:
        text += "\n\nAs CUDA graphs, against torch's as graphs:\n\n" + "\n".join(graphs)
    return text + "\n"


def list_slower(mode: str) -> Iterator[tuple[str, str, str]]:
    """Yield the layers and types that are slower than torch's in a pass, and their shapes in words."""
    for layer, (name, _) in LAYERS.items():
        for kind in TYPES:
            shapes: dict[int, set[int]] = {}
            for place in read_times():
                ratios = [find_ratio(place, layer, mode, pass_) for pass_ in PASSES]
                if place.type == kind and min((r for r in ratios if r), default=1.0) < SLOWER:
                    shapes.setdefault(place.hidden, set()).add(place.batch)
            if shapes:
                units = [
                    f"{h} units with {join_numbers(sorted(rows))} row{'s' * (rows != {1})}"
                    for h, rows in sorted(shapes.items())
                ]
                yield name, kind, "; ".join(units)


def join_numbers(numbers: list[int]) -> str:
    return " and ".join([", ".join(map(str, numbers[:-1])), str(numbers[-1])]) if numbers[1:] else str(numbers[0])


def draw_speed(file: Path) -> None:
    """Draw the speed of both passes relative to torch.nn.GRU for each type."""
    plt = import_pyplot()
    styles = {("gru", "eager"): ("#3949ab", "-"), ("gru", "graph"): ("#3949ab", ":")}
    styles |= {("attn_rnn", "eager"): ("#d81b60", "-"), ("attn_rnn", "graph"): ("#d81b60", ":")}
    types = [kind for kind in TYPES if any(place.type == kind for place in read_times())]
    figure, axes = plt.subplots(1, len(types), figsize=(9, 3.2), sharey=True, layout="constrained", squeeze=False)
    for axis, kind in zip(axes[0], types, strict=True):
        places = sorted(place for place in read_times() if place.type == kind and place.batch == SPEED_ROWS)
        for (layer, mode), (colour, line) in styles.items():
            points = {place.hidden: find_ratio(place, layer, mode, "both") for place in places}
            points = {hidden: ratio for hidden, ratio in points.items() if ratio}
            if points:
                label = f"seqloom.{LAYERS[layer][0]}, {'CUDA graphs' if mode == 'graph' else mode}"
                axis.plot(points.keys(), points.values(), line, color=colour, marker="o", markersize=4, label=label)
        axis.axhline(1, color="#777", linewidth=1)
        axis.set(title=kind, xscale="log", yscale="log", xlabel="hidden size")
        axis.set_xticks([64, 128, 256, 512, 1024], ["64", "128", "256", "512", "1024"])
        axis.set_yticks([0.5, 1, 2, 5, 10, 20], ["0.5x", "1x", "2x", "5x", "10x", "20x"])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
    axes[0][0].set_ylabel("speed, torch.nn.GRU = 1x")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
