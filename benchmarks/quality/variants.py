"""Compare forms of AttnRNN with the published one and with a GRU, by the fair protocol, on five tasks.

    python benchmarks/quality/variants.py --out FOLDER --tasks register names

Each task is a condition of a study; every model has the same parameters and the same grid of learning rates and starts,
tuned with two seeds on validation rows and widened if a best rate lies on its edge. A run can be interrupted: trials
that are in the folder's ledgers are not trained again. --form small is for a CPU: one start, one tuning seed, half of
the steps.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from seqloom.lab.studies import copy, family, imdb, mnist, state
from seqloom.lab.studies.support.variants import VARIANTS

SETTINGS = ("attn_rnn_norm", "attn_rnn_16", "attn_rnn_norm_16")  # run on AttnRNN's own kernels
MODELS = ("attn_rnn", "gru", *SETTINGS)
GRID: dict[str, Any] = {
    "lrs": (1e-3, 3e-3, 1e-2),
    "starts": ("default", "chrono", "keep 1"),
    "tuning": 0.5,
    "tuning_seeds": 2,
    "widen": True,
}


SMALL: dict[str, Any] = {"starts": ("default",), "tuning_seeds": 1, "effort": 0.5}


def build_study(
    kind: Any,  # the class of a study
    conditions: tuple[Any, ...],
    form: str,
    folder: Path,
    device: str,
    models: tuple[str, ...],
    seeds: int,
    **more: object,
) -> Any:  # a study
    """Return the study with this grid, or its form "small" or "quick"."""
    if form == "quick":
        return kind(replace(kind.quick, models=models, seeds=2), folder=folder, device=device)
    settings = replace(kind.full, conditions=conditions, models=models, seeds=seeds, **{**GRID, **more})
    settings = replace(settings, **SMALL) if form == "small" else settings
    return kind(settings, folder=folder, device=device)


TASKS: dict[str, Callable[..., Any]] = {
    "names": lambda *rest: build_study(family.Family, (family.at(1, 1_000),), *rest),
    "register": lambda *rest: build_study(
        state.State, (state.track("register"),), *rest, widen_by=0.01, other_seeds=10, rounds=20
    ),
    "copy": lambda *rest: build_study(copy.Copy, (copy.at(100, 3_000),), *rest),
    "imdb": lambda *rest: build_study(imdb.Imdb, (imdb.at(imdb.MEAN, 4),), *rest),
    "smnist": lambda *rest: build_study(mnist.Mnist, (mnist.image(mnist.SEQUENTIAL, 6),), *rest),
}


def run(task: str, folder: Path, device: str, models: tuple[str, ...], seeds: int, form: str) -> None:
    """Run one task and write its document whenever a result is complete."""
    place = folder / task
    place.mkdir(parents=True, exist_ok=True)
    study, rows = TASKS[task](form, place, device, models, seeds), []
    for row in study.run(lambda _: None):
        rows.append(row)
        print(task, row, file=sys.stderr, flush=True)
    document = study.document(rows)
    (place / "study.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    print(f"{task}: {document['verdict']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder with one folder for each task")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--models", nargs="+", default=list(MODELS), help=f"cells, and {', '.join(VARIANTS)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--form", choices=("full", "small", "quick"), default="full")
    args = parser.parse_args()
    for task in args.tasks:
        run(task, args.out, args.device, tuple(args.models), args.seeds, args.form)


if __name__ == "__main__":
    main()
