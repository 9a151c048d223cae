"""The shapes of the speed targets, timed and kept: python benchmarks/speed.py [--quick]."""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

import torch

from seqloom.lab import console
from seqloom.lab.bench import race
from seqloom.lab.bench.settings import BenchSettings
from seqloom.lab.cell_names import find_cells

FULL = dict(hidden=(64, 128, 256, 512, 1024), batch=(1, 8, 32, 64), threads=(1, 2), length=64)
QUICK = dict(hidden=(64, 256), batch=(1, 32), threads=(1, 2), length=64, rounds=2)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--quick", action="store_true", help="two hidden sizes, two batches, two rounds")
    flags.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    flags.add_argument("--dtype", default="float32")
    given = flags.parse_args()
    settings = BenchSettings(device=given.device, dtype=given.dtype, **(QUICK if given.quick else FULL))
    found = []
    with console.show_progress(len(race.list_shapes(settings))) as (before, after):
        for row in race.time_layers(settings, find_cells(settings.cells), before):
            found.append(row)
            after(str(row))
    kind = torch.cuda.get_device_name() if given.device == "cuda" else torch.backends.cpu.get_cpu_capability()
    name = f"{datetime.now(UTC):%Y-%m-%d}-{kind.split()[-1].lower()}-speed{'-quick' * given.quick}.json"
    file = Path(__file__).parent / "results" / name
    file.write_text(json.dumps(race.build_document(settings, found), indent=1) + "\n")
    print(file)


if __name__ == "__main__":
    main()
