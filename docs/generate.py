"""Write the parts of the pages that come from stored records: python docs/generate.py.

With `--tables`, pages alone are written; the figures of tutorials need trainings of a few seconds.
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
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping

import calls
import cell_map
import claims
import compiled_cells
import depth
import forms
import goals
import kinds
import policies
import speed
import study_pages
from records import RESULTS, ROOT, Row

IMAGES = ROOT / "docs" / "images"
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / "results" / f"{name}.md" for name in ("speed", "overview", "claims", "goals", "forms", "kinds")),
    ROOT / "docs" / "tutorials" / "own-cell.md",
    ROOT / "docs" / "how-to" / "reinforcement-learning.md",
    ROOT / "docs" / "reference" / "cell-map.md",
    ROOT / "docs" / "how-to" / "deep-stacks.md",
)
MARKS = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.S)
COMPETITORS = ("attn_rnn", "uniform weights", "gru")
MNIST = "sequential MNIST"  # the condition of the study on the front page


def main() -> None:
    for page in PAGES:
        page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")
    if "--tables" in sys.argv[1:]:
        return
    speed.draw_speed(IMAGES / "speed.svg")
    compiled_cells.draw_stages(IMAGES / "compiler.svg")
    cell_map.draw_tree(IMAGES / "cells.svg")
    policies.draw_curves(IMAGES / "policies.svg")
    cell_map.draw_gates(IMAGES / "cell-gates.svg")
    kinds.draw_kinds(IMAGES / "kinds.svg")
    for name in ("intents", "translation", "forecast"):
        draw_tutorial(name)


def fill(text: str) -> str:
    """Return a page with every generated part written again."""
    return MARKS.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}{match[3]}", text)


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
        + f" | {beside(permuted)} | {verdict('mnist-fair', 'permuted MNIST', 'gru')}: unstable |"
    )
    slower = study("mnist-fair")["permuted MNIST, lower rate"]
    finished = {m: f"{percent(slower[m])} ({slower[m]['seeds']} of 10)" for m in ("attn_rnn", "lstm")}
    lines.append(
        f"| the same, AttnRNN and LSTM at the next lower learning rate, added afterwards | {finished['attn_rnn']} "
        f"| {percent(permuted['gru'])} ({permuted['gru']['seeds']} of 10) | {finished['lstm']} "
        f"| {beside(permuted)} | {verdict('mnist-fair', 'permuted MNIST, lower rate', 'gru')} |"
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
        f"| {lost} to its simpler form; {won} {'from' if won.startswith('no') else 'over'} the GRU"
        f"{name_edges('ablation-fair', 'adding, T = 200')} |"
    )
    recalled = [copy_row(copy, condition) for condition in ("delay, T = 100", "selective, T = 200")]
    lines += [line for order, line in recalled if order == 0]
    lines += [line for order, line in recalled if order == 1]
    far_condition, near_condition = "T = 10,000, marks anywhere", "T = 1,000, marks anywhere"
    far = adding[far_condition]
    lines.append(
        f"| add 2 of 10,000 numbers, mean absolute error | {far['attn_rnn']['MAE']:.3f} | {far['gru']['MAE']:.3f} | "
        f"| | {verdict('adding-fair', far_condition, 'gru')}{name_edges('adding-fair', far_condition)} |"
    )
    done = f"{mnist['lstm'][1]} of 10 seeds; the others ended as NaN"
    lines.append(
        f"| sequential MNIST, 30 epochs, 10 seeds | {mnist['attn_rnn'][0]:.1f} | {mnist['gru'][0]:.1f} "
        f"| {mnist['lstm'][0]:.1f} ({done}) | {beside(study('mnist-fair')[MNIST])} "
        f"| ahead of the GRU by {mnist['attn_rnn'][0] - mnist['gru'][0]:.2f} points |"
    )
    lines += map(state_row, study("state-fair"))
    near = adding[near_condition]
    lines.append(
        "| add 2 of 1,000 numbers, mean absolute error | "
        + " | ".join(f"{near[model]['MAE']:.4f}" for model in ("attn_rnn", "gru", "lstm"))
        + f" | | {verdict('adding-fair', near_condition, 'gru')} from the GRU; all solve it"
        + f"{name_edges('adding-fair', near_condition)} |"
    )
    lines += [line for order, line in recalled if order == 2]
    return "\n".join([*lines, ""])


def copy_row(copy: Mapping[str, Mapping[str, Row]], condition: str) -> tuple[int, str]:
    """Return the row of a copying problem, and its place: 0 for a loss against the GRU, 1 for a tie, 2 for a win."""
    form, _, steps = condition.partition(", T = ")
    what = f"after {steps} steps" if form == "delay" else f"scattered among {steps} blanks"
    models, result = copy[condition], verdict("copy-fair", condition, "gru")
    others = f"RNN {percent(models['rnn'])}" if "rnn" in models else ""
    order = study_pages.ORDER.index(result)
    line = (
        f"| copy 10 symbols {what}, {models['gru']['seeds']} seeds | {percents(models)} | {others} "
        f"| {result}{name_edges('copy-fair', condition)} |"
    )
    return order, line


def name_edges(name: str, condition: str) -> str:
    """Return a remark on models whose learning rate is at the edge of its grid, or ""."""
    edges = study_pages.name_edges(name, condition)
    return f", at the edge of the learning rates ({edges})" if edges else ""


def state_row(problem: str) -> str:
    """Return the row of a state-tracking problem: seeds that solve it at 500 steps, trained up to 40."""
    models = study("state-fair")[problem]
    solved = {model: row["solved to 500"] for model, row in models.items()}
    names = {"uniform weights": "equal weights", "min_gru": "MinGRU", "transformer": "Transformer"}
    others = ", ".join(f"{name} {solved[model]}" for model, name in names.items() if model in solved)
    questions = {"against the GRU": "attn_rnn - gru", "nonlinear against linear cells": "nonlinear - linear"}
    results = {words: study_pages.contrast(name, problem) for words, name in questions.items()}
    told = "; ".join(f"{words}: {result}" for words, result in results.items() if result)
    return (
        f"| {problem}, 500 steps after training up to 40, seeds that solve it | {solved['attn_rnn']} | {solved['gru']} "
        f"| {solved.get('lstm', '')} | {others} | {told} |"
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
        if all(models[m]["steps to solve"] for m in COMPETITORS)
        and "lower rate" not in problem  # one seed of each does
    }
    steps = {m: join_words(f"{models[m]['steps to solve']:,.0f}" for models in stored.values()) for m in COMPETITORS}
    fewer = [
        p for p, models in stored.items() if models["gru"]["steps to solve"] < models["attn_rnn"]["steps to solve"]
    ]
    except_for = f"; on {' and '.join(fewer)} the GRU needs fewer" if fewer else ""
    return (
        f"Competition saves training: on {join_words(stored)} AttnRNN needs {steps['attn_rnn']} steps\n"
        f"(medians of the seeds that learn sequences of 40), with equal weights {steps['uniform weights']}, "
        f"a GRU\n{steps['gru']}{except_for}.\n"
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
        value = json.loads(line)["value"]
        if "condition" in value:  # the others are times
            yield value


def lab_accuracies(prefix: str) -> dict[str, float]:
    """Return {model: test accuracy in percent} of single trainings with the lab's defaults."""
    file = next(file for file in RESULTS.rglob("*.json") if file.name.endswith("avx512-lab.json"))
    runs = json.loads(file.read_text())["runs"]
    return {
        r["name"][len(prefix) :]: 100 * r["accuracy"] for r in runs if r["name"].startswith(prefix) and "accuracy" in r
    }


def beside(models: Mapping[str, Row]) -> str:
    """Return the accuracies of the models of the MNIST study that have no column."""
    names = {"ln_gru": "LN-GRU", "mlp": "all pixels at once (MLP)"}
    return ", ".join(f"{name} {percent(models[model])}" for model, name in names.items() if model in models)


def percents(models: Mapping[str, Row]) -> str:
    return " | ".join(percent(models[model]) if model in models else "" for model in ("attn_rnn", "gru", "lstm"))


def percent(row: Row) -> str:
    return f"{100 * row['accuracy']:.1f}"


PARTS = {
    part.__name__: part
    for part in (
        *(speed.speed_tables, speed.speed_summary, speed.slower_places),
        *(results_table, untuned_accuracies, competition),
        *calls.PARTS,
        *cell_map.PARTS,
        *compiled_cells.PARTS,
        *depth.PARTS,
        *goals.PARTS,
        *forms.PARTS,
        *policies.PARTS,
        *kinds.PARTS,
        *study_pages.PARTS,
        *claims.PARTS,
    )
}

if __name__ == "__main__":
    main()
