"""The jobs of a comparison: what each is called, and with which settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from seqloom.lab.compare.candidates import Candidate
from seqloom.lab.compare.plan import Plan
from seqloom.lab.compare.probe import Facts
from seqloom.lab.compare.sizes import embedding
from seqloom.lab.compare.tune import Choice
from seqloom.lab.jobs.runner import Job
from seqloom.lab.training.settings import TrainSettings

SHARED = 0.25  # of a GPU, where there is one


@dataclass(frozen=True)
class Trial:
    """One training, from its first step to its last."""

    candidate: Candidate
    choice: Choice
    hidden: int
    seed: int = 0

    @property
    def key(self) -> str:
        name = re.sub(r"[^\w.]+", "-", self.candidate.name.rpartition("/")[2])
        extra = f"-d{self.choice.dropout:g}" if self.choice != Choice(self.choice.lr) else ""
        return f"{name}-h{self.hidden}-lr{self.choice.lr:g}{extra}-s{self.seed}"


@dataclass(frozen=True)
class Work:
    """What all jobs have in common."""

    folder: Path
    source: Mapping[str, Any]
    kind: str
    batch: int
    facts: Facts

    def baseline(self, name: str) -> Job:
        settings = {"source": self.source, "name": name, "batch": self.batch}
        return Job(baseline_key(name), "seqloom.lab.compare.baselines.known:baseline", settings)

    def probe(self, trial: Trial, seconds: float) -> Job:
        settings = {"source": self.source, "settings": self._settings(trial), "steps": asdict(self.facts)}
        return self._job(f"speed-{trial.key}", "probe:probe", settings | {"seconds": seconds})

    def trial(self, trial: Trial, plan: Plan, until: int, test: bool = False) -> Job:
        chosen = {"steps": plan.steps, "validate_every": plan.every, "patience": plan.patience}
        settings = {"source": self.source, "settings": self._settings(trial) | chosen, "run": str(self.run(trial))}
        return self._job(trial_key(trial, until), "trial:trial", settings | {"until": until, "test": test})

    def latency(self, trial: Trial) -> Job:
        settings = {"source": self.source, "run": str(self.run(trial))}
        return self._job(latency_key(trial.candidate.name), "latency:latency", settings)

    def run(self, trial: Trial) -> Path:
        return self.folder / "runs" / trial.key

    def _settings(self, trial: Trial) -> dict[str, Any]:
        c, chosen = trial.candidate, trial.choice
        wide = embedding(self.kind, c, trial.hidden)
        made = TrainSettings(
            model=c.model, layers=c.layers, hidden=trial.hidden, embedding=wide, dropout=chosen.dropout
        )
        return made.model_dump() | {"batch": self.batch, "lr": chosen.lr, "seed": trial.seed, "threads": 1}

    def _job(self, key: str, function: str, settings: dict[str, Any]) -> Job:
        return Job(key, f"seqloom.lab.compare.{function}", settings, SHARED if torch.cuda.is_available() else 0)


def trial_key(trial: Trial, until: int) -> str:
    return f"{trial.key}-to{until}"


def baseline_key(name: str) -> str:
    return "baseline-" + re.sub(r"\W+", "-", name)


def latency_key(name: str) -> str:
    return "latency-" + re.sub(r"[^\w.]+", "-", name.rpartition("/")[2])
