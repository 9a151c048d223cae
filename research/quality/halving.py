"""Check the early cuts of `seqloom compare`: train every candidate to the end, then replay the cuts on the curves.

python -m research halving train --data DATA --out FILE [--steps 450] [--only names snips-intent]
python -m research halving judge FILE        replay the cuts of a record

A training has 18 validations. For each rule the record says whether the model that is best in the end was dropped, and
what the best finalist lacks. The learning rate follows the same schedule as in a comparison of that many steps.
"""

import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from research.quality.answers import SETS
from research.record import PROCESSOR, Stopwatch, build_parser, write_record

DIGITS = "digits"  # built in
SMALL_SETS = ["names", "snips-intent", "snips-slots", "japanese-vowels", DIGITS]
FINALISTS = (2, 3)
VALIDATION_ROWS = 700  # about so many, at least
Curve = list[tuple[int, float]]  # step and validation metric, higher is better


def main() -> None:
    parser = build_parser(__doc__, record=False)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train")
    train.add_argument("--data", type=Path, required=True, help="the folder with the data sets")
    train.add_argument("--steps", type=int, default=450)
    train.add_argument("--only", nargs="+", choices=[*SETS, DIGITS], default=SMALL_SETS)
    train.add_argument("--out", type=Path, required=True, help="the record to write or to add to")
    commands.add_parser("judge").add_argument("out", type=Path)
    args = parser.parse_args()
    sets = json.loads(args.out.read_text())["sets"] if args.out.exists() else {}
    if args.command == "train":
        for name in args.only:
            sets[name] = train_all(name, args.data, args.steps)
            write_record(args.out, study="halving", rules=judge(sets), sets=sets)
    for rule in judge(sets):
        print(json.dumps(rule))


def train_all(name: str, data: Path, steps: int) -> dict[str, Any]:
    """Train every candidate of a data set once and return its validation curve."""
    from seqloom.cli.commands.training import explicit_options
    from seqloom.lab.compare.data import STRIDES
    from seqloom.lab.compare.folder import start_comparison
    from seqloom.lab.compare.jobs import CandidateTrial
    from seqloom.lab.compare.plan import plan_steps
    from seqloom.lab.compare.rung import train_rung
    from seqloom.lab.compare.settings import CompareSettings
    from seqloom.lab.data.pipeline.reading import Reading
    from seqloom.lab.training.candidates import default_hyperparameters
    from seqloom.lab.training.sizes import fit_size

    words = iter(SETS[name].options.replace("--", "").split() if name in SETS else [])
    options = explicit_options(Reading(**{key: next(words) for key in words}))
    with tempfile.TemporaryDirectory() as folder:
        source = str(data / SETS[name].data) if name in SETS else None
        comparison = start_comparison(source, options, CompareSettings(steps=steps, folds=1), Path(folder) / "c")
        rows = comparison.task.splits["valid"].size or 0
        for source in comparison.job_factory.sources:
            source[STRIDES] = {"valid": max(1, rows // VALIDATION_ROWS)}
        plan = plan_steps(tuple(comparison.candidates), steps, 1, 1)
        curves, seconds = {}, {}
        for candidate in comparison.candidates.values():
            hidden = fit_size(comparison.task, candidate, comparison.parameters).hidden
            trial = CandidateTrial(candidate, default_hyperparameters(candidate, 1)[0], hidden)
            job = comparison.job_factory.rung(trial, plan, plan.steps, "first", None)
            began = Stopwatch(PROCESSOR)
            value = train_rung(**job.settings, folder=Path(folder))
            seconds[candidate.name] = round(began.seconds, 1)
            metric = comparison.metric
            sign = 1 if metric.higher else -1
            curves[candidate.name] = [(line["step"], sign * line[metric.name]) for line in value["curve"]]
            print(name, candidate.name, f"{curves[candidate.name][-1][1]:.4f}", seconds[candidate.name], flush=True)
    return {"metric": metric.name, "steps": plan.steps, "seconds": seconds, "curves": curves}


def best_so_far(curve: Curve, step: float) -> float:
    """Rank by the best validation so far, as a comparison does."""
    return max((value for at, value in curve if at <= step), default=-math.inf)


def extrapolate(curve: Curve, step: float) -> float:
    """Rank by a straight line over the logarithm of the steps through the last two validations."""
    points = [point for point in curve if point[0] <= step]
    best, last = best_so_far(curve, step), curve[-1][0]
    if len(points) < 2:
        return best
    (s, u), (t, v) = points[-2:]
    return max(best, v + max(0.0, v - u) / math.log(t / s) * math.log(last / t))


def judge(sets: dict[str, Any]) -> list[dict[str, Any]]:
    """Replay several rules: the shares of the steps at which the rungs end, and how models are ranked there."""
    rules: list[tuple[str, float, float, Callable[[Curve, float], float]]] = [
        ("1/9 and 1/3", 1 / 9, 1 / 3, best_so_far),
        ("1/6 and 1/3", 1 / 6, 1 / 3, best_so_far),
        ("2/9 and 1/3", 2 / 9, 1 / 3, best_so_far),
        ("1/3 and 1/2", 1 / 3, 1 / 2, best_so_far),
        ("1/9 and 1/3, extrapolated", 1 / 9, 1 / 3, extrapolate),
        ("1/6 and 1/3, extrapolated", 1 / 6, 1 / 3, extrapolate),
    ]
    return [replay(sets, finalists, *rule) for finalists in FINALISTS for rule in rules]


def replay(
    sets: dict[str, Any],
    finalists: int,
    name: str,
    first: float,
    second: float,
    rank: Callable[[Curve, float], float],
) -> dict[str, Any]:
    dropped, lacks = {}, {}
    for data, record in sets.items():
        curves = {model: [tuple(point) for point in curve] for model, curve in record["curves"].items()}
        survivors = max(finalists + 1, math.ceil(len(curves) / 3))
        steps = record["steps"]
        left = sorted(curves, key=lambda m: -rank(curves[m], first * steps + 1e-6))[:survivors]
        left = sorted(left, key=lambda m: -rank(curves[m], second * steps + 1e-6))[:finalists]
        ends = {model: best_so_far(curve, steps) for model, curve in curves.items()}
        winner = max(ends, key=lambda model: ends[model])
        lacks[data] = round(ends[winner] - max(ends[model] for model in left), 4)
        if lacks[data] > 0:
            dropped[data] = winner
    mean = round(sum(lacks.values()) / max(1, len(lacks)), 4)
    return {"rule": name, "finalists": finalists, "dropped": dropped, "lacks": lacks, "mean": mean}
