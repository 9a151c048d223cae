"""The table of goals, from the ledger of research/quality/goals.py."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import Any

from research.pages.records import RESULTS, format_command

LEDGERS = "*/goals/*.jsonl"


@dataclass(frozen=True)
class Goal:
    """A goal: its key in the ledger, the metric, the target and published numbers."""

    key: str
    name: str
    metric: str
    target: float
    published: str
    lower: bool = False
    percent: bool = True

    def show(self, value: float) -> str:
        if self.percent:
            return f"{100 * value:.2f}"
        return f"{value:.1e}" if value < 0.01 else f"{value:.3f}" if value < 10 else f"{value:.2f}"

    def is_met(self, value: float) -> bool:
        return value <= self.target if self.lower else value >= self.target


GOALS = (
    Goal("smnist", "sequential MNIST, accuracy", "accuracy", 0.994, "LSTM 98.9, best 99.5"),
    Goal("psmnist", "permuted MNIST, accuracy", "accuracy", 0.966, "LSTM 95, best 98.8"),
    Goal(
        "copy", "copy after 1,000 steps, loss", "loss", 1e-4, "TCN 3.5e-5; blanks and guesses 2e-2",
        lower=True, percent=False),
    Goal("adding", "adding in 10,000 steps, MSE", "mse", 1e-4, "LEM 2.4e-5", lower=True, percent=False),
    Goal("imdb", "IMDB, accuracy", "accuracy", 0.90, "LSTM 84 to 87, bigram NB-SVM 91.2"),
    Goal(
        "shakespeare", "tiny Shakespeare, bits per character", "bits", 2.14, "LSTM 2 x 512 2.1 to 2.2",
        lower=True, percent=False,
    ),
    Goal("multi30k", "Multi30k de-en, BLEU", "bleu", 37.0, "Transformer 36.5", percent=False),
    Goal("ewt", "UD English-EWT, UPOS accuracy", "accuracy", 0.955, "BiLSTM 88 to 95"),
    Goal("conll", "CoNLL-2000 chunks, F1", "span_f1", 0.945, "BiLSTM-CRF 94.1 to 94.5"),
    Goal("etth1", "ETTh1, 96 hours ahead, MSE", "mse", 0.355, "SegRNN 0.351, ridge 0.370", lower=True, percent=False),
)  # fmt: skip


# Why a goal was missed, or not reached by every seed.
REASONS = {
    "copy": "the other seed had 76 % of the symbols after 32 % of the planned steps and was still improving",
}


def read_ledger() -> list[dict[str, Any]]:
    """Return the records of all trainings that ended."""
    lines = [line for file in sorted(RESULTS.glob(LEDGERS)) for line in file.read_text().splitlines()]
    return [record for record in map(json.loads, lines) if "failed" not in record]


@dataclass(frozen=True)
class Recipe:
    """The trainings of one recipe, each with its own seed, and their score as one model, if there is one."""

    goal: Goal
    seeds: list[dict[str, Any]]
    together: dict[str, Any] | None

    def rate(self) -> tuple[float, str]:
        """Return the mean of the validation results, higher is better, or 0 without them, and the date."""
        names = self.goal.metric, f"valid_{self.goal.metric}"
        values = [one["valid"].get(names[0], one["test"].get(names[1])) for one in self.seeds]
        known = [v for v in values if v is not None]
        mean = statistics.fmean(known) if known else 0.0
        return (-mean if self.goal.lower else mean), self.seeds[0]["date"]

    def show(self) -> str:
        """Return the test results."""
        shown = ", ".join(self.goal.show(one["test"][self.goal.metric]) for one in self.seeds)
        if self.together is None:
            return shown
        return f"{shown}; together {self.goal.show(self.together['test'][self.goal.metric])}"

    def judge(self) -> tuple[str, bool]:
        """Return the verdict, and whether every seed or the mean output of all seeds reached the goal."""
        met = [self.goal.is_met(one["test"][self.goal.metric]) for one in self.seeds]
        if all(met):
            return "**reached**", True
        if self.together is not None and self.goal.is_met(self.together["test"][self.goal.metric]):
            return f"reached by {sum(met)} of {len(met)}, and by their mean output", True
        return (f"reached by {sum(met)} of {len(met)}" if any(met) else "missed"), False


def choose_recipe(goal: Goal, records: list[dict[str, Any]]) -> Recipe | None:
    """Return the recipe with the best mean on validation rows, or the newest without them."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if record["goal"] == goal.key:
            name = record["recipe"].removesuffix(f", {len(record.get('seeds', ()))} seeds together")
            groups.setdefault(f"{name}, {format_command(record)}", []).append(record)
    recipes = [
        Recipe(goal, [one for one in group if "seeds" not in one], next((one for one in group if "seeds" in one), None))
        for group in groups.values()
    ]
    return max(recipes, key=Recipe.rate, default=None)


def goals_table() -> str:
    """Return one row for each goal: the target, published numbers, our result, the recipe, and why it was missed."""
    records = read_ledger()
    lines = ["| goal | target | published | test result of each seed | | recipe |", "|---|--:|---|---|---|---|"]
    for goal in GOALS:
        recipe = choose_recipe(goal, records)
        target = f"{'at most' if goal.lower else 'at least'} {goal.show(goal.target)}"
        if recipe is None:
            lines.append(f"| {goal.name} | {target} | {goal.published} | | no result: {REASONS[goal.key]} | |")
            continue
        verdict, is_reached = recipe.judge()
        note = "" if is_reached else f": {REASONS[goal.key]}"
        shown = f"{goal.published} | {recipe.show()} | {verdict}{note} | {describe(recipe.seeds[0])}"
        lines.append(f"| {goal.name} | {target} | {shown} |")
    return "\n".join([*lines, ""])


def describe(record: dict[str, Any]) -> str:
    """Return the settings of a training in one phrase."""
    own = {k: v for k, v in record["settings"].items() if v not in (0, 0.0, False, "") and k != "epochs"}
    words = [record["recipe"], f"lr {record['lr']:g}", f"{record['steps']:,} of {record['planned_steps']:,} steps"]
    words += [f"EMA {record['ema']:g}"] if record["ema"] else []
    words += [f"weight decay {record['weight_decay']:g}"] if record["weight_decay"] else []
    return ", ".join(words + [f"{k.replace('_', ' ')} {v}" for k, v in own.items() if k != "model"])


PARTS = (goals_table,)
