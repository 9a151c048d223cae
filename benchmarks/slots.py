"""AttnRNN with slots: the CPU engine and the hand-written backward beside the loop, by the processor's time; on a GPU
the CUDA graph and the fused kernels beside them, by the clock.

    OMP_NUM_THREADS=1 python benchmarks/slots.py [--device cuda] [--dtype bfloat16] [--steps 64] [--json results.json]

All take turns in one process, and the fastest round of each counts.
"""

import argparse
import itertools
import shlex
import sys
import time
from pathlib import Path

import torch
from record import keep

from seqloom.cells import AttnRNNCell
from seqloom.core.job import ScanJob
from seqloom.kernels.registry import find_kernel

KERNELS = {
    "cpu": ("any_loop", "attn_rnn_manual", "attn_rnn_cpu"),
    "cuda": ("any_loop", "attn_rnn_manual", "attn_rnn_graph", "attn_rnn_slots"),
}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--device", choices=KERNELS, default="cpu")
    flags.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    flags.add_argument("--steps", type=int, default=64)
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--json", type=Path, help="a file for the result")
    given = flags.parse_args()
    torch.set_num_threads(1)
    rows = [measure(*shape, given) for shape in itertools.product((2, 4), (64, 128), (1, 32))]
    keep(given.json, shlex.join(["python", "benchmarks/slots.py", *sys.argv[1:]]), rows=rows)


def measure(slots: int, hidden: int, batch: int, given: argparse.Namespace) -> dict[str, float]:
    device, where = given.device, {"device": given.device, "dtype": getattr(torch, given.dtype)}
    cell, x = AttnRNNCell(hidden, hidden, slots=slots).to(**where), torch.randn(batch, given.steps, hidden, **where)
    kernels = [
        name for name in KERNELS[device] if find_kernel(name).code.why_not(cell, ScanJob(x, cell.start(x))) is None
    ]
    best: dict[str, float] = {}
    for _, name, back in itertools.product(range(given.rounds), kernels, (False, True)):
        began = now(device)
        with torch.set_grad_enabled(back):
            y, _last = find_kernel(name).code.run(cell, ScanJob(x, cell.start(x)))
        if back:
            y.sum().backward()
        key = f"{name}{' both passes' if back else ' forward'}"
        best[key] = min(best.get(key, float("inf")), 1e6 * (now(device) - began) / given.steps)
    ratios = {key: round(best[f"any_loop {key.split(' ', 1)[1]}"] / us, 2) for key, us in best.items()}
    print(f"{slots} slots, H={hidden}, B={batch}, times as fast as the loop:", ratios, flush=True)
    return {"slots": slots, "hidden": hidden, "batch": batch} | best


def now(device: str) -> float:
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
