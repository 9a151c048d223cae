"""A unit of work and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

RESTARTS = 3  # maximum restarts of a job whose process or machine died


@dataclass(frozen=True)
class Job:
    """A function call that can run anywhere."""

    key: str  # a unique name, which is also the name of the job's folder
    function: str  # "module:name"; called with **settings and folder=Path, it returns a JSON-serialisable dict
    settings: dict[str, Any] = field(default_factory=dict)  # JSON-serialisable keyword arguments
    # The number of GPUs. With 2 or more the function is called in as many processes under torchrun, and the value of
    # the first one counts.
    gpus: float = 0


@dataclass(frozen=True)
class Result:
    """The return value of a job, or why it failed; `seconds` is the duration of its last attempt."""

    key: str
    value: dict[str, Any] | None
    failed: str = ""
    seconds: float = 0.0
