"""Run many cases of every kind, and print a record."""

from __future__ import annotations

import argparse
import collections
import json
import math
import multiprocessing
import shlex
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from fuzz.cases import Part, Result, run
from seqloom.tools.doctor import hardware, versions

FOLDERS = ("run_folders", "run_records", "forged_runs", "comparisons", "exported_folders")
KINDS = ("data_files", *FOLDERS, "layers", "cells", "cache_files")


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--cases", type=int, default=1000, help="of each kind")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--kinds", default=",".join(KINDS))
    flags.add_argument("--jobs", type=int, default=1, help="processes")
    flags.add_argument("--seconds", type=float, default=math.inf, help="start no case of a kind after this time")
    flags.add_argument("--device", default="cpu", help="of random cells: cpu or cuda")
    flags.add_argument("--json", type=Path, help="write the record to this file")
    given = flags.parse_args()
    kinds: dict[str, Any] = {}
    wrong = 0
    for kind in given.kinds.split(","):
        began = time.perf_counter()
        parts = [
            Part(kind, given.seed, range(n, given.cases, given.jobs), given.seconds, given.device)
            for n in range(given.jobs)
        ]
        # Processes that have not used polars or torch: those of data_files are forked. A GPU needs new ones.
        start = multiprocessing.get_context("fork" if given.device == "cpu" else "spawn")
        with ProcessPoolExecutor(given.jobs, start) as pool:
            results = list(pool.map(run, parts))
        kinds[kind] = summarize(results, time.perf_counter() - began)
        print(describe(kind, kinds[kind], given.seed, given.device), flush=True)
        wrong += kinds[kind]["wrong"]
        if given.json:
            given.json.write_text(json.dumps(make_record(given.seed, kinds), indent=1, ensure_ascii=False) + "\n")
    return int(wrong > 0)


def summarize(results: list[Result], seconds: float) -> dict[str, Any]:
    """Return the numbers of one kind: cases, those that went wrong, and how many had each outcome."""
    counts = sum((r.counts for r in results), collections.Counter[str]())
    failures = [failure for r in results for failure in r.failures]
    return {
        "cases": counts.total() + len(failures),
        "wrong": len(failures),
        "outcomes": dict(sorted(counts.items())),
        "failures": sorted(failures),
        "seconds": round(seconds),
        "slowest_s": round(max(r.slowest for r in results), 1),
    }


def describe(kind: str, numbers: dict[str, Any], seed: int, device: str) -> str:
    """Return the numbers of one kind as a line."""
    outcomes = collections.Counter(numbers["outcomes"]).most_common()
    return (
        f"{kind}: {numbers['cases']} cases, seed {seed}, {device}: {numbers['wrong']} wrong; "
        + ", ".join(f"{count} {name}" for name, count in outcomes)
        + f"; {numbers['seconds']} s, the slowest {numbers['slowest_s']} s"
    )


def make_record(seed: int, kinds: dict[str, Any]) -> dict[str, Any]:
    """Return what was run, where and when, and the numbers of each kind."""
    return {
        "command": shlex.join(["python", "-W", "ignore", "-m", "fuzz", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
        "versions": versions(),
        "seed": seed,
        "kinds": kinds,
    }


if __name__ == "__main__":
    sys.exit(main())
