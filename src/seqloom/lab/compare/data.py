"""A task, opened once in each process that works on it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from seqloom.lab.data.opening import reopen
from seqloom.lab.data.task import Batch, Task

ENDLESS = 16  # batches of a training split without end that a baseline learns from


def opened(source: Mapping[str, Any]) -> Task:
    """The data of a comparison, as its plan names them."""
    return _opened(json.dumps(source))


@lru_cache(maxsize=2)
def _opened(source: str) -> Task:
    return reopen(json.loads(source))


def some(task: Task, split: str, batch: int = 256) -> Iterator[Batch]:
    """All of a split, or as much of an endless one as is enough."""
    batches = task.batches(split, batch=batch)
    return islice(batches, ENDLESS) if task.splits[split].size is None else batches
