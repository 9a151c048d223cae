"""Settings of a model that are worth a try: listed ones first, then those that Optuna proposes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seqloom.core.errors import require
from seqloom.lab.compare.candidates import Candidate

DROPOUT = 0.2
WAVE = 3  # proposals of a model that are tried before the next ones are made
FACTORS = (0.25, 0.5, 1.0, 2.0)  # of the parameter budget


@dataclass(frozen=True)
class Choice:
    """What may differ between two trainings of a model."""

    lr: float
    dropout: float = DROPOUT
    factor: float = 1.0


def listed(candidate: Candidate, count: int) -> list[Choice]:
    """The usual learning rates of a model."""
    return [Choice(lr) for lr in candidate.rates[:count]]


def proposed(tried: Sequence[tuple[Choice, float | None]], count: int) -> list[Choice]:
    """`count` more, by a tree-structured Parzen estimator over what was tried; None is a failure, low values are good.

    Bergstra et al. 2011, Algorithms for hyper-parameter optimization.
    """
    optuna = require("optuna", "--tune", "tune")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space: dict[str, Any] = {
        "lr": optuna.distributions.FloatDistribution(1e-4, 3e-2, log=True),
        "dropout": optuna.distributions.FloatDistribution(0.0, 0.5, step=0.1),
        "factor": optuna.distributions.CategoricalDistribution(FACTORS),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optuna's own, of what is experimental in it
        sampler = optuna.samplers.TPESampler(seed=len(tried), n_startup_trials=WAVE)
        study = optuna.create_study(sampler=sampler)
        for choice, value in tried:
            state = optuna.trial.TrialState.FAIL if value is None else optuna.trial.TrialState.COMPLETE
            study.add_trial(
                optuna.trial.create_trial(state=state, params=vars(choice), distributions=space, value=value)
            )
        asked = [study.ask(space).params for _ in range(count)]
    return [Choice(round(a["lr"], 6), round(a["dropout"], 1), a["factor"]) for a in asked]
