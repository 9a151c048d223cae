"""The models to compare for each kind of task, and the hyperparameters to try for each."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from seqloom.cells.lookup import split_name
from seqloom.core.errors import UserError, require
from seqloom.lab.cell_names import find_cells
from seqloom.lab.data.task import Task
from seqloom.lab.kinds.kind import CAUSAL, WHOLE_SEQUENCE, Kind
from seqloom.lab.kinds.layers import looks_ahead
from seqloom.lab.kinds.registry import kind_of
from seqloom.layers import registry
from seqloom.layers.linear.layer import Mixer

ALL = "all"
TCN_REACH = 4  # a TCN of n layers sees 1 + 4 (2^n - 1) steps
ATTENTION = ("transformer", "performer", "linformer", "hybrid", "rnn_then_attention")

DROPOUT = 0.2
PROPOSALS_AT_ONCE = 3  # proposals for a model that are trained before the next ones are made
MOST_LAYERS = 256  # as of TrainSettings
SIZE_FACTORS = (0.25, 0.5, 1.0, 2.0)  # factors on the parameter budget


@dataclass(frozen=True)
class Candidate:
    """A layer by name and the number of layers; `name` is what --models takes."""

    model: str
    layers: int = 1

    @property
    def name(self) -> str:
        return self.model if self.layers == 1 else f"{self.model}:{self.layers}"

    def label(self, hidden: int) -> str:
        """Return the label for tables: attn_rnn 2x128."""
        return f"{self.model.rpartition('/')[2]} {self.layers}x{hidden}"

    @property
    def rates(self) -> tuple[float, ...]:
        """Learning rates to try, the most promising first."""
        name = self.model.rpartition("/")[2]  # for a cell: the name of its file, without folders
        if name in Mixer.registry or any(part in name for part in ATTENTION):
            return (1e-3, 3e-3, 3e-4)
        return (3e-3, 1e-3, 1e-2)


class ModelName(NamedTuple):
    """The parts of a name that --models takes: bi_, then a layer or FILE.py:CLASS, then :2 for two layers."""

    ahead: str  # bi_ or ""
    base: str  # a layer, or FILE.py:CLASS
    layers: str  # a number or ""
    file: Path | None  # the file of a cell
    cell: str  # the name of its class, or ""

    @property
    def model(self) -> str:
        """The name without the number of layers."""
        return self.ahead + self.base

    def rename(self, base: str) -> str:
        """Return the name with `base` in place of the layer or cell: bi_gru:2 with "lstm" is bi_lstm:2."""
        return f"{self.ahead}{base}:{self.layers}" if self.layers else self.ahead + base


def split_model(name: str) -> ModelName:
    """Split a value of --models, such as bi_gru:2, into its parts.

    Raises:
        UserError: If it contains ".py:" and is not FILE.py:CLASS.
    """
    model, _, layers = name.strip().rpartition(":")
    if not (layers.isdecimal() and layers.isascii()):
        model, layers = name.strip(), ""
    base = model.removeprefix(registry.BI_PREFIX)
    file, cell = split_name(base) or (None, "")
    return ModelName(model[: len(model) - len(base)], base, layers, file, cell)


@dataclass(frozen=True)
class Hyperparameters:
    """Settings that may differ between two trainings of a model with the same seed."""

    lr: float
    dropout: float = DROPOUT
    factor: float = 1.0  # factor on the parameter budget


def choose_candidates(kind: Kind, names: Sequence[str] = (), steps: int = 100) -> list[Candidate]:
    """Return the candidates for a kind of task, or the named ones.

    Args:
        names: layers (`seqloom list layers`) or path/to/file.py:MyCell, with ":2" appended for two layers, or "all".
        steps: the typical sequence length, from which the depth of a TCN follows.

    Raises:
        UserError: if a name is unknown or a layer count is 0.
    """
    return _choose(kind.models, names, steps)


def _choose(usual: tuple[str, ...], names: Sequence[str], steps: int) -> list[Candidate]:
    wanted = tuple(names) or usual
    if wanted == (ALL,):
        causal = usual is not WHOLE_SEQUENCE
        wanted = tuple(name for name in registry.list_names() if not (causal and name.startswith(registry.BI_PREFIX)))
    return list(dict.fromkeys(_parse(name, steps) for name in wanted))


def choose_for_task(task: Task, names: Sequence[str] = (), steps: int = 100) -> list[Candidate]:
    """Return the candidates for a task as `choose_candidates` does; without those that would see the target.

    Raises:
        UserError: also if a named model looks ahead although it must not.
    """
    kind = kind_of(task)
    if not kind.must_not_look_ahead(task):
        return choose_candidates(kind, names, steps)
    candidates = _choose(CAUSAL, names, steps)
    if tuple(names) in ((), (ALL,)):
        return [c for c in candidates if not looks_ahead(c.model)]
    for candidate in candidates:
        kind.check_sight(task, candidate.model)
    return candidates


def _parse(name: str, steps: int) -> Candidate:
    split = split_model(name)
    if split.layers and not (len(split.layers) <= len(str(MOST_LAYERS)) and 0 < int(split.layers) <= MOST_LAYERS):
        raise UserError(f"model {name!r}: a model has at least one layer, and at most {MOST_LAYERS}")
    if split.file is not None:
        find_cells([split.base])
        return Candidate(f"{split.ahead}{split.file.absolute()}:{split.cell}", int(split.layers or 1))
    registry.find(split.model)
    if split.model == "tcn" and not split.layers:
        return Candidate("tcn", max(2, min(8, math.ceil(math.log2((steps - 1) / TCN_REACH + 1)))))
    return Candidate(split.model, int(split.layers or 1))


def default_hyperparameters(candidate: Candidate, count: int) -> list[Hyperparameters]:
    """Return up to `count` settings that differ in the learning rate."""
    return [Hyperparameters(lr) for lr in candidate.rates[:count]]


def propose_hyperparameters(
    results: Sequence[tuple[Hyperparameters, float | None]], count: int
) -> list[Hyperparameters]:
    """Propose `count` more settings with a tree-structured Parzen estimator; deterministic in `results`.

    Bergstra et al. 2011, Algorithms for hyper-parameter optimization.

    Args:
        results: the settings tried so far, each with its value (lower is better) or None if it failed.
    """
    optuna = require("optuna", "--tune", "tune")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space: dict[str, Any] = {
        "lr": optuna.distributions.FloatDistribution(1e-4, 3e-2, log=True),
        "dropout": optuna.distributions.FloatDistribution(0.0, 0.5, step=0.1),
        "factor": optuna.distributions.CategoricalDistribution(SIZE_FACTORS),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns about its experimental features
        sampler = optuna.samplers.TPESampler(seed=len(results), n_startup_trials=PROPOSALS_AT_ONCE)
        study = optuna.create_study(sampler=sampler)
        for tried, value in results:
            state = optuna.trial.TrialState.FAIL if value is None else optuna.trial.TrialState.COMPLETE
            study.add_trial(
                optuna.trial.create_trial(state=state, params=vars(tried), distributions=space, value=value)
            )
        proposals = [study.ask(space).params for _ in range(count)]
    return [Hyperparameters(round(p["lr"], 6), round(p["dropout"], 1), p["factor"]) for p in proposals]
