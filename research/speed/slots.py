"""Time AttnRNN with slots against the loop.

On a CPU: the engine and the hand-written backward, by processor time. On a GPU also: the CUDA graph and the fused
kernels, by the clock.

    OMP_NUM_THREADS=1 python -m research slots [--device cuda] [--dtype bfloat16] [--steps 64] [--json results.json]

All take turns in one process, and the fastest round of each counts.
"""

import argparse
import itertools

import torch

from research.record import PROCESSOR, WALL, build_parser, write_record
from seqloom.cells import AttnRNNCell
from seqloom.core.job import ScanJob
from seqloom.kernels.registry import find_kernel

KERNELS = {
    "cpu": ("any_loop", "attn_rnn_manual", "attn_rnn_cpu"),
    "cuda": ("any_loop", "attn_rnn_manual", "attn_rnn_graph", "attn_rnn_slots"),
}


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--device", choices=KERNELS, default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure_row(*shape, args) for shape in itertools.product((2, 4), (64, 128), (1, 32))]
    write_record(args.json, rows=rows)


def measure_row(slots: int, hidden: int, batch: int, args: argparse.Namespace) -> dict[str, float]:
    device, where = args.device, {"device": args.device, "dtype": getattr(torch, args.dtype)}
    cell, x = AttnRNNCell(hidden, hidden, slots=slots).to(**where), torch.randn(batch, args.steps, hidden, **where)
    kernels = [
        name for name in KERNELS[device] if find_kernel(name).code.why_not(cell, ScanJob(x, cell.start(x))) is None
    ]
    best: dict[str, float] = {}
    for _, name, back in itertools.product(range(args.rounds), kernels, (False, True)):
        start = now(device)
        with torch.set_grad_enabled(back):
            y, _last = find_kernel(name).code.run(cell, ScanJob(x, cell.start(x)))
        if back:
            y.sum().backward()
        key = f"{name}{' both passes' if back else ' forward'}"
        best[key] = min(best.get(key, float("inf")), 1e6 * (now(device) - start) / args.steps)
    ratios = {key: round(best[f"any_loop {key.split(' ', 1)[1]}"] / us, 2) for key, us in best.items()}
    print(f"{slots} slots, H={hidden}, B={batch}, times as fast as the loop:", ratios, flush=True)
    return {"slots": slots, "hidden": hidden, "batch": batch} | best


def now(device: str) -> float:
    if device == "cpu":
        return PROCESSOR()
    torch.cuda.synchronize()
    return WALL()
