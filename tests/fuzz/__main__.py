"""Run many cases of every kind, and print a record."""

from __future__ import annotations

import argparse
import collections
import json
import math
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from fuzz.cases import Part, run
from seqloom.lab.training.run import versions
from seqloom.tools.doctor import hardware

FOLDERS = ("run_folders", "run_records", "forged_runs", "comparisons", "exported_folders")
KINDS = ("data_files", *FOLDERS, "layers", "cells")


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
    wrong = 0
    record = {
        "command": "python -W ignore -m fuzz " + " ".join(sys.argv[1:]),
        "seed": given.seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "versions": versions(),
        "kinds": {},
    }
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
        print(
            f"{kind}: {counts.total() + failed} cases, seed {given.seed}, {given.device}: {failed} wrong; "
            + ", ".join(f"{count} {name}" for name, count in counts.most_common())
            + f"; {time.perf_counter() - began:.0f} s, the slowest {max(r.slowest for r in results):.1f} s",
            flush=True,
        )
        wrong += failed
        record["kinds"][kind] = {
            "cases": counts.total() + failed,
            "wrong": failed,
            "outcomes": dict(counts.most_common()),
            "seconds": round(time.perf_counter() - began, 1),
        }
        if given.json:
            given.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
