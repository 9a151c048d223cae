"""Write the parts of the pages that come from stored records: python docs/generate.py.

Between the marks `<!-- generated: NAME -->` and `<!-- end -->` of a page stands what the function NAME of PARTS
returns. Figures go to docs/images. Nothing is measured here: the records are in benchmarks/results.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cell_map
import compiled_cells
import forms
import goals
import study_pages
from records import GRU, RESULTS, ROOT, SPEED_RANGE, SPEED_ROWS, SPEED_STEPS, Row, import_pyplot, span

IMAGES = ROOT / "docs" / "images"
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / "results" / f"{name}.md" for name in ("speed", "overview", "claims", "goals", "forms")),
    ROOT / "docs" / "tutorials" / "own-cell.md",
    ROOT / "docs" / "reference" / "cell-map.md",
)
MARKS = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.S)
COMPETITORS = ("attn_rnn", "uniform weights", "gru")
MNIST = "sequential MNIST"  # the condition of the study on the front page
DTYPES = ("bfloat16", "float16", "float32", "tf32")
SLOWER = 0.97  # ratios above this are called even


def main() -> None:
    for page in PAGES:
        page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")
    draw_speed(IMAGES / "speed.svg")
    compiled_cells.draw_stages(IMAGES / "compiler.svg")
    cell_map.draw_tree(IMAGES / "cells.svg")
    for name in ("intents", "translation", "forecast"):
        draw_tutorial(name)


def fill(text: str) -> str:
    """Return a page with every generated part written again."""
    return MARKS.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}{match[3]}", text)


def speed_tables() -> str:
    """Return one table for each type: microseconds per step, and how many times as fast as torch.nn.GRU."""
    lines = []
    for dtype in DTYPES:
        rows, notes = newest_times(dtype)
        if not rows:
            continue
        lines += ["", f"### {dtype}", ""]
        lines += ["| layer | H | B | T | forward | forward, graph | both passes | both passes, graph |"]
        lines += ["|---|--:|--:|--:|---|---|---|---|"]
        for shape in sorted({shape_of(row) for row in rows}):
            hidden, length, batch = shape
            here = [row for row in rows if shape_of(row) == shape]
            for kernel in dict.fromkeys(row["kernel"] for row in here):
                name = GRU if here[0]["cell"] == GRU and kernel == here[0]["kernel"] else f"`{kernel}`"
                cells = " | ".join(time_cells([row for row in here if row["kernel"] == kernel]))
                lines.append(f"| {name} | {hidden} | {batch} | {length} | {cells} |")
        lines += ["", *(f"- {note}" for note in notes)]
    return "\n".join([*lines, "", ""])


def newest_times(dtype: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the newest row for each cell, shape and pass, torch.nn.GRU of the same run first, and the commands."""
    seen: set[tuple[Any, ...]] = set()
    rows, notes = [], []
    files = [json.loads(file.read_text()) for file in RESULTS.rglob("*.json") if f"h200-bench-{dtype}" in file.name]
    for document in sorted(files, key=lambda document: document["date"], reverse=True):
        own = [row for row in document["rows"] if not row["cell"].startswith("torch.nn")]
        new = [row for row in own if (row["cell"], *shape_of(row)) not in seen]
        shapes = {shape_of(row) for row in new}
        rows += [row for row in document["rows"] if row["cell"] == GRU and shape_of(row) in shapes and first(row, rows)]
        rows += new
        seen |= {(row["cell"], *shape_of(row)) for row in new}
        if new:
            gpu, torch = document["hardware"]["gpus"][0]["name"], document["versions"]["torch"]
            end = "" if document["finished"] else " (stopped early)"
            notes.append(f"{document['date'][:10]}, {gpu}, torch {torch}: `{document['command']}`{end}")
    return rows, notes


def first(row: Row, rows: list[dict[str, Any]]) -> bool:
    """Whether no row of the same cell, shape and pass is there yet."""
    return all((r["cell"], shape_of(r), r["pass"]) != (row["cell"], shape_of(row), row["pass"]) for r in rows)


def shape_of(row: Row) -> tuple[int, int, int]:
    return row["hidden"], row["length"], row["batch"]


def time_cells(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield microseconds per step and the ratio to torch.nn.GRU, for both passes, without and with a CUDA graph."""
    for name in ("forward", "forward+backward"):
        row: Row = next((row for row in rows if row["pass"] == name), {})
        for prefix in ("", "graph_"):
            time, ratio = row.get(f"{prefix}us_per_step"), row.get(f"{prefix}ratio_to_gru")
            times = "" if not ratio or row["cell"] == GRU else f" ({ratio:.1f}x)"
            yield "" if time is None else f"{time:.3g}{times}"


def speed_summary() -> str:
    """Return the range of the speed relative to torch.nn.GRU for each type: eager, and as CUDA graphs on both sides."""
    lines = ["| | GRU, eager | GRU, graph | AttnRNN, eager | AttnRNN, graph |", "|---|--:|--:|--:|--:|"]
    for dtype in DTYPES:
        rows, _ = newest_times(dtype)
        rows = [row for row in rows if is_summarised(row)]
        cells = [
            span([row.get(ratio) for row in rows if row["cell"] == cell and row["pass"] == "forward+backward"])
            for cell in ("gru", "attn_rnn")
            for ratio in ("ratio_to_gru", "graph_ratio_to_gru")
        ]
        if any(cells):
            lines.append(f"| {dtype} | {' | '.join(cell or 'not measured' for cell in cells)} |")
    return "\n".join([*lines, ""])


def is_summarised(row: Row) -> bool:
    (least, most), rows = SPEED_RANGE
    return row["length"] == SPEED_STEPS and row["batch"] in rows and least <= row["hidden"] <= most


def slower_places() -> str:
    """Return the shapes at which a layer is slower than torch.nn.GRU, in either pass, eager or as a CUDA graph."""
    places = []
    for name, cell in (("AttnRNN", "attn_rnn"), ("GRU", "gru")):
        for dtype in DTYPES:
            shapes: dict[int, set[int]] = {}
            for row in newest_times(dtype)[0]:
                ratios = [row[key] for key in ("ratio_to_gru", "graph_ratio_to_gru") if row.get(key)]
                if row["cell"] == cell and min(ratios, default=1) < SLOWER:
                    shapes.setdefault(row["hidden"], set()).add(row["batch"])
            if shapes:
                units = [f"{h} units with {join(sorted(rows))} rows" for h, rows in sorted(shapes.items())]
                places.append(f"{name} in {dtype}: {'; '.join(units)}")
    return "Slower than `torch.nn.GRU` in at least one pass:\n\n" + "".join(f"- {place}\n" for place in places)


def join(numbers: list[int]) -> str:
    return " and ".join([", ".join(map(str, numbers[:-1])), str(numbers[-1])]) if numbers[1:] else str(numbers[0])


def draw_speed(file: Path) -> None:
    """Draw the speed of both passes relative to torch.nn.GRU for each type."""
    plt = import_pyplot()

    styles = {("gru", ""): ("#3949ab", "-"), ("gru", "graph_"): ("#3949ab", ":")}
    styles |= {("attn_rnn", ""): ("#d81b60", "-"), ("attn_rnn", "graph_"): ("#d81b60", ":")}
    names = {"gru": "seqloom.GRU", "attn_rnn": "seqloom.AttnRNN"}
    dtypes = [dtype for dtype in DTYPES if newest_times(dtype)[0]]
    figure, axes = plt.subplots(1, len(dtypes), figsize=(9, 3.2), sharey=True, layout="constrained")
    for axis, dtype in zip(axes, dtypes, strict=True):
        rows, _ = newest_times(dtype)
        shown = (SPEED_ROWS, SPEED_STEPS, "forward+backward")
        rows = [r for r in rows if (r["batch"], r["length"], r["pass"]) == shown]
        for (cell, prefix), (colour, line) in styles.items():
            points = {r["hidden"]: r[f"{prefix}ratio_to_gru"] for r in rows if r["cell"] == cell}
            points = {hidden: ratio for hidden, ratio in sorted(points.items()) if ratio}
            if points:
                label = f"{names[cell]}, {'CUDA graphs' if prefix else 'eager'}"
                axis.plot(points.keys(), points.values(), line, color=colour, marker="o", markersize=4, label=label)
        axis.axhline(1, color="#777", linewidth=1)
        axis.set(title=dtype, xscale="log", yscale="log", xlabel="hidden size")
        axis.set_xticks([64, 128, 256, 512, 1024], ["64", "128", "256", "512", "1024"])
        axis.set_yticks([0.5, 1, 2, 5, 10, 20], ["0.5x", "1x", "2x", "5x", "10x", "20x"])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("speed, torch.nn.GRU = 1x")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def draw_tutorial(name: str) -> None:
    """Run a tutorial's snippets and keep the picture that they draw."""
    text = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        exec("\n".join(re.findall(r"```python\n(.*?)```", text, re.S)), {"__name__": "__main__"})
        shutil.copy(f"{name}.svg", IMAGES)


def results_table() -> str:
    """Return the front page's table: losses first, then ties, then wins."""
    names = ("family", "imdb", "adding", "copy", "ablation")
    family, imdb, adding, copy, ablation = (study(f"{name}-fair") for name in names)
    lab = lab_accuracies("imdb-")
    mnist = mnist_accuracies(MNIST)
    lines = ["| task | AttnRNN | GRU | LSTM | others | verdict |", "|---|--:|--:|--:|---|---|"]
    one, deep = family["1 layer"], family["8 layers"]
    behind = sum(models["attn_rnn"]["accuracy"] < models["gru"]["accuracy"] for models in family.values())
    lines.append(
        f"| nationality of names, 1 layer | {percents(one)} | RNN {percent(one['rnn'])} "
        f"| **loss**: behind the GRU in {behind} of {len(family)} settings; "
        f"with 8 layers {percent(deep['attn_rnn'])} against {percent(deep['gru'])} |"
    )
    permuted = study("mnist-fair")["permuted MNIST"]
    lines.append(
        "| permuted MNIST, 30 epochs, trainings that finished | "
        + " | ".join(f"{percent(permuted[m])} ({permuted[m]['seeds']} of 10)" for m in ("attn_rnn", "gru", "lstm"))
        + f" | LN-GRU {percent(permuted['ln_gru'])} | {verdict('mnist-fair', 'permuted MNIST', 'gru')}: unstable |"
    )
    lines.append(
        f"| IMDB, `seqloom train imdb` (one seed) | {lab['attn_rnn']:.1f} | {lab['gru']:.1f} | {lab['lstm']:.1f} | "
        "| **loss** |"
    )
    words = imdb["400 words, mean of the words"]
    lines.append(
        f"| IMDB, 400 words, 2.6 million parameters | {percents(words)} "
        f"| Transformer {percent(words['transformer'])}, averaged word vectors {percent(words['mean'])} "
        f"| {verdict('imdb-fair', '400 words, mean of the words', 'mean')} to averaged word vectors; "
        f"{verdict('imdb-fair', '400 words, mean of the words', 'gru')} from the GRU |"
    )
    adds = {model: row["error"] for model, row in ablation["adding, T = 200"].items()}
    simpler = "no residual, no LayerNorm"
    lost, won = (verdict("ablation-fair", "adding, T = 200", other) for other in (simpler, "gru"))
    lines.append(
        f"| add 2 of 200 numbers, error relative to a constant | {adds['attn_rnn']:.4f} | {adds['gru']:.4f} "
        f"| {adds['lstm']:.2f} | AttnRNN without residual and LayerNorm {adds[simpler]:.4f} "
        f"| {lost} to its simpler form; {won} over the GRU |"
    )
    delay = copy["delay, T = 2,000"]
    lines.append(
        f"| copy 10 symbols after 2,000 steps, accuracy | {percent(delay['attn_rnn'])} | {percent(delay['gru'])} | "
        "| | nobody learns it |"
    )
    far = adding["T = 10,000, marks anywhere"]
    lines.append(
        f"| add 2 of 10,000 numbers, mean absolute error | {far['attn_rnn']['MAE']:.3f} | {far['gru']['MAE']:.3f} | "
        f"| | {verdict('adding-fair', 'T = 10,000, marks anywhere', 'gru')} |"
    )
    done = f"{mnist['lstm'][1]} of 10 seeds; the others ended as NaN"
    lines.append(
        f"| sequential MNIST, 30 epochs, 10 seeds | {mnist['attn_rnn'][0]:.1f} | {mnist['gru'][0]:.1f} "
        f"| {mnist['lstm'][0]:.1f} ({done}) | LN-GRU {mnist['ln_gru'][0]:.1f} "
        f"| ahead of the GRU by {mnist['attn_rnn'][0] - mnist['gru'][0]:.2f} points |"
    )
    lines += map(state_row, study("state-fair"))
    near = adding["T = 1,000, marks anywhere"]
    lines.append(
        "| add 2 of 1,000 numbers, mean absolute error | "
        + " | ".join(f"{near[model]['MAE']:.4f}" for model in ("attn_rnn", "gru", "lstm"))
        + f" | | {verdict('adding-fair', 'T = 1,000, marks anywhere', 'gru')} from the GRU; all solve it |"
    )
    selective = copy["selective, T = 200"]
    won = verdict("copy-fair", "selective, T = 200", "gru")
    lines.append(f"| copy 10 symbols scattered among 200 blanks, accuracy | {percents(selective)} | | {won} |")
    return "\n".join([*lines, ""])


def state_row(problem: str) -> str:
    """Return the row of a state-tracking problem: seeds that solve it at 500 steps, trained up to 40."""
    models = study("state-fair")[problem]
    solved = {model: row["solved to 500"] for model, row in models.items()}
    others = (
        f"equal weights {solved['uniform weights']}, MinGRU {solved['min_gru']}, Transformer {solved['transformer']}"
    )
    questions = {"against the GRU": "attn_rnn - gru", "nonlinear against linear cells": "nonlinear - linear"}
    told = "; ".join(f"{words}: {study_pages.contrast(name, problem)}" for words, name in questions.items())
    return (
        f"| {problem}, 500 steps after training up to 40, seeds that solve it | {solved['attn_rnn']} | {solved['gru']} "
        f"| {solved['lstm']} | {others} | {told} |"
    )


def untuned_accuracies() -> str:
    """Return what AttnRNN and a GRU reach with a small learning rate and no other tuning."""
    scores: dict[str, list[float]] = {}
    for trial in mnist_trials():
        if (trial["condition"], trial["split"], trial["lr"], trial["start"]) == (MNIST, "valid", 0.001, "default"):
            scores.setdefault(trial["model"], []).append(100 * trial["scores"]["accuracy"])
    own, gru = (statistics.mean(scores[model]) for model in ("attn_rnn", "gru"))
    return (
        "**Use AttnRNN** for long sequences in which few steps matter, or when there is no time to tune: on\n"
        f"sequential MNIST with a learning rate of 0.001 its validation accuracy is {own:.1f} %, a GRU's {gru:.1f} "
        f"({len(scores['gru'])} seeds).\n"
    )


def competition() -> str:
    """Return how many steps the competition of state and input saves on problems of state tracking."""
    stored = {
        problem: models
        for problem, models in study("state-fair").items()
        if all(models[m]["steps to solve"] for m in COMPETITORS)  # by at least one seed of each
    }
    steps = {m: join_words(f"{models[m]['steps to solve']:,.0f}" for models in stored.values()) for m in COMPETITORS}
    return (
        f"Competition saves training: on {join_words(stored)} AttnRNN needs {steps['attn_rnn']} steps (medians),\n"
        f"with equal weights {steps['uniform weights']}, a GRU {steps['gru']}.\n"
    )


def join_words(words: Iterable[str]) -> str:
    """Join words by commas and "and"."""
    *first, last = words
    return f"{', '.join(first)} and {last}"


def verdict(name: str, condition: str, other: str) -> str:
    """Return the outcome of AttnRNN against another model in a stored study."""
    result = study_pages.find(name.removesuffix("-fair"), condition, other)["result"]
    return study_pages.VERDICTS.get(result, result)


def study(name: str) -> dict[str, dict[str, Row]]:
    """Return {condition: {model: row}} of a stored study."""
    table: dict[str, dict[str, Row]] = {}
    for row in json.loads((RESULTS / "studies" / name / "study.json").read_text())["table"]:
        table.setdefault(row["condition"], {})[row["model"]] = row
    return table


def mnist_accuracies(condition: str) -> dict[str, tuple[float, int]]:
    """Return each model's mean test accuracy in percent, and how many trainings ended with a number."""
    scores: dict[str, list[float]] = {}
    for trial in mnist_trials():
        if trial["condition"] == condition and trial["split"] == "test" and not trial["failed"]:
            scores.setdefault(trial["model"], []).append(100 * trial["scores"]["accuracy"])
    return {model: (statistics.mean(values), len(values)) for model, values in scores.items()}


def mnist_trials() -> Iterator[Row]:
    for line in (RESULTS / "studies" / "mnist-fair" / "trials.jsonl").read_text().splitlines():
        yield json.loads(line)["value"]


def lab_accuracies(prefix: str) -> dict[str, float]:
    """Return {model: test accuracy in percent} of single trainings with the lab's defaults."""
    file = next(file for file in RESULTS.rglob("*.json") if file.name.endswith("avx512-lab.json"))
    runs = json.loads(file.read_text())["runs"]
    return {
        r["name"][len(prefix) :]: 100 * r["accuracy"] for r in runs if r["name"].startswith(prefix) and "accuracy" in r
    }


def percents(models: Mapping[str, Row]) -> str:
    return " | ".join(percent(models[model]) for model in ("attn_rnn", "gru", "lstm"))


def percent(row: Row) -> str:
    return f"{100 * row['accuracy']:.1f}"


PARTS = {
    part.__name__: part
    for part in (
        *(speed_tables, speed_summary, slower_places, results_table, untuned_accuracies, competition),
        *cell_map.PARTS,
        *compiled_cells.PARTS,
        *goals.PARTS,
        *forms.PARTS,
        *study_pages.PARTS,
    )
}

if __name__ == "__main__":
    main()
