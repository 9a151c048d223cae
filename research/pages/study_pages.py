"""The generated parts of the pages on studies: one table of all of them, and what the others say."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from research.pages.records import RESULTS, Row
from research.studies.study import find_study
from research.studies.support.outcome import Trial
from research.studies.support.replay import restore_study
from research.studies.support.trial_report import find_edges
from research.studies.support.trials import Trials

STUDIES = RESULTS / "studies"
ATTN, GRU = "attn_rnn", "gru"
VERDICTS = {"attn_rnn better": "**win**", "attn_rnn worse": "**loss**"}
ORDER = ("**loss**", "no significant difference", "**win**")
LONGEST = 240  # characters of a sentence in the table of every study
EFFECTS = ("ratio of odds", "ratio", "difference")


@cache
def load(name: str) -> Any:  # a JSON document
    return json.loads((STUDIES / name / "study.json").read_text(encoding="utf-8"))


def names(protocol: str) -> list[str]:
    return sorted(file.parent.name for file in STUDIES.glob(f"*-{protocol}/study.json"))


def differences(name: str) -> list[Row]:
    """Return the rows of a stored study that compare AttnRNN with other models."""
    blocks = [block for block in load(name)["page"]["blocks"] if block["title"].startswith("Differences in ")]
    return [row for block in blocks for row in block["rows"]]


def all_differences() -> list[tuple[str, Row]]:
    return [(name.removesuffix("-fair"), row) for name in names("fair") for row in differences(name)]


@cache
def edges(name: str) -> dict[tuple[str, str], float | None]:
    """Return {(condition, model): rate} of a stored study; the rate is None if it lies inside its grid."""
    study = restore_study(STUDIES / name)
    if not isinstance(study, Trials):
        return {}
    return find_edges(study, [Trial(**row) for row in load(name)["rows"]])


def count_edges(name: str) -> str:
    """Return how many models have their best learning rate at the edge of the grid, so that they are not tuned."""
    found = list(edges(name).values())
    at_edge = sum(rate is not None for rate in found)
    return f"{at_edge} of {len(found)}" if at_edge else ""


def name_edges(name: str, condition: str, models: Sequence[str] = (ATTN, GRU)) -> str:
    """Return which of these models have their best learning rate at the edge of the grid, and that rate."""
    found = {model: edges(name).get((condition, model)) for model in models}
    return ", ".join(f"{model} {rate:g}" for model, rate in found.items() if rate is not None)


def studies_overview() -> str:
    """Return one row for each condition of each study that trains AttnRNN and a GRU, losses first."""
    by_place: dict[tuple[str, str], list[Row]] = {}
    for study, row in all_differences():
        by_place.setdefault((study, row["condition"]), []).append(row)
    table = []
    for (study, condition), rows in by_place.items():
        against = next((row for row in rows if row["comparison"] == f"{ATTN} - {GRU}"), None)
        if against is None:
            continue
        better = [other(row) for row in rows if row["result"] == "attn_rnn worse" and row is not against]
        worse = [other(row) for row in rows if row["result"] == "attn_rnn better" and row is not against]
        mark = mark_quick(f"{study}-fair")
        cells = [
            f"{study}{mark}",
            condition,
            score(against[ATTN]),
            score(against["other"]),
            effect(against),
            against["seeds"],
        ]
        verdict = VERDICTS.get(against["result"], against["result"])
        edge = name_edges(f"{study}-fair", condition)
        table.append((ORDER.index(verdict), [*cells, verdict, edge, shorten(better), shorten(worse)]))
    lines = [
        "| study | condition | AttnRNN | GRU | effect, 95% interval | seeds | against the GRU "
        "| rate at the edge of the grid | better than AttnRNN | worse than AttnRNN |",
        "|---|---|--:|--:|---|---|---|---|---|---|",
        *("| " + " | ".join(cells) + " |" for _, cells in sorted(table, key=lambda row: row[0])),
    ]
    places = [place for place, _ in table]
    counts = [f"{places.count(i)} {word}" for i, word in enumerate(("losses", "ties", "wins"))]
    return f"{', '.join(counts)} against the GRU in {len(places)} conditions.\n\n" + "\n".join([*lines, ""])


def other_studies() -> str:
    """Return the verdicts of the studies without a comparison of AttnRNN with a GRU in the table above."""
    lines = ["| study | verdict |", "|---|---|"]
    listed = {study for study, row in all_differences() if row["comparison"] == f"{ATTN} - {GRU}"}
    for name in names("fair"):
        if name.removesuffix("-fair") not in listed:
            lines.append(f"| {name.removesuffix('-fair')} | {escape(load(name)['verdict'])} |")
    return "\n".join([*lines, ""])


def every_study() -> str:
    """Return one row for each stored study: results against a GRU, other models that are better, and the verdict."""
    table = []
    for name in [*names("fair"), *names("quick"), *names("paper")]:
        document = load(name)
        rows = [row for row in differences(name) if row["comparison"] == f"{ATTN} - {GRU}"]
        verdicts = [VERDICTS.get(row["result"], row["result"]) for row in rows]
        counts = [verdicts.count(word) for word in ORDER]
        words = [f"{n} {'losses' if n != 1 else 'loss'}" for n in counts[:1]] + [
            f"{n} {kind}{'s' if n != 1 else ''}" for n, kind in zip(counts[1:], ("tie", "win"), strict=True)
        ]
        shown = f"{document['study']}, as printed" if document["protocol"] == "paper" else document["study"]
        shown += ", on a GPU" if name.startswith(f"{document['study']}-gpu") else ""
        better = dict.fromkeys(other(row) for row in differences(name) if row["result"] == "attn_rnn worse")
        others = shorten([model for model in better if model != GRU])
        cells = [
            f"{shown}{mark_quick(name)}",
            ", ".join(words) if rows else "",
            count_edges(name),
            others,
            escape(tell_short(document, rows)),
        ]
        table.append((document["protocol"] == "paper", -counts[0], not rows, shown, cells))
    lines = [
        "| study | AttnRNN against the GRU | not tuned | also better than AttnRNN | in short |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *("| " + " | ".join(row[-1]) + " |" for row in sorted(table)), ""])


def mark_quick(name: str) -> str:
    """Return a mark for a stored quick run: small models, short trainings, no tuning."""
    return " (quick)" if name.endswith("-quick") else ""


def tell_short(document: Row, rows: Sequence[Row]) -> str:
    """Return the largest loss and the largest win against the GRU, or else the first sentence of the verdict."""
    parts = []
    for word, result in (("loss", "attn_rnn worse"), ("win", "attn_rnn better")):
        mine = [row for row in rows if row["result"] == result]
        if mine:
            top = max(mine, key=lambda row: abs(math.log(max(row[ATTN], 1e-9) / max(row["other"], 1e-9))))
            one = f"largest {word}" if len(mine) > 1 else word
            parts.append(f"{one}: {top['condition']}, {score(top[ATTN])} against {score(top['other'])}")
    if parts and document["protocol"] != "paper":
        return "; ".join(parts)
    first = re.split(r"(?<=[a-z0-9)])\. (?=[A-Za-z])", document["verdict"], maxsplit=1)[0].rstrip(".")
    return first if len(first) <= LONGEST else first[: first.rfind(";", 0, LONGEST)] + "; ..."


def contrast(question: str, problem: str) -> str:
    """Return the result of a primary contrast of the state-tracking study, or "" if a side was not trained."""
    blocks = [block for block in load("state-fair")["page"]["blocks"] if block["title"] == "Primary contrasts"]
    rows = [row for block in blocks for row in block["rows"]]
    return next((str(r["result"]) for r in rows if (r["contrast"], r["condition"]) == (question, problem)), "")


def other(row: Row) -> str:
    return str(row["comparison"]).partition(" - ")[2]


def shorten(models: Sequence[str]) -> str:
    return ", ".join(models[:4]) + (f" and {len(models) - 4} more" if len(models) > 4 else "")


def score(value: float | None) -> str:
    """Return an accuracy with four digits, a larger number with three and a small error with two."""
    if value is None:
        return ""
    return f"{value:.4f}" if 0.1 <= value < 1 else f"{value:.3g}" if value >= 1 else f"{value:.2g}"


def effect(row: Row) -> str:
    """Return the size of a difference with its interval, or the seeds that solve the problem."""
    if row["solved"]:
        return f"solved: {row['solved']}"
    name = next(name for name in EFFECTS if name in row)
    if row["low"] is None:
        return ""
    if " of " in row["seeds"]:
        return "failed trainings decide"
    return f"{name} {row[name]:.3g} ({row['low']:.3g} to {row['high']:.3g})"


def escape(text: str) -> str:
    return text.replace("|", "\\|")


def find(study: str, condition: str, model: str) -> Row:
    for row in differences(f"{study}-fair"):
        if (row["condition"], other(row)) == (condition, model):
            return row
    raise KeyError((study, condition, model))


def partial_studies() -> str:
    """Return the conditions and models of each study's full form that are not stored."""
    lines = ["| study | not run |", "|---|---|"]
    for name in names("fair"):
        document = load(name)
        full, stored = find_study(document["study"]).full, document["settings"]
        conditions = [c.name for c in getattr(full, "conditions", ())]
        have = [c["name"] for c in stored.get("conditions", ())]
        missing = [c for c in conditions if c not in have]
        missing += [f"`{m}`" for m in getattr(full, "models", ()) if m not in stored.get("models", ())]
        if missing:
            lines.append(f"| {document['study']} | {escape('; '.join(missing))} |")
    return "\n".join([*lines, ""])


PARTS = (studies_overview, other_studies, every_study, partial_studies)
