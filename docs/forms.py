"""The table of AttnRNN's forms, from the records of benchmarks/quality/variants.py."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from records import RESULTS, Row

from seqloom.lab.studies.support.outcome import Contest, Trial, TrialMetric, contests

DOCUMENTS = "*/variants*/*/study.json"
TASKS = {
    "register": "register",
    "copy": "copy, delay 100",
    "smnist": "sequential MNIST",
    "names": "nationality of names",
    "imdb": "IMDB",
}
PUBLISHED = "attn_rnn"


def forms_table() -> str:
    """Return one row for each task and model: parameters, mean accuracy, seeds, and the difference to AttnRNN."""
    lines = [
        "| task | model | parameters | accuracy | seeds | against the published form |",
        "|---|---|--:|--:|--:|---|",
    ]
    for file in sorted(RESULTS.glob(DOCUMENTS)):
        lines += _compare_forms(file)
    return "\n".join([*lines, ""])


def _compare_forms(file: Path) -> list[str]:
    document = json.loads(file.read_text())
    small = "" if document["device"] == "cuda" else ", small models on a CPU"
    rows = [Trial(**row) for row in document["rows"]]
    against = contests(rows, TrialMetric("accuracy"), PUBLISHED, resolution=0.5 / document["settings"]["test"])
    found = {contest.other: contest for contest in against}
    seeds = Counter(trial.model for trial in rows if trial.split == "test")
    return [
        f"| {TASKS[file.parent.name]}{small} | `{row['model']}` | {row['parameters']:,} | {_show_accuracy(row)} "
        f"| {seeds[row['model']]} | {_describe(row, found.get(row['model']))} |"
        for row in document["table"]
    ]


def _show_accuracy(row: Row) -> str:
    """Return the accuracy; of the register, whose table has solved seeds, that at length 500 and the steps it took."""
    if "accuracy" in row:
        return f"{100 * row['accuracy']:.2f}"
    return f"{100 * row['T=500']:.2f}, {row['solved to 500']} solved, median {row['steps to solve']:.0f} steps"


def _describe(row: Row, contest: Contest | None) -> str:
    """Return the result of the comparison; empty for the published form itself."""
    if contest is None or contest.better is None:
        return "" if row["model"] == PUBLISHED else "no significant difference"
    return "worse" if contest.better else "**better**"  # `better`: of the published form


PARTS = (forms_table,)
