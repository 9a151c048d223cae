"""The jobs of a comparison: their keys, functions and settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from seqloom.lab.compare.candidates import Candidate, Hyperparameters
from seqloom.lab.compare.plan import TrainingPlan
from seqloom.lab.compare.sizes import embedding_size
from seqloom.lab.compare.timing import TaskSize
from seqloom.lab.jobs.runner import Job
from seqloom.lab.training.settings import TrainSettings

GPU_SHARE = 0.25  # of a GPU that a job takes, if the machine has one


@dataclass(frozen=True)
class CandidateTrial:
    """One training of a candidate, from its first step to its last."""

    candidate: Candidate
    settings: Hyperparameters
    hidden: int
    seed: int = 0

    @property
    def key(self) -> str:
        name = re.sub(r"[^\w.]+", "-", self.candidate.name.rpartition("/")[2])
        extra = f"-d{self.settings.dropout:g}" if self.settings != Hyperparameters(self.settings.lr) else ""
        return f"{name}-h{self.hidden}-lr{self.settings.lr:g}{extra}-s{self.seed}"


@dataclass(frozen=True)
class JobFactory:
    """Build the jobs of one comparison."""

    folder: Path
    source: Mapping[str, Any]
    kind: str
    batch: int
    task_size: TaskSize

    def baseline(self, name: str) -> Job:
        """Return the job that fits a baseline."""
        run = str(self.baseline_folder(name))
        settings = {"source": self.source, "name": name, "batch": self.batch, "run": run}
        return Job(baseline_key(name), "seqloom.lab.compare.baselines.registry:fit_baseline", settings)

    def speed(self, trial: CandidateTrial, seconds: float) -> Job:
        """Return the job that measures the training speed of a trial."""
        settings = {"source": self.source, "settings": self._settings(trial), "sizes": asdict(self.task_size)}
        return self._job(f"speed-{trial.key}", "timing:measure_speed", settings | {"seconds": seconds})

    def rung(self, trial: CandidateTrial, plan: TrainingPlan, until: int, test: bool = False) -> Job:
        """Return the job that trains a trial up to step `until`."""
        steps = {"steps": plan.steps, "validate_every": plan.every, "patience": plan.patience}
        settings = {
            "source": self.source,
            "settings": self._settings(trial) | steps,
            "run": str(self.run_folder(trial)),
        }
        return self._job(rung_key(trial, until), "rung:train_rung", settings | {"until": until, "test": test})

    def latency(self, trial: CandidateTrial) -> Job:
        """Return the job that measures the latency of a trained trial."""
        settings = {"source": self.source, "run": str(self.run_folder(trial))}
        return self._job(latency_key(trial.candidate.name), "timing:measure_latency", settings)

    def run_folder(self, trial: CandidateTrial) -> Path:
        return self.folder / "runs" / trial.key

    def baseline_folder(self, name: str) -> Path:
        return self.folder / "runs" / baseline_key(name)

    def _settings(self, trial: CandidateTrial) -> dict[str, Any]:
        c, chosen = trial.candidate, trial.settings
        wide = embedding_size(self.kind, c, trial.hidden)
        settings = TrainSettings(
            model=c.model, layers=c.layers, hidden=trial.hidden, embedding=wide, dropout=chosen.dropout
        )
        return settings.model_dump() | {"batch": self.batch, "lr": chosen.lr, "seed": trial.seed, "threads": 1}

    def _job(self, key: str, function: str, settings: dict[str, Any]) -> Job:
        return Job(key, f"seqloom.lab.compare.{function}", settings, GPU_SHARE if torch.cuda.is_available() else 0)


def rung_key(trial: CandidateTrial, until: int) -> str:
    return f"{trial.key}-to{until}"


def baseline_key(name: str) -> str:
    return "baseline-" + re.sub(r"\W+", "-", name)


def latency_key(name: str) -> str:
    return "latency-" + re.sub(r"[^\w.]+", "-", name.rpartition("/")[2])
