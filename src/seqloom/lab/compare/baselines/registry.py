"""The baselines of each kind of task, and the job that fits one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from seqloom.lab.compare import row_scores
from seqloom.lab.compare.baselines import counts, linear, naive
from seqloom.lab.compare.data import load_task
from seqloom.lab.compare.timing import time_predictions
from seqloom.lab.data.task import Task, Tokens
from seqloom.lab.stats.metrics import compute_scores
from seqloom.lab.training.for_task import ForTask
from seqloom.lab.training.results import finite_or_none

Fit = Callable[[Task], ForTask]
# These use at most one token of the input: a model that is no better has learned nothing.
BLIND = {"majority", "mean", "most frequent tag", "most frequent text", "unigram", "bigram"}


def baselines(task: Task) -> dict[str, Fit]:
    """Return the baselines for a task by name, the simplest first."""
    text = isinstance(task.input, Tokens)
    logistic = "TF-IDF + logistic regression" if text else "logistic regression"
    ridge = "TF-IDF + ridge" if text else "ridge"
    bigram: dict[str, Fit] = {"bigram": counts.fit_bigram} if counts.can_fit_bigram(task) else {}
    tag_of_token: dict[str, Fit] = {"most frequent tag of each token": counts.fit_tag_of_token} if text else {}
    kinds: dict[str, dict[str, Fit]] = {
        "classify": {"majority": counts.fit_majority, logistic: linear.fit_logistic},
        "regress": {"mean": counts.fit_mean, ridge: linear.fit_ridge},
        "tag": {"most frequent tag": counts.fit_tag, **tag_of_token},
        "generate": {"unigram": counts.fit_unigram, **bigram},
        "translate": {"unigram": counts.fit_unigram, **bigram},
        "forecast": {
            "mean of the past": naive.fit_mean_of_past,
            "last value": naive.fit_last_value,
            "seasonal naive": naive.fit_seasonal,
            "ridge": naive.fit_ridge,
        },
        "transcribe": {"most frequent text": counts.fit_text},
    }
    return kinds[task.kind]


def fit_baseline(source: Mapping[str, Any], name: str, batch: int, folder: Path) -> dict[str, Any]:
    """Fit a baseline (a job), and store the scores of its test rows in the job's folder."""
    task = load_task(source)
    began = time.perf_counter()
    model = baselines(task)[name](task).eval()
    seconds = time.perf_counter() - began
    latency = time_predictions(model, task)
    valid = compute_scores(row_scores.score_rows(model, task, "valid", batch)).values
    row_scores.save(folder, row_scores.score_rows(model, task, "test", batch))
    return {
        "parameters": int(model.model.size),
        "seconds": seconds,
        "latency": latency,
        "valid": {name: finite_or_none(value) for name, value in valid.items()},
    }
