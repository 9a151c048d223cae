"""The table of AttnRNN's forms, from the records of research/quality/variants.py."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from research.pages.records import RESULTS, Row
from research.studies.support.metric import ACCURACY, TrialMetric
from research.studies.support.outcome import LEVEL, Contest, Trial, contests
from research.studies.support.replay import restore_study
from research.studies.support.summary import holm

DOCUMENTS = "*/variants*/*/study.json"
TASKS = {
    "register": "register",
    "copy": "copy, delay 100",
    "smnist": "sequential MNIST",
    "names": "nationality of names",
    "imdb": "IMDB",
}
PUBLISHED = "attn_rnn"


@dataclass(frozen=True)
class Result:
    """A model on a task, and its contest with the published form, whose p-value is not corrected."""

    task: str
    row: Row
    seeds: int
    contest: Contest | None


def forms_table() -> str:
    """Return one row for each task and model: parameters, mean accuracy, seeds, and the difference to AttnRNN."""
    lines = [
        "| task | model | parameters | accuracy (95 % interval) | seeds | against the published form |",
        "|---|---|--:|--:|--:|---|",
    ]
    files = sorted(RESULTS.glob(DOCUMENTS), key=lambda file: list(TASKS).index(file.parent.name))
    for folder in sorted({file.parents[1].name for file in files}):  # models of full size, then small ones
        results = [one for file in files if file.parents[1].name == folder for one in _read_results(file)]
        corrected = _correct(results)
        lines += [
            f"| {one.task} | `{one.row['model']}` | {one.row['parameters']:,} | {_show_accuracy(one.row)} "
            f"| {one.seeds} | {_describe(one, corrected.get((one.task, one.row['model'])))} |"
            for one in results
        ]
    return "\n".join([*lines, ""])


def read_task(name: str) -> list[Result]:
    """Return the results of a task with models of full size."""
    (file,) = RESULTS.glob(f"*/variants/{name}/study.json")
    return _read_results(file)


def _read_results(file: Path) -> list[Result]:
    document = json.loads(file.read_text())
    task = TASKS[file.parent.name] + ("" if document["device"] == "cuda" else ", small models on a CPU")
    rows = [Trial(**row) for row in document["rows"]]
    against = contests(rows, TrialMetric("accuracy", ACCURACY), PUBLISHED, restore_study(file.parent).find_answers)
    by_model = {contest.other: contest for contest in against}
    seeds = Counter(trial.model for trial in rows if trial.split == "test")
    return [
        Result(task, row, seeds[row["model"]], by_model.get(row["model"]))
        for row in document["table"]
        if seeds[row["model"]]
    ]


def _correct(results: list[Result]) -> dict[tuple[str, str], float | None]:
    """Return p-values by task and model; the tasks of one form are one family of tests."""
    corrected = {}
    for model in dict.fromkeys(one.row["model"] for one in results):
        mine = [(one.task, one.contest) for one in results if one.row["model"] == model and one.contest]
        values = holm([contest.p_alone for _, contest in mine])
        corrected |= {(task, model): p for (task, _), p in zip(mine, values, strict=True)}
    return corrected


def _show_accuracy(row: Row) -> str:
    """Return the accuracy and its 95 % interval.

    The table of the register has solved seeds: there, the accuracy at length 500 and the steps to solve it.
    """
    if "accuracy" in row:
        return f"{100 * row['accuracy']:.2f} ({100 * max(0, row['low']):.1f} to {100 * min(1, row['high']):.1f})"
    return f"{100 * row['T=500']:.2f}, {row['solved to 500']} solved, median {row['steps to solve']:.0f} steps"


def judge(one: Result) -> str:
    """Return the result of the published form against this model on this task alone."""
    if one.contest is None or one.contest.better is None:
        return "no significant difference"
    return "**win**" if one.contest.better else "**loss**"


def _describe(one: Result, p: float | None) -> str:
    """Return the result of the comparison and the ratio of odds; empty for the published form itself."""
    if one.contest is None:
        return ""
    change = one.contest.change
    if change.effect is None or change.low is None or change.high is None or change.low == change.high:
        return "no significant difference"  # no interval: all seeds have all or none right
    odds = f"odds x {1 / change.effect:.2f} ({1 / change.high:.2f} to {1 / change.low:.2f})"  # change: of the published
    if p is None or p >= LEVEL:
        return f"no significant difference, {odds}" + ("" if p is None else f", p = {p:.2g}")
    return f"{'worse' if change.effect > 1 else '**better**'}, {odds}, p = {p:.2g}"


PARTS = (forms_table,)
