"""The speed of layers against torch.nn on a GPU, from the records of research/speed/speed_table.py.

Records are named <machine>-speed-table-*.json. Those of whole tables come first, then the newest; a ratio compares rows
of one record alone.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from research.pages.records import GRU, RESULTS, SPEED_ROWS, format_command, import_pyplot

LSTM = "torch.nn.LSTM"
TYPES = ("float16", "float32", "tf32", "bfloat16")  # last, what depends most on the version of cuDNN
LAYERS = {"gru": ("GRU", GRU), "lstm": ("LSTM", LSTM), "attn_rnn": ("AttnRNN", GRU)}  # name, opponent
OTHERS = ("GRU, compiled loop", "FlashRNN LSTM", "torchrecurrent MGU")  # layers of other packages
EXACT = {GRU: f"{GRU} without tf32", LSTM: f"{LSTM} without tf32"}
PASSES, MODES = ("forward", "both"), ("eager", "graph")
SHAPES = 80  # of a whole table
SLOWER = 0.95  # ratios above this are called even
EARLIER = "†"  # marks what another run measured


class Place(NamedTuple):
    """A row of the table."""

    type: str
    hidden: int
    batch: int


class Time(NamedTuple):
    """A time of the table."""

    us: float | None  # None if the layer failed or was refused
    ratio: float | None  # speed relative to the opponent in the same record
    kernel: str
    record: int  # its place in `read_records`


def find_place(row: dict[str, Any]) -> Place:
    return Place(row["type"], row["hidden"], row["batch"])


@cache
def read_records() -> list[dict[str, Any]]:
    """Return the records: those of whole tables first, each kind from the newest on.

    Last come those whose graphs of torch's layers have 128 steps (`--torch-steps`, an option that is gone): a step took
    up to 25 % longer or 21 % less than in graphs of 512.
    """
    files = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*/*-speed-table-*.json")]
    files.sort(key=lambda record: record["date"], reverse=True)
    return sorted(files, key=lambda record: (not is_whole(record), "--torch-steps" in record["command"]))


def is_whole(record: dict[str, Any]) -> bool:
    """Tell whether a record has every shape of a mode for all of seqloom's layers."""
    shapes = Counter(row["mode"] for row in record["rows"] if row["pass"] == "both" and row["layer"] == GRU)
    return {*LAYERS} <= {row["layer"] for row in record["rows"]} and SHAPES in shapes.values()


@cache
def read_times() -> dict[Place, dict[tuple[str, str, str], Time]]:
    """Return the times by place, then by layer, mode and pass."""
    table: dict[Place, dict[tuple[str, str, str], Time]] = {}
    for number, record in enumerate(read_records()):
        here: dict[Any, dict[str, Any]] = {}
        for row in record["rows"]:  # the first of several kernels is that of kernel="auto"
            here.setdefault((find_place(row), row["layer"], row["mode"], row["pass"]), row)
        for (place, layer, *key), row in here.items():
            opponent = here.get((place, LAYERS[layer][1], *key)) if layer in LAYERS else None
            ratio = opponent["us_per_step"] / row["us_per_step"] if opponent else None
            time = Time(row["us_per_step"], ratio, row["kernel"], number)
            table.setdefault(place, {}).setdefault((layer, *key), time)
        for row in record.get("refused", ()):
            if "batch" in row and (row["cell"] in OTHERS or is_whole(record)):
                modes = [row["mode"]] if "mode" in row else {r["mode"] for r in record["rows"]}
                for mode in modes:
                    for pass_ in [row["pass"]] if "pass" in row else PASSES:
                        key = (row["cell"], mode, pass_)
                        table.setdefault(find_place(row), {}).setdefault(key, Time(None, None, "", number))
    return table


@cache
def find_main() -> dict[str, int]:
    """Return the record that most times of a mode come from."""
    found = {mode: Counter[int]() for mode in MODES}
    for row in read_times().values():
        for (layer, mode, _), time in row.items():
            if layer in LAYERS:
                found[mode][time.record] += 1
    return {mode: counts.most_common(1)[0][0] for mode, counts in found.items() if counts}


def find_ratio(place: Place, layer: str, mode: str, pass_: str) -> float | None:
    time = read_times()[place].get((layer, mode, pass_))
    return None if time is None else time.ratio


def speed_tables() -> str:
    """Return one table for each type, and which runs made them."""
    lines, table = [], read_times()
    for kind in TYPES:
        places = sorted(place for place in table if place.type == kind)
        torch = [f"{name}, {mode}, us" for name in (GRU, LSTM) for mode in MODES]
        ours = [f"{name}, {mode}" for name, _ in LAYERS.values() for mode in MODES]
        lines += ["", f"### {kind}", "", f"| H | B | {' | '.join([*torch, *ours])} |"]
        lines += ["|--:|--:|" + "--:|" * len(torch + ours)]
        for place in places:
            times = [show_times(place, layer, mode) for layer in (GRU, LSTM) for mode in MODES]
            ratios = [show_ratios(place, layer, mode) for layer in LAYERS for mode in MODES]
            lines.append(f"| {place.hidden} | {place.batch} | {' | '.join([*times, *ratios])} |")
    return "\n".join([*lines, "", *list_runs(), ""])


def show_times(place: Place, layer: str, mode: str) -> str:
    """Return the microseconds of both passes in one cell."""
    times = [read_times()[place].get((layer, mode, pass_)) for pass_ in PASSES]
    texts = [
        "" if t is None else "fails" if t.us is None else f"{t.us:.3g}" if t.us < 1000 else f"{t.us:,.0f}"
        for t in times
    ]
    return " / ".join(text or "-" for text in texts) + find_mark(times, mode) if any(texts) else ""


def show_ratios(place: Place, layer: str, mode: str) -> str:
    """Return the ratios of both passes in one cell, bold where the layer is slower than torch's."""
    times = [read_times()[place].get((layer, mode, pass_)) for pass_ in PASSES]
    ratios = [None if time is None else time.ratio for time in times]
    if not any(ratios):
        return "refused" if any(times) else ""
    text = " / ".join("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
    text = f"**{text}**" if min(ratio for ratio in ratios if ratio) < SLOWER else text
    return text + find_mark(times, mode)


def find_mark(times: list[Time | None], mode: str) -> str:
    """Return a mark if there is a whole table of this mode, but these times are from another run."""
    main = find_main().get(mode, 0)
    is_other = any(time and time.record != main for time in times)
    return EARLIER if is_other and is_whole(read_records()[main]) else ""


def list_runs() -> Iterator[str]:
    """Yield the date, hardware and command of every run that the tables take a number from."""
    main, records = find_main(), read_records()
    shown = {
        time.record
        for row in read_times().values()
        for (layer, mode, _), time in row.items()
        if layer in (*LAYERS, *OTHERS, GRU, LSTM)
    }
    names = {"eager": "Ordinary calls", "graph": "CUDA graphs"}
    for number in dict.fromkeys([*main.values(), *sorted(shown)]):
        modes = " and ".join(names[mode] for mode, first in main.items() if first == number)
        yield f"- {modes or EARLIER}: {describe_run(records[number])}"


def describe_run(record: dict[str, Any]) -> str:
    gpu, torch = record["hardware"]["gpus"][0]["name"], record["versions"]["torch"]
    end = "" if record.get("finished") else " (stopped early)"
    end += f"; {record['note']}" if "note" in record else ""
    return f"{record['date'][:10]}, {gpu}, torch {torch}: `{format_command(record)}`{end}"


def other_packages() -> str:
    """Return the microseconds of layers of other packages beside torch's and ours, as ordinary calls."""
    names = {GRU: GRU, LSTM: LSTM} | {layer: f"seqloom.{name}" for layer, (name, _) in LAYERS.items()}
    names |= {other: other for other in OTHERS}  # with their graphs, which ours have in the tables
    lines = [f"| type | H | {' | '.join(names.values())} |", "|---|--:|" + "--:|" * len(names)]
    for place in sorted(place for place in read_times() if place.batch == SPEED_ROWS):
        cells = [show_times(place, layer, "eager") for layer in names]
        for i, other in enumerate(OTHERS, len(names) - len(OTHERS)):
            graph = show_times(place, other, "graph")
            cells[i] += f"; graph {graph}" if graph else ""
        if any(cells[-len(OTHERS) :]):
            lines.append(f"| {place.type} | {place.hidden} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def exact_torch() -> str:
    """Return how fast GRU and LSTM are beside torch's in float32 where neither side uses tf32, as ordinary calls."""
    rows: dict[Place, list[str]] = {}
    for place, times in sorted(read_times().items()):
        for layer in ("gru", "lstm"):
            ours = [times.get((layer, "eager", pass_)) for pass_ in PASSES]
            torch = [times.get((EXACT[LAYERS[layer][1]], "eager", pass_)) for pass_ in PASSES]
            cell = " / ".join(
                f"{t.us / o.us:.2f}" if o and t and o.us and t.us and o.record == t.record and is_own(o) else "-"
                for o, t in zip(ours, torch, strict=True)
            )
            rows.setdefault(place, []).append("" if cell == "- / -" else cell)
    rows = {place: cells for place, cells in rows.items() if any(cells)}
    lines = ["| H | B | GRU | LSTM |", "|--:|--:|--:|--:|"]
    lines += [f"| {place.hidden} | {place.batch} | {' | '.join(cells)} |" for place, cells in rows.items()]
    return "\n".join([*lines, ""])


def is_own(time: Time) -> bool:
    return not time.kernel.endswith("_aten")


def speed_summary() -> str:
    """Return range and median of the speed of both passes for each type and layer, eager and as CUDA graphs."""
    names = [f"{name}, {mode}" for name, _ in LAYERS.values() for mode in MODES]
    lines = [f"| | {' | '.join(names)} |", "|---|" + "--:|" * len(names)]
    for kind in TYPES:
        places = [place for place in read_times() if place.type == kind]
        cells = []
        for layer, mode in itertools.product(LAYERS, MODES):
            ratios = [ratio for place in places if (ratio := find_ratio(place, layer, mode, "both"))]
            middle = statistics.median(ratios) if ratios else 0
            cells.append(f"{min(ratios):.1f} to {max(ratios):.1f}x, {middle:.1f}x" if ratios else "not measured")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def count_slower(mode: str) -> str:
    """Return a sentence: how many ratios are below 1, and how many of them are even."""
    times = [t for row in read_times().values() for (layer, m, _), t in row.items() if layer in LAYERS and m == mode]
    times = [time for time in times if time.ratio]
    below = [time for time in times if time.ratio < 1]
    even = [time for time in below if time.ratio >= SLOWER]
    same = sum(not is_own(time) for time in even)
    name = "as ordinary calls" if mode == "eager" else "as CUDA graphs, against torch's as graphs"
    return (
        f"Of {len(times)} ratios {name}, {len(below)} are below 1: {len(even)} between {SLOWER} and 1 ({same} of them"
        f" where both sides run cuDNN), {len(below) - len(even)} below {SLOWER}"
    )


def slower_places() -> str:
    """Return how many ratios are below 1 and which shapes are slower than torch's, without their values."""
    parts = []
    for mode in MODES:
        lines = [f"- {name} in {kind}: {shapes}" for name, kind, shapes in list_slower(mode)]
        parts.append(count_slower(mode) + (":\n\n" + "\n".join(lines) if lines else "."))
    return "\n\n".join(parts) + "\n"


def slower_table() -> str:
    """Return the ratios of every shape that is slower than torch's layer in a pass, eager or as a graph."""
    lines = ["| layer | type | H | B | eager | graph | kernel |", "|---|---|--:|--:|--:|--:|---|"]
    for layer, (name, _) in LAYERS.items():
        for place in sorted(read_times()):
            ratios = [find_ratio(place, layer, mode, pass_) for mode in MODES for pass_ in PASSES]
            if min((ratio for ratio in ratios if ratio), default=1.0) < SLOWER:
                cells = [show_ratios(place, layer, mode) for mode in MODES]
                kernels = [read_times()[place].get((layer, mode, "both")) for mode in MODES]
                kernel = next((time.kernel for time in kernels if time), "")
                lines.append(f"| {name} | {' | '.join(map(str, place))} | {' | '.join(cells)} | `{kernel}` |")
    return "\n".join([f"{count_slower('eager')}. {count_slower('graph')}.", "", *lines, ""])


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


PARTS = (speed_tables, other_packages, exact_torch, speed_summary, slower_places, slower_table)
