"""The jobs of a comparison: their keys, functions and settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from seqloom.lab.compare.plan import TrainingCost, TrainingPlan
from seqloom.lab.compare.timing import TaskSize
from seqloom.lab.jobs.job import Job
from seqloom.lab.kinds.registry import KINDS
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.candidates import Candidate, Hyperparameters
from seqloom.lab.training.sizes import embedding_size

GPU_SHARE = 0.25  # share of a GPU per job, if the machine has one


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

    @property
    def title(self) -> str:
        """Description of the training: gru 1x72, learning rate 0.003."""
        extra = f", dropout {self.settings.dropout:g}" if self.settings != Hyperparameters(self.settings.lr) else ""
        seed = f", seed {self.seed}" if self.seed else ""
        return f"{self.candidate.label(self.hidden)}, learning rate {self.settings.lr:g}{extra}{seed}"


@dataclass(frozen=True)
class JobFactory:
    """Build the jobs of one comparison."""

    folder: Path
    sources: Sequence[Mapping[str, Any]]  # source of each fold, or of all data
    kind: str
    batch: int
    task_size: TaskSize
    aim: Mapping[str, Any] = field(default_factory=dict)  # training settings of metric and decision
    titles: dict[str, str] = field(default_factory=dict)  # key of a job -> what it does, in words

    def baseline(self, name: str, seconds: float | None, fold: int = 0) -> Job:
        """Return the job that fits a baseline, to a sample if all rows would take longer than `seconds`."""
        run = str(self.baseline_folder(name, fold))
        settings = {"source": self.sources[fold], "name": name, "batch": self.batch, "run": run, "seconds": seconds}
        settings["aim"] = dict(self.aim)
        key, part = baseline_key(name, fold), f", fold {fold + 1}" if len(self.sources) > 1 else ""
        self.titles[key] = f"{name} (baseline){part}"
        return Job(key, "seqloom.lab.compare.baselines.registry:fit_baseline", settings)

    def speed(self, trial: CandidateTrial, seconds: float) -> Job:
        """Return the job that measures the training speed of a trial."""
        settings = {"source": self.sources[0], "settings": self._settings(trial), "sizes": asdict(self.task_size)}
        self.titles[f"speed-{trial.key}"] = trial.candidate.label(trial.hidden)
        return self._job(f"speed-{trial.key}", "timing:measure_speed", settings | {"seconds": seconds})

    def rung(self, trial: CandidateTrial, plan: TrainingPlan, until: int, stage: str, cost: TrainingCost | None) -> Job:
        """Return the job that trains a trial up to step `until`.

        Args:
            stage: "first", "second" or "final", whose time limits the training; the last one scores the test rows.
            cost: the estimated seconds of a validation and of the test; None for no limit in time.
        """
        steps = {"steps": plan.steps, "validate_every": plan.every, "patience": plan.patience}
        settings: dict[str, Any] = {
            "source": self.source_of(trial),
            "settings": self._settings(trial) | steps,
            "run": str(self.run_folder(trial)),
        }
        deadline = None
        if cost is not None:
            deadline = {"file": str(self.deadline_file), "stage": stage, "valid": cost.valid, "test": cost.test}
        settings |= {"until": until, "test": stage == "final", "deadline": deadline}
        title = replace(trial, seed=0).title + f", fold {trial.seed + 1}" if len(self.sources) > 1 else trial.title
        self.titles[rung_key(trial, until)] = f"{title}, {until:,} steps"
        return self._job(rung_key(trial, until), "rung:train_rung", settings)

    def latency(self, trial: CandidateTrial) -> Job:
        """Return the job that measures the latency of a trained trial."""
        settings = {"source": self.source_of(trial), "run": str(self.run_folder(trial))}
        self.titles[latency_key(trial.candidate.name)] = trial.candidate.label(trial.hidden)
        return self._job(latency_key(trial.candidate.name), "timing:measure_latency", settings)

    def source_of(self, trial: CandidateTrial) -> Mapping[str, Any]:
        """Return the source of a trial; with folds, seed 2 is trained on the third."""
        return self.sources[trial.seed] if len(self.sources) > 1 else self.sources[0]

    @property
    def deadline_file(self) -> Path:
        return self.folder / "deadlines.json"

    def run_folder(self, trial: CandidateTrial) -> Path:
        return self.folder / "runs" / trial.key

    def baseline_folder(self, name: str, fold: int = 0) -> Path:
        return self.folder / "runs" / baseline_key(name, fold)

    def _settings(self, trial: CandidateTrial) -> dict[str, Any]:
        c, chosen = trial.candidate, trial.settings
        wide = embedding_size(KINDS[self.kind], c, trial.hidden)
        settings = TrainSettings(
            model=c.model, layers=c.layers, hidden=trial.hidden, embedding=wide, dropout=chosen.dropout
        )
        own = {"batch": self.batch, "lr": chosen.lr, "seed": trial.seed, "threads": 1}
        return settings.model_dump() | dict(self.aim) | own

    def _job(self, key: str, function: str, settings: dict[str, Any]) -> Job:
        return Job(key, f"seqloom.lab.compare.{function}", settings, GPU_SHARE if torch.cuda.is_available() else 0)


def rung_key(trial: CandidateTrial, until: int) -> str:
    return f"{trial.key}-to{until}"


def baseline_key(name: str, fold: int = 0) -> str:
    return "baseline-" + re.sub(r"\W+", "-", name) + (f"-fold{fold + 1}" if fold else "")


def latency_key(name: str) -> str:
    return "latency-" + re.sub(r"[^\w.]+", "-", name.rpartition("/")[2])
