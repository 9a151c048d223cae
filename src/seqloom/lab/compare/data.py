"""The data of a comparison, opened once in each process that works on it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from seqloom.lab.data.registry import reopen
from seqloom.lab.data.task import Batch, Task

ENDLESS_BATCHES = 16  # batches of an endless split that a baseline is fitted to


def load_task(source: Mapping[str, Any]) -> Task:
    """Open the data that a comparison's source record names; the latest two tasks are cached."""
    return _load_task(json.dumps(source))


@lru_cache(maxsize=2)
def _load_task(source: str) -> Task:
    return reopen(json.loads(source))


def iterate_split(task: Task, split: str, batch: int = 256) -> Iterator[Batch]:
    """Iterate over a split once, or over ENDLESS_BATCHES batches of an endless one."""
    batches = task.batches(split, batch=batch)
    return islice(batches, ENDLESS_BATCHES) if task.splits[split].size is None else batches
