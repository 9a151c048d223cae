"""The job of one rung: a run that is created or goes on, up to a step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from seqloom.lab.compare import rows
from seqloom.lab.compare.data import opened
from seqloom.lab.compare.rung import Rung
from seqloom.lab.training.cpu import small_models_on_cpu
from seqloom.lab.training.evaluate import finite
from seqloom.lab.training.run import FILE, Run
from seqloom.lab.training.settings import Train
from seqloom.lab.training.summary import summary

ABOUT = ("step", "epoch", "seconds")


def trial(
    source: Mapping[str, Any], settings: Mapping[str, Any], run: str, until: int, test: bool, folder: Path
) -> dict[str, Any]:
    """Train up to step `until`; with `test`, leave what the test rows add up to in the job's folder."""
    task, place = opened(source), Path(run)
    if not (place / FILE).exists():
        Run.create(place, Train(**settings), task, dict(source))
    made = Run.load(place)
    with small_models_on_cpu(), torch.random.fork_rng(devices=[]), made.locked():
        rung = Rung(task, made, until)
        rung.go()
        if test:
            rows.save(folder, rung.tested(made.settings.sizes["batch"] or 32))
    told = summary(made)
    lines = [line for line in made.metrics() if line.get("split") == "valid"]
    return {
        "step": rung.at.step,
        "finished": rung.at.finished,
        "best_step": told["best_step"],
        "valid": {name: value for name, value in told["valid"].items() if name not in ABOUT},
        "seconds": rung.at.seconds,
        "curve": [{k: finite(v) for k, v in line.items() if isinstance(v, (int, float))} for line in lines],
    }
