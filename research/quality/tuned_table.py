"""Train models on small tasks with tuned learning rates: the same budget for each, many at once.

Learning rates from 0.001 on are tried with two seeds (`--tuning-seeds`) and half of the steps; if the best of any model
lies at an end of the grid, all get the next rate too. The rate with the best mean validation loss is trained with new
seeds, and only these read the test set. Rows are written as groups of trainings end.
"""

import json
import math
import subprocess
from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import seqloom
from research.quality.small_tasks import Model, Problem, compute_loss, evaluate, make_problem
from research.record import Stopwatch, describe_run, start_again
from seqloom.lab.training.many import train_many
from seqloom.lab.training.recipe import Recipe, SmallTraining

LADDER = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)  # learning rates
FIRST = 2  # where in the ladder the grid begins
TUNING_SEEDS = (0, 1)
SEEDS = (10, 11, 12, 13, 14)
GROUP = 24  # trainings at once


def choose_rates(rows: list[dict[str, Any]], task: str) -> dict[str, float]:
    """Return for each model the rate with the best mean validation loss; a training that failed excludes its rate."""
    losses: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        if row["task"] == task and row["part"] == "tune":
            value = row.get("valid", math.inf)
            losses.setdefault((row["cell"], row["rate"]), []).append(value if math.isfinite(value) else math.inf)
    best: dict[str, tuple[float, float]] = {}
    for (cell, rate), values in losses.items():
        mean = sum(values) / len(values)
        if mean < math.inf:
            best[cell] = min(best.get(cell, (math.inf, 0.0)), (mean, rate))
    return {cell: rate for cell, (_, rate) in best.items()}


class Table:
    """Rows of finished trainings, and the trainings that make them.

    Args:
        settings: What `add_settings` reads.
        layers: What makes the recurrent layer of each model; the column "cell" has their names.
    """

    def __init__(self, settings: Any, layers: dict[str, Callable[[], seqloom.Recurrent]]) -> None:
        self.begun, self.settings, self.device = Stopwatch(), settings, torch.device(settings.device)
        chosen = settings.cells or list(layers)
        self.layers = {name: layers[name] for name in chosen}
        made = {name: make() for name, make in self.layers.items()}
        units = {name: layer.hidden_size for name, layer in made.items()}
        weights = {name: sum(p.numel() for p in layer.parameters()) for name, layer in made.items()}
        self.record = describe_run(steps=settings.steps, batch=settings.batch, units=units, weights=weights)
        self.rows: list[dict[str, Any]] = []
        if settings.resume:
            before = json.loads(settings.resume.read_text())
            if (before["steps"], before["batch"]) != (settings.steps, settings.batch):
                raise SystemExit(f"{settings.resume} has {before['steps']} steps of {before['batch']} rows")
            same = {name for name in units if before["units"].get(name) == units[name]}
            self.rows = [row for row in before["rows"] if "failed" not in row and row["cell"] in same]

    def is_over(self) -> bool:
        return self.begun.seconds > self.settings.limit

    def train(self, problem: Problem, part: str, wanted: list[tuple[str, float, int]]) -> None:
        """Train (cell, rate, seed) in groups, and add a row for each."""
        key = ("task", "part", "cell", "rate", "seed")
        finished = {tuple(row[k] for k in key) for row in self.rows}
        wanted = [one for one in wanted if (problem.name, part, *one) not in finished]
        steps = self.settings.steps if part == "final" else self.settings.steps // 2
        for first in range(0, len(wanted), GROUP):
            if self.is_over():
                return
            group = wanted[first : first + GROUP]
            trainings = [
                SmallTraining(
                    f"{problem.name}/{cell}/{rate}/{seed}",
                    partial(Model, problem, self.layers[cell]),
                    lambda random, _: problem.draw(random, self.settings.batch),
                    compute_loss,
                    Recipe(steps, rate),
                    seed,
                )
                for cell, rate, seed in group
            ]
            for one, done in zip(group, train_many(trainings, self.device), strict=True):
                row: dict[str, Any] = dict(zip(key, (problem.name, part, *one), strict=True))
                if done.model is None or done.failed:
                    self.rows.append(row | {"failed": done.failed[:300]})
                    continue
                row |= {"valid": evaluate(done.model, problem.valid)[0], "loss": done.losses[-1]}
                row |= {"skipped": done.skipped} if done.skipped else {}
                if part == "final":
                    row[problem.better] = evaluate(done.model, problem.test)[1]
                self.rows.append(row)
            self.write()
            print(f"{problem.name} {part}: {len(self.rows)} rows, {self.begun.seconds:.0f} s", flush=True)

    def write(self) -> None:
        if self.settings.json:
            self.settings.json.parent.mkdir(parents=True, exist_ok=True)
            self.settings.json.write_text(json.dumps(self.record | {"rows": self.rows}, indent=0) + "\n")

    def fill(self, problem: Problem, cells: list[str]) -> None:
        """Tune models on one task, widening the grid while the best rate of one lies at its end; then train."""
        low, high = FIRST, FIRST + self.settings.rates
        while not self.is_over():
            rates = LADDER[low:high]
            seeds = TUNING_SEEDS[: self.settings.tuning_seeds]
            self.train(problem, "tune", [(c, r, s) for r in rates for s in seeds for c in cells])
            best = {c: rate for c, rate in choose_rates(self.rows, problem.name).items() if c in cells}
            found = best.values() or rates[1:2]  # a record that is resumed may hold rates beyond these
            wider = (low - (min(found) <= rates[0]), high + (max(found) >= rates[-1]))
            wider = (max(0, wider[0]), min(len(LADDER), wider[1]))
            if wider == (low, high):
                self.train(
                    problem,
                    "final",
                    [(c, best[c], s) for s in SEEDS[: self.settings.seeds] for c in cells if c in best],
                )
                return
            low, high = wider

    def prepare(self) -> None:
        """Compile the kernels of all models in several processes, which fill the cache."""
        own, names, many = self.settings, list(self.layers), self.settings.prepare
        command = [*start_again(), "--device", own.device, "--data", str(own.data), "--warm"]
        command += ["--tasks", *own.tasks, "--batch", str(own.batch)]
        parts = [names[i::many] for i in range(many)]
        started = [subprocess.Popen([*command, "--cells", *part]) for part in parts if part]
        for process in started:
            process.wait()
        print(f"compiled in {self.begun.seconds:.0f} s", flush=True)

    def run(self, parts: list[list[str]] | None = None) -> None:
        """Fill the table for every task, one part of the models after the other, and print what failed."""
        if self.settings.prepare:
            self.prepare()
        for task in self.settings.tasks:
            problem = make_problem(task, self.settings.data, self.device)
            if self.settings.warm:
                self.settings.steps = 4
                self.train(problem, "final", [(name, LADDER[3], 0) for name in self.layers])
            else:
                for part in parts or [list(self.layers)]:
                    self.fill(problem, [name for name in part if name in self.layers])
        self.write()
        for row in self.rows:
            if "failed" in row:
                print(row, flush=True)


def add_settings(parser: ArgumentParser, tasks: list[str], steps: int, rates: int, seeds: int) -> None:
    """Add the settings of a table to a parser."""
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cells", nargs="*", default=[], help="these models only")
    parser.add_argument("--tasks", nargs="*", default=tasks)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rates", type=int, default=rates, help="learning rates before the grid is widened")
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--tuning-seeds", type=int, default=len(TUNING_SEEDS))
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no group after this many seconds")
    parser.add_argument("--prepare", type=int, default=0, help="compile in this many processes first")
    parser.add_argument("--warm", action="store_true", help="compile only")
    parser.add_argument("--resume", type=Path, help="record of an earlier run with the same settings")
