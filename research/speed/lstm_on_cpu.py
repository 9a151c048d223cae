"""Compare torch's LSTM on a CPU with ours, as "auto" chooses it and in the engine: python -m research lstm_on_cpu.

For each size (input = hidden, float32, equal lengths), forward without gradients and both passes: the three layers take
turns, call by call, and the 10 % quantile, the median and the median of page faults of a call are printed. What "auto"
leaves to oneDNN on x86 (SMALL_LSTM_HIDDEN and its neighbours in kernels/heuristics.py) was decided by it.
"""

import resource
import statistics
from functools import partial
from typing import Any

import torch
from torch import nn

import seqloom
from research.record import Stopwatch, build_parser, measure, print_row, write_record
from research.speed.call_overhead import both, forward, low

LEAST_ROUNDS, MOST_ROUNDS = 5, 300


def compare(H: int, B: int, T: int, layers: dict[str, nn.Module], seconds: float) -> list[dict[str, Any]]:
    """Return a row for each pass.

    Args:
        H: Input and hidden size.
        B: Rows.
        T: Steps.
        layers: The layers by name.
        seconds: How long to measure each pass.
    """
    x, dy = torch.randn(T, B, H), torch.randn(T, B, H)
    rows = []
    for mode in ("forward", "both"):
        calls = [
            partial(forward, layer, x) if mode == "forward" else partial(both, layer, list(layer.parameters()), x, dy)
            for layer in layers.values()
        ]
        times: list[list[float]] = [[] for _ in calls]
        faults: list[list[int]] = [[] for _ in calls]
        for call in 3 * calls:
            call()
        begun, r = Stopwatch(), 0
        while r < LEAST_ROUNDS or (r < MOST_ROUNDS and begun.seconds < seconds):
            for i in [(r + k) % len(calls) for k in range(len(calls))]:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                times[i].append(1e6 * measure(calls[i]))
                faults[i].append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
            r += 1
        row: dict[str, Any] = {"H": H, "B": B, "T": T, "mode": mode, "rounds": r}
        for name, own, pages in zip(layers, times, faults, strict=True):
            row[name] = [round(low(own), 1), round(statistics.median(own), 1), statistics.median(pages)]
        rows.append(row)
        print_row(row)
    return rows


def main() -> None:
    parser = build_parser(__doc__)
    for name, sizes in (("hidden", "64,128,200,256,384"), ("rows", "2,8,20,32,64"), ("lengths", "1,4,16,64")):
        parser.add_argument(f"--{name}", default=sizes, help="separated by commas")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.6, help="of each pass of each size")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    hidden, batches, lengths = ([int(v) for v in text.split(",")] for text in (args.hidden, args.rows, args.lengths))
    rows: list[dict[str, Any]] = []
    for H in hidden:
        layers = {"torch": nn.LSTM(H, H), "auto": seqloom.LSTM(H, H), "engine": seqloom.LSTM(H, H, kernel="cpu")}
        for B in batches:
            for T in lengths:
                rows += compare(H, B, T, layers, args.seconds)
                write_record(args.json, threads=args.threads, rows=rows)
