"""Run many cases of every kind, and print a record."""

from __future__ import annotations

import argparse
import collections
import importlib
import os
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

KINDS = ("data_files", "run_folders", "run_records", "layers")


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--cases", type=int, default=1000, help="of each kind")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--kinds", default=",".join(KINDS))
    given = flags.parse_args()
    torch.set_num_threads(1)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"SEQLOOM_CACHE": f"{folder}/cache", "SEQLOOM_STATE": f"{folder}/state"}
        for kind in given.kinds.split(","):
            wrong += run(kind, given.cases, given.seed, Path(folder))
    return int(wrong > 0)


def run(kind: str, cases: int, seed: int, work: Path) -> int:
    """Run the cases of one kind; return how many went wrong."""
    check = importlib.import_module(f"fuzz.{kind}").check
    results, began, slowest, wrong = collections.Counter(), time.perf_counter(), 0.0, 0
    for number in range(cases):
        start = time.perf_counter()
        try:
            results[check(random.Random(f"{kind} {seed} {number}"), work)] += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            wrong += 1
            print(f"{kind}: seed {seed}, case {number}", file=sys.stderr)
            traceback.print_exc()
        slowest = max(slowest, time.perf_counter() - start)
    told = ", ".join(f"{count} {name}" for name, count in results.most_common())
    print(
        f"{kind}: {cases} cases, seed {seed}: {wrong} wrong; {told}; "
        f"{time.perf_counter() - began:.0f} s, the slowest {slowest:.1f} s",
        flush=True,
    )
    return wrong


if __name__ == "__main__":
    sys.exit(main())
