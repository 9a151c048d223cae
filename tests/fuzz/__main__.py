"""Run many cases of every kind, and print a record."""

from __future__ import annotations

import argparse
import collections
import json
import math
import multiprocessing
import os
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from fuzz.cases import Part, run
from seqloom.lab.training.run import versions

KINDS = ("data_files", "run_folders", "run_records", "layers", "cells", "cache_files")


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--cases", type=int, default=1000, help="of each kind")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--kinds", default=",".join(KINDS))
    flags.add_argument("--jobs", type=int, default=1, help="processes")
    flags.add_argument("--seconds", type=float, default=math.inf, help="start no case of a kind after this time")
    flags.add_argument("--device", default="cpu", help="of random cells: cpu or cuda")
    flags.add_argument("--json", type=Path, help="a file for the record")
    given = flags.parse_args()
    wrong, kinds = 0, dict[str, Any]()
    for kind in given.kinds.split(","):
        began = time.perf_counter()
        parts = [
            Part(kind, given.seed, range(n, given.cases, given.jobs), given.seconds, given.device)
            for n in range(given.jobs)
        ]
        if given.jobs == 1:
            results = [run(part) for part in parts]
        else:
            with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
                results = list(pool.map(run, parts))
        counts = sum((r.counts for r in results), collections.Counter())
        failed = sum(r.wrong for r in results)
        seconds, slowest = time.perf_counter() - began, max(r.slowest for r in results)
        print(
            f"{kind}: {counts.total() + failed} cases, seed {given.seed}, {given.device}: {failed} wrong; "
            + ", ".join(f"{count} {name}" for name, count in counts.most_common())
            + f"; {seconds:.0f} s, the slowest {slowest:.1f} s",
            flush=True,
        )
        wrong += failed
        kinds[kind] = {
            "cases": counts.total() + failed,
            "wrong": failed,
            "outcomes": dict(sorted(counts.items())),
            "seconds": round(seconds, 1),
            "slowest": round(slowest, 1),
        }
        if given.json is not None:
            given.json.write_text(json.dumps(record(given, kinds), indent=1) + "\n")
    return int(wrong > 0)


def record(given: argparse.Namespace, kinds: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a run: settings, machine and results."""
    words = f"--cases {given.cases} --seed {given.seed} --kinds {given.kinds} --jobs {given.jobs}"
    return {
        "command": f"python -m fuzz {words} --device {given.device}",
        "date": time.strftime("%Y-%m-%d"),
        "seed": given.seed,
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": versions(),
        "kinds": kinds,
    }


if __name__ == "__main__":
    sys.exit(main())
