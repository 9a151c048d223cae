"""AttnRNN's kernels on a GPU by the profiler's clock: python benchmarks/kernel_times.py [--json FILE].

Microseconds a step of the forward and of the reverse kernel, one layer in bfloat16: how two texts of a kernel are
compared.
"""

import argparse
import shlex
import sys
from pathlib import Path

import torch
from record import keep
from torch.profiler import ProfilerActivity, profile

import seqloom

LENGTH = 512
SHAPES = {
    "cluster": [(256, 16), (256, 64), (256, 256), (512, 16), (512, 64), (512, 256), (768, 16)],
    "grid": [(512, 64), (768, 16), (768, 64), (1024, 1), (1024, 16), (1024, 32), (1024, 64)],
}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--json", type=Path, help="a file for the result")
    given = flags.parse_args()
    rows = [measure(tier, hidden, batch) for tier, shapes in SHAPES.items() for hidden, batch in shapes]
    keep(given.json, shlex.join(["python", "benchmarks/kernel_times.py", *sys.argv[1:]]), length=LENGTH, rows=rows)


def measure(tier: str, hidden: int, batch: int) -> dict[str, object]:
    torch.manual_seed(0)
    how = {"batch_first": True, "kernel": tier, "device": "cuda", "dtype": torch.bfloat16}
    layer = seqloom.AttnRNN(hidden, hidden, **how)
    x = torch.randn(batch, LENGTH, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    layer(x)[0].sum().backward()  # compiled
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(2):
            layer(x)[0].sum().backward()
        torch.cuda.synchronize()
    row: dict[str, object] = {"tier": tier, "hidden": hidden, "batch": batch}
    for name in ("forward", "reverse"):
        spent = sum(e.self_device_time_total for e in seen.key_averages() if f"cluster_{name}" in e.key)
        row[f"{name}_us_per_step"] = round(spent / 2 / LENGTH, 3)
    print(*(f"{key} {value}" for key, value in row.items()), flush=True)
    return row


if __name__ == "__main__":
    main()
