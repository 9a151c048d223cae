"""Compare forms of AttnRNN with the published one and with a GRU, by the fair protocol, on five tasks.

    python -m research variants --out FOLDER --tasks register names

Each task is a condition of a study; every model has the same parameters and the same grid of learning rates and starts,
tuned with two seeds on validation rows and widened if a best rate lies on its edge. A run can be interrupted: trials
that are in the folder's ledgers are not trained again. --form small is for a CPU: one start, one tuning seed,
8,000 parameters, half of the steps.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from research.quality.review_ids import StoredImdb
from research.record import build_parser
from research.studies import copy, family, imdb, mnist, state
from research.studies.support.variants import VARIANTS

SETTINGS = ("attn_rnn_norm", "attn_rnn_16", "attn_rnn_norm_16")  # run on AttnRNN's own kernels
MODELS = ("attn_rnn", "gru", *SETTINGS)
GRID: dict[str, Any] = {
    "lrs": (1e-3, 3e-3, 1e-2),
    "starts": ("default", "chrono", "keep 1"),
    "tuning": 0.5,
    "tuning_seeds": 2,
    "widen": True,
    "widen_by": 0.0,
    "finalists": 0,
}


SMALL: dict[str, Any] = {"starts": ("default",), "tuning_seeds": 1, "effort": 0.5, "budget": 8_000}


@dataclass(frozen=True)
class Task:
    """A study and its condition, with the settings that differ from its own, and from these in the form "small"."""

    study: Any  # a class
    condition: Any
    more: dict[str, Any] = field(default_factory=dict)
    small: dict[str, Any] = field(default_factory=dict)

    def build(self, form: str, **common: Any) -> Any:
        """Return the study in the form "full", "small" or "quick"."""
        models, seeds = common.pop("models"), common.pop("seeds")
        grid, rest = {name: common.pop(name) for name in ("starts", "lrs", "together")}, common
        if form == "quick":
            return self.study(replace(self.study.quick, models=models, seeds=2), **rest)
        own = {"conditions": (self.condition,), "models": models, "seeds": seeds, **GRID, **grid, **self.more}
        own |= {**SMALL, **self.small} if form == "small" else {}
        return self.study(replace(self.study.full, **own), **rest)


class Images(mnist.Mnist):
    """The study without the time of a single training: others share the GPU."""

    def time_models(self) -> None:
        """Measure nothing."""


Images.name = mnist.Mnist.name  # of the keys of its trials

SHORT_REVIEWS = {"vocabulary": 5_000, "width": 32, "train": 4_000, "every": 5}
TASKS = {
    "names": Task(family.Family, family.at(1, 1_000)),
    "register": Task(
        state.State,
        state.track("register"),
        {"widen_by": 0.01, "other_seeds": 10, "rounds": 20},
        {"conditions": (state.track("register", 3_000),), "batch": 64, "valid": 256, "test": 512, "rounds": 5,
         "valid_lengths": (40, 128), "test_lengths": (40, 256), "main_length": 256},
    ),
    "copy": Task(copy.Copy, copy.at(100, 3_000)),
    "imdb": Task(
        imdb.Imdb,
        imdb.at(imdb.MEAN, 4),
        {"test": 10_000},
        small={"conditions": (replace(imdb.at(imdb.MEAN, 3, 60, task=SHORT_REVIEWS), steps=800),), "budget": 170_000,
               "valid": 800, "test": 5_000},
    ),
    "smnist": Task(Images, mnist.image(mnist.SEQUENTIAL, 6)),
}  # fmt: skip


def run(task: str, folder: Path, form: str, **common: Any) -> None:
    """Run one task and write its document whenever a result is complete."""
    place = folder / task
    place.mkdir(parents=True, exist_ok=True)
    study = TASKS[task].build(form, folder=place, **common)
    rows = []
    for row in study.run(lambda _: None):
        rows.append(row)
        print(task, row, file=sys.stderr, flush=True)
    document = study.document(rows)
    (place / "study.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    print(f"{task}: {document['verdict']}")


def main() -> None:
    parser = build_parser(__doc__, record=False)
    parser.add_argument("--out", type=Path, required=True, help="a folder with one folder for each task")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--models", nargs="+", default=list(MODELS), help=f"cells, and {', '.join(VARIANTS)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--starts", nargs="+", default=list(GRID["starts"]), help="of the grid, the same for all models"
    )
    parser.add_argument("--rates", nargs="+", type=float, default=list(GRID["lrs"]), help="learning rates, likewise")
    parser.add_argument("--together", type=int, default=24, help="trainings side by side on a GPU, stored when all end")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ids", type=Path, help="word ids of IMDB, by review_ids.py; without it the reviews are read")
    parser.add_argument("--form", choices=("full", "small", "quick"), default="full")
    args = parser.parse_args()
    if args.ids is not None:
        StoredImdb.file = args.ids
        TASKS["imdb"] = replace(TASKS["imdb"], study=StoredImdb)
    for task in args.tasks:
        same = {
            "models": tuple(args.models),
            "seeds": args.seeds,
            "starts": tuple(args.starts),
            "lrs": tuple(args.rates),
            "together": args.together,
        }
        run(task, args.out, args.form, device=args.device, **same)
