"""Run some cases of one kind."""

from __future__ import annotations

import collections
import importlib
import os
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import torch

LONGEST = 300  # characters of a failure in the record


class Part(NamedTuple):
    """The cases of one process."""

    kind: str
    seed: int
    numbers: range
    seconds: float  # no case starts later
    device: str


class Result(NamedTuple):
    """What became of them."""

    counts: collections.Counter[str]
    failures: list[str]  # the seed's case, and the first line of what went wrong
    slowest: float


def run(part: Part) -> Result:
    """Run cases of one kind; those that went wrong are printed."""
    began = time.perf_counter()
    torch.set_num_threads(1)
    check = importlib.import_module(f"fuzz.{part.kind}").check
    settings = {"device": part.device} if part.kind == "cells" else {}
    counts, slowest, failures = collections.Counter[str](), 0.0, list[str]()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"SEQLOOM_CACHE": f"{folder}/cache", "SEQLOOM_STATE": f"{folder}/state"}
        for number in part.numbers:
            start = time.perf_counter()
            if start - began > part.seconds:
                break
            try:
                counts[check(random.Random(f"{part.kind} {part.seed} {number}"), Path(folder), **settings)] += 1
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                failures.append(f"case {number}: {(str(error).splitlines() or [type(error).__name__])[0][:LONGEST]}")
                text = "".join(traceback.format_exception(error))
                print(f"{part.kind}: seed {part.seed}, case {number}\n{text}", file=sys.stderr, flush=True)
            slowest = max(slowest, time.perf_counter() - start)
    return Result(counts, failures, slowest)
