"""The generated parts of the page on AttnRNN: its results beside other models, and when to use it."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from research.pages import study_pages
from research.pages.records import RESULTS, Row
from research.pages.study_pages import ORDER, VERDICTS
from research.studies.adding import SOLVED
from research.studies.support.conditions import TrialSettings
from research.studies.support.contenders import CUDNN

COLUMNS = ("attn_rnn", "gru", "lstm")
COMPETITORS = ("attn_rnn", "uniform weights", "gru")
MNIST, PERMUTED, LOWER = "sequential MNIST", "permuted MNIST", "permuted MNIST, lower rate"
SIMPLER = "no residual, no LayerNorm"
FEWER = ", in fewer steps"  # of the contrasts of the study of state tracking
PARTS_OF_THE_CELL = {
    "no gate": "without its gate",
    SIMPLER: "without residual and LayerNorm",
    "uniform weights": "with equal weights instead of attention",
}
NUMBERS = ("none", "one", "two", "three", "four")

Line = tuple[int, str]  # the place of a row, 0: loss, 1: tie, 2: win against the GRU; and its text


def results_table() -> str:
    """Return the table of results: losses first, then ties, then wins."""
    states = [state_row(problem) for problem in study("state")]
    lines = [*names_rows(), *imdb_rows(), *mnist_rows(), *adding_rows(), *copy_rows(), *states]
    head = ["| task | AttnRNN | GRU | LSTM | others | verdict |", "|---|--:|--:|--:|---|---|"]
    return "\n".join([*head, *(text for _, text in sorted(lines, key=lambda line: line[0])), ""])


def table_key() -> str:
    """Return how to read the table of results."""
    usual = TrialSettings((), ())
    sizes = {
        model: [
            models[model]["parameters"]
            for name in ("adding", "copy")
            for models in study(name).values()
            if model in models
        ]
        for model in ("rnn", "lstm")
    }
    rnn, lstm = (f"{min(own) / 1e3:.0f},000 to {max(own) / 1e3:.0f},000" for own in sizes.values())
    return wrap(
        f"Unless the row says otherwise, numbers are test accuracies in percent, means of {usual.seeds} seeds, "
        f"of models with about {usual.budget:,} parameters (on adding and copying, where units come in steps of "
        f"{CUDNN}, an RNN has {rnn} and an LSTM {lstm}). Verdicts compare AttnRNN with the GRU, with a 95 % "
        "interval; a ratio of odds above 1 or a ratio of errors below 1 is in favour of AttnRNN. *Not tuned*: the best "
        "learning rate is the lowest or highest one tried, so that another may be better."
    )


def stability() -> str:
    """Return at which learning rates trainings of AttnRNN failed, and at which not."""
    table = study("mnist")
    high, low = table[PERMUTED]["attn_rnn"], table[LOWER]["attn_rnn"]
    total = high["seeds"] + high["failed"]
    short, long = (study("adding")[f"T = {steps}, marks anywhere"]["attn_rnn"] for steps in ("20", "1,000"))
    unsolved = sum(
        t["scores"]["MAE"] > SOLVED
        for t in study_pages.load("adding-fair")["rows"]
        if (t["condition"], t["model"], t["split"]) == (short["condition"], "attn_rnn", "test")
    )
    return wrap(
        f"Be careful with learning rates of {high['lr']:g} and more: on permuted MNIST its gradients grew beyond the "
        f"range of float32 in {high['failed']} of {total} trainings at {high['lr']:g}, and in {low['failed']} at "
        f"{low['lr']:g}, where its accuracy is {percent(low)} % and a GRU's {percent(table[PERMUTED]['gru'])} %. On "
        f"adding 20 numbers {unsolved} of {short['seeds']} learn nothing at the tuned rate, {short['lr']:g}; on adding "
        f"1,000 numbers {long['failed']} of {long['seeds'] + long['failed']} fail at {long['lr']:g}."
    )


def names_rows() -> Iterator[Line]:
    family = study("family")
    behind = sum(verdict("family", condition, "gru") == ORDER[0] for condition in family)
    deep = family["8 layers"]
    more = f"; {behind} of {len(family)} settings are losses, with 8 layers {percent(deep['attn_rnn'])} against "
    yield row(
        "nationality of names, 1 layer, 75,000 parameters",
        [percent(family["1 layer"][model]) for model in COLUMNS],
        f"RNN {percent(family['1 layer']['rnn'])}",
        "family",
        "1 layer",
        f"{more}{percent(deep['gru'])}",
    )


def mnist_rows() -> Iterator[Line]:
    table = study("mnist")
    for condition, name in (
        (MNIST, f"{MNIST}, 30 epochs, 10 seeds"),
        (PERMUTED, f"{PERMUTED}, 30 epochs, 10 seeds"),
        (LOWER, f"{PERMUTED}, AttnRNN and LSTM at the next lower learning rate, added afterwards"),
    ):
        models = table[PERMUTED] | table[condition] if condition == LOWER else table[condition]
        cells = [f"{percent(models[m])}{describe_failures(models[m])}" for m in COLUMNS]
        others = f"LN-GRU {percent(models['ln_gru'])}, all pixels at once (MLP) {percent(models['mlp'])}"
        yield row(name, cells, others, "mnist", condition)


def describe_failures(result: Row) -> str:
    """Return how many trainings have a result, if not all have."""
    total = result["seeds"] + result["failed"]
    return f" ({result['seeds']} of {total} trainings; the others failed)" if result["failed"] else ""


def imdb_rows() -> Iterator[Line]:
    lab = lab_accuracies("imdb-")
    cells = " | ".join(f"{lab[model]:.1f}" for model in COLUMNS)
    yield 0, f"| IMDB, `seqloom train imdb` | {cells} | | **loss**; one seed, not tested |"
    condition = "400 words, mean of the words"
    words = study("imdb")[condition]
    versus = f"; {compare('imdb', condition, 'mean')} against averaged word vectors"
    yield row(
        "IMDB, 400 words, 2.6 million parameters",
        [percent(words[model]) for model in COLUMNS],
        f"Transformer {percent(words['transformer'])}, averaged word vectors {percent(words['mean'])}",
        "imdb",
        condition,
        versus,
    )


def adding_rows() -> Iterator[Line]:
    adding = study("adding")
    for steps in ("200", "1,000", "10,000"):
        condition = f"T = {steps}, marks anywhere"
        cells = [f"{adding[condition][m]['MAE']:.4f}" if m in adding[condition] else "" for m in COLUMNS]
        yield row(f"add 2 of {steps} numbers, mean absolute error", cells, "", "adding", condition)
    condition = "adding, T = 200"
    errors = {model: one["error"] for model, one in study("ablation")[condition].items()}
    yield row(
        "ablation: add 2 of 200 numbers, fewer steps, the default start; error relative to a constant",
        [f"{errors[model]:.4f}" for model in COLUMNS],
        f"AttnRNN without residual and LayerNorm {errors[SIMPLER]:.4f}",
        "ablation",
        condition,
        f"; {compare('ablation', condition, SIMPLER)} against its simpler form",
    )


def copy_rows() -> Iterator[Line]:
    for condition, models in study("copy").items():
        form, _, steps = condition.partition(", T = ")
        what = f"after {steps} steps" if form == "delay" else f"scattered among {steps} blanks"
        cells = [describe_accuracy(models.get(model)) for model in COLUMNS]
        others = f"RNN {describe_accuracy(models['rnn'])}" if "rnn" in models else ""
        yield row(f"copy 10 symbols {what}, 10 seeds", cells, others, "copy", condition)


def describe_accuracy(result: Row | None) -> str:
    """Return an accuracy in percent, with its seeds if they are not ten."""
    if result is None:
        return ""
    return percent(result) + (f" ({result['seeds']} seeds)" if result["seeds"] != 10 else "")


def state_row(problem: str) -> Line:
    """Return the row of a state-tracking problem: seeds that solve it at 500 steps, trained up to 40."""
    models = study("state")[problem]
    solved = {model: result["solved to 500"] for model, result in models.items()}
    names = {"uniform weights": "equal weights", "min_gru": "MinGRU", "transformer": "Transformer"}
    others = ", ".join(f"{name} {solved[model]}" for model, name in names.items() if model in solved)
    against = study_pages.contrast("attn_rnn - gru", problem)
    linear = study_pages.contrast("nonlinear - linear", problem)
    text = against.replace(FEWER, ", but AttnRNN learns length 40 in fewer steps")
    text += f"; nonlinear against linear cells: {linear}" if linear else ""
    cells = " | ".join(solved.get(model, "") for model in COLUMNS)
    place = 1 if against.startswith(ORDER[1]) else 2 if against.startswith("solved by more") else 0
    task = f"{problem}, 500 steps after training up to 40, seeds that solve it"
    return place, f"| {task} | {cells} | {others} | {text}{describe_edges('state', problem)} |"


def row(task: str, cells: Sequence[str], others: str, name: str, condition: str, more: str = "") -> Line:
    """Return a row with the verdict against the GRU, its interval, and learning rates at the edge of their grid."""
    text = f"{compare(name, condition, 'gru')}{more}{describe_edges(name, condition)}"
    return ORDER.index(verdict(name, condition, "gru")), f"| {task} | {' | '.join(cells)} | {others} | {text} |"


def verdict(name: str, condition: str, other: str) -> str:
    """Return the outcome of AttnRNN against another model in a stored study."""
    result = study_pages.find(name, condition, other)["result"]
    return VERDICTS.get(result, result)


def compare(name: str, condition: str, other: str) -> str:
    """Return the outcome of AttnRNN against another model with the size of the difference."""
    return f"{verdict(name, condition, other)}, {study_pages.effect(study_pages.find(name, condition, other))}"


def describe_edges(name: str, condition: str) -> str:
    """Return a remark on models whose learning rate is at the edge of its grid, or ""."""
    edges = study_pages.name_edges(f"{name}-fair", condition, COLUMNS)
    return f"; not tuned: {edges}" if edges else ""


def when_to_use() -> str:
    """Return what AttnRNN and a GRU reach with a small learning rate and no other tuning, and tuned."""
    digits, sums = untuned("mnist", MNIST, "accuracy"), untuned("adding", "T = 200, marks anywhere", "MAE")
    words, group = untuned("imdb", "200 words, mean of the words", "accuracy"), untuned("state", "S3", "accuracy")
    tuned = study("mnist")[MNIST]
    lead = 100 * (tuned["attn_rnn"]["accuracy"] - tuned["gru"]["accuracy"])
    return wrap(
        "**Use AttnRNN** for long sequences when there is no time to tune. With a learning rate of 0.001 and the "
        "default start, its scores on validation rows, each against a GRU's, are: accuracy on sequential MNIST "
        f"{format_pair(digits, 100)}, error on adding two of 200 numbers {format_pair(sums)}; "
        f"but on IMDB {format_pair(words, 100)}, and on S3 {format_pair(group, 100)}. "
        f"With tuned learning rates its lead on sequential MNIST is {lead:.2f} points, and "
        f"{count_outcomes(('adding', 'copy'))}."
    )


def untuned(name: str, condition: str, metric: str) -> dict[str, list[float]]:
    """Return {model: scores} of tuning trainings at a learning rate of 0.001 with the default start."""
    scores: dict[str, list[float]] = {}
    for line in (RESULTS / "studies" / f"{name}-fair" / "trials.jsonl").read_text().splitlines():
        trial = json.loads(line)["value"]
        place = tuple(trial.get(field) for field in ("condition", "split", "lr", "start"))
        if place == (condition, "valid", 0.001, "default"):
            scores.setdefault(trial["model"], []).append(trial["scores"][metric])
    return scores


def format_pair(scores: Mapping[str, Sequence[float]], percent: float = 1.0) -> str:
    """Return the means of AttnRNN and a GRU with the number of seeds, in percent if `percent` is 100."""
    own, gru = (percent * statistics.mean(scores[model]) for model in ("attn_rnn", "gru"))
    seeds = len(scores["gru"])
    unit, form = (" %", ".1f") if percent != 1 else ("", ".3f")
    return f"{own:{form}} against {gru:{form}}{unit} ({seeds} seed{'s' if seeds > 1 else ''})"


def count_outcomes(names: Sequence[str]) -> str:
    """Return how the conditions of studies ended against the GRU."""
    found = [verdict(name, condition, "gru") for name in names for condition in study(name)]
    joined = " and ".join("copying" if name == "copy" else name for name in names)
    if set(found) == {ORDER[1]}:
        return f"none of the {len(found)} conditions of {joined} shows a significant difference"
    losses, ties, wins = (found.count(word) for word in ORDER)
    return f"the {len(found)} conditions of {joined} are {losses} losses, {ties} ties and {wins} wins"


def competition() -> str:
    """Return how many steps the competition of state and input saves on problems of state tracking."""
    table = study("state")
    lines = ["| | AttnRNN | equal weights instead of attention | GRU |", "|---|--:|--:|--:|"]
    edges = []
    for problem, models in table.items():
        if all(models[m]["steps to solve"] for m in COMPETITORS):
            cells = (describe_steps(problem, model, models[model]["steps to solve"]) for model in COMPETITORS)
            lines.append(f"| {problem} | {' | '.join(cells)} |")
            rates = study_pages.name_edges("state-fair", problem, COMPETITORS)
            edges += [f"{problem}: {rates} (gru {models['gru']['lr']:g})"] if rates else []
    intro = wrap(
        "Competition saves training. Steps until 99 % on sequences of 40 symbols, medians of the seeds that get there; "
        "bold: significantly more than AttnRNN needs:"
    )
    not_tuned = f"\nNot tuned, at the highest learning rate tried: {'; '.join(edges)}.\n" if edges else ""
    return f"{intro}\n" + "\n".join([*lines, ""]) + not_tuned


def describe_steps(problem: str, model: str, steps: float) -> str:
    """Return a number of steps, bold if AttnRNN needs significantly fewer, with the seeds if not all get there."""
    more = model != "attn_rnn" and FEWER in study_pages.contrast(f"attn_rnn - {model}", problem)
    rows = [
        t["scores"]
        for t in study_pages.load("state-fair")["rows"]
        if (t["condition"], t["model"], t["split"]) == (problem, model, "test")
    ]
    there = sum("steps to solve" in scores for scores in rows)
    text = f"**{steps:,.0f}**" if more else f"{steps:,.0f}"
    return text if there == len(rows) else f"{text} ({there} of {len(rows)} seeds)"


def cell_parts() -> str:
    """Return which parts of the cell matter, from the ablation."""
    texts = []
    for model, words in PARTS_OF_THE_CELL.items():
        found = {c: verdict("ablation", c, model) for c, ms in study("ablation").items() if model in ms}
        worse = [c for c, result in found.items() if result == ORDER[2]]
        better = [c for c, result in found.items() if result == ORDER[0]]
        parts = [
            f"{word} on {describe_tasks(tasks)}" for word, tasks in (("worse", worse), ("better", better)) if tasks
        ]
        texts.append(f"- {words}: {' and '.join(parts) or 'no significant difference'}\n")
    return f"Compared with the published cell, on {NUMBERS[len(study('ablation'))]} tasks:\n\n{''.join(texts)}"


def describe_tasks(conditions: Sequence[str]) -> str:
    kinds = {c.partition(",")[0].replace("copy", "copying") for c in conditions}
    return NUMBERS[len(conditions)] + (f" ({kinds.pop()})" if len(kinds) == 1 else "")


def wrap(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False) + "\n"


def study(name: str) -> dict[str, dict[str, Row]]:
    """Return {condition: {model: row}} of a stored study."""
    table: dict[str, dict[str, Row]] = {}
    for result in study_pages.load(f"{name}-fair")["table"]:
        table.setdefault(result["condition"], {})[result["model"]] = result
    return table


def lab_accuracies(prefix: str) -> dict[str, float]:
    """Return {model: test accuracy in percent} of single trainings with the lab's defaults."""
    file = next(file for file in RESULTS.rglob("*.json") if file.name.endswith("avx512-lab.json"))
    runs = json.loads(file.read_text())["runs"]
    return {
        r["name"][len(prefix) :]: 100 * r["accuracy"] for r in runs if r["name"].startswith(prefix) and "accuracy" in r
    }


def percent(result: Row) -> str:
    return f"{100 * result['accuracy']:.1f}"


PARTS = (table_key, results_table, when_to_use, competition, stability, cell_parts)
