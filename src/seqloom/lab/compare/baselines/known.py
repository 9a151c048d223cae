"""The baselines of each kind of task, and the job that fits one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from seqloom.lab.compare import rows
from seqloom.lab.compare.baselines import counted, linear, naive, said
from seqloom.lab.compare.data import opened
from seqloom.lab.compare.latency import timed
from seqloom.lab.data.task import Task, Tokens
from seqloom.lab.stats.metrics import compute_scores
from seqloom.lab.training.evaluate import finite_or_none
from seqloom.lab.training.for_task import ForTask

Maker = Callable[[Task], ForTask]
# They do not look at the input: to be as good as one of them is to have learned nothing.
BLIND = {"majority", "mean", "commonest tag", "commonest text", "token frequency", "token before"}


def baselines(task: Task) -> dict[str, Maker]:
    """By name, the simplest first."""
    text = isinstance(task.input, Tokens)
    linear_name = "TF-IDF + logistic regression" if text else "logistic regression"
    ridge_name = "TF-IDF + ridge" if text else "ridge"
    pairs: dict[str, Maker] = {"token before": counted.bigram} if counted.narrow(task) else {}
    of_token: dict[str, Maker] = {"tag of the token": counted.tag_of_token} if text else {}
    kinds: dict[str, dict[str, Maker]] = {
        "classify": {"majority": said.majority, linear_name: linear.logistic},
        "regress": {"mean": said.mean, ridge_name: linear.ridge},
        "tag": {"commonest tag": counted.commonest_tag, **of_token},
        "generate": {"token frequency": counted.unigram, **pairs},
        "translate": {"token frequency": counted.unigram, **pairs},
        "forecast": {
            "mean of the past": naive.mean_of_past,
            "repeat last": naive.repeat,
            "seasonal naive": naive.seasonal,
            "ridge": naive.ridge,
        },
        "transcribe": {"commonest text": said.commonest_text},
    }
    return kinds[task.kind]


def baseline(source: Mapping[str, Any], name: str, batch: int, folder: Path) -> dict[str, Any]:
    """Fit one, and leave what its test rows add up to in the folder."""
    task = opened(source)
    began = time.perf_counter()
    model = baselines(task)[name](task).eval()
    seconds = time.perf_counter() - began
    waited = timed(model, task)
    valid = compute_scores(rows.columns(model, task, "valid", batch)).values
    rows.save(folder, rows.columns(model, task, "test", batch))
    return {
        "parameters": int(model.model.size),
        "seconds": seconds,
        "latency": waited,
        "valid": {name: finite_or_none(value) for name, value in valid.items()},
    }
