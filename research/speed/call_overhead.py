"""Measure what a call of a layer costs over torch's own: python -m research call_overhead [--device cuda] [--json F].

For T = 1, 4, 16, 64 with 32 rows and H = 64 and 256 (input = hidden), time a forward pass without gradients and both
passes of nn.GRU, nn.LSTM and of our layers, and print ours minus torch's in microseconds; AttnRNN is compared with
nn.GRU. Then the time of `step` with one row and 128 units. The two sides of a comparison take turns, call by call, in
one process, so that other work on the machine slows both: the median and the 10 % quantile of all repetitions are
printed, and the median of the differences between neighbours. A second layer of torch's takes its turn, too: its
difference from the first, `control_us`, is chance. On a GPU a call ends when the GPU has finished.
`--profile` prints where the time of a call goes instead.
"""

import cProfile
import gc
import io
import pstats
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import seqloom
from research.record import Stopwatch, build_parser, print_row, write_record

LAYERS: dict[str, tuple[Any, Any]] = {
    "GRU": (seqloom.GRU, nn.GRU),
    "LSTM": (seqloom.LSTM, nn.LSTM),
    "AttnRNN": (seqloom.AttnRNN, nn.GRU),
}
STEPS, HIDDEN, ROWS = (1, 4, 16, 64), (64, 256), 32
STREAM_HIDDEN = 128

Call = Callable[[], object]


def forward(layer: nn.Module, x: Tensor) -> None:
    """Run the layer without gradients."""
    with torch.no_grad():
        layer(x)


def both(layer: nn.Module, parameters: list[nn.Parameter], x: Tensor, dy: Tensor) -> None:
    """Run the layer and its backward pass; the weights' gradients are replaced."""
    y, _ = layer(x)
    y.backward(dy)
    for p in parameters:
        p.grad = None


def time_in_turns(calls: list[Call], repetitions: int, wait: Call) -> list[list[float]]:
    """Return the microseconds of every repetition of each call; the calls take turns.

    Args:
        calls: What to time.
        repetitions: How often.
        wait: Waits until the device has finished.
    """
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(10):
        for call in calls:
            call()
    wait()
    gc.disable()
    pairs = list(zip(calls, times, strict=True))
    try:
        for r in range(repetitions):
            first = r % len(pairs)  # nobody is always after the same one
            for call, own in pairs[first:] + pairs[:first]:
                start = Stopwatch()
                call()
                wait()
                own.append(1e6 * start.seconds)
    finally:
        gc.enable()
    return times


def low(times: list[float]) -> float:
    """Return the 10 % quantile."""
    return sorted(times)[len(times) // 10]


def make_call(layer: nn.Module, mode: str, x: Tensor, dy: Tensor) -> Call:
    """Return a call of one mode."""
    return partial(forward, layer, x) if mode == "forward" else partial(both, layer, list(layer.parameters()), x, dy)


def compare(
    name: str, device: str, dtype: torch.dtype, lengths: list[int], repetitions: int, wait: Call
) -> list[dict[str, Any]]:
    """Return the rows of one layer: ours minus torch's, by length, size and mode.

    A second layer of torch's takes part: what it takes longer than the first, the control, is chance.
    """
    ours, theirs = LAYERS[name]
    rows = []
    for H in HIDDEN:
        layers = [kind(H, H).to(device, dtype) for kind in (ours, theirs, theirs)]
        for T in lengths:
            x, dy = (torch.randn(T, ROWS, H, device=device, dtype=dtype) for _ in range(2))
            for mode in ("forward", "both"):
                mine, torchs, again = time_in_turns([make_call(k, mode, x, dy) for k in layers], repetitions, wait)
                row = {"layer": name, "H": H, "T": T, "mode": mode}
                row |= {"ours_us": round(low(mine), 1), "torch_us": round(low(torchs), 1)}
                row["over_us"] = round(row["ours_us"] - row["torch_us"], 1)
                row["control_us"] = round(low(again) - row["torch_us"], 1)
                row["over_median_us"] = round(statistics.median(mine) - statistics.median(torchs), 1)
                row["over_in_turns_us"] = round(statistics.median(a - b for a, b in zip(mine, torchs, strict=True)), 1)
                rows.append(row)
                print_row(row)
    return rows


def time_steps(name: str, device: str, repetitions: int, wait: Call) -> dict[str, Any]:
    """Return the microseconds of `step` and of a forward over one step, with one row and without gradients."""
    layer = LAYERS[name][0](STREAM_HIDDEN, STREAM_HIDDEN).to(device)
    x = torch.randn(1, STREAM_HIDDEN, device=device)
    with torch.no_grad():
        _, state = layer.step(x)
        calls = [partial(layer.step, x, state), partial(layer, x.unsqueeze(0), state)]
        step, one = time_in_turns(calls, 10 * repetitions, wait)
    row = {"layer": name, "step_us": round(low(step), 1), "step_median_us": round(statistics.median(step), 1)}
    row |= {"forward_of_one_us": round(low(one), 1), "forward_of_one_median_us": round(statistics.median(one), 1)}
    print_row(row)
    return row


def profile(name: str, device: str, dtype: torch.dtype, wait: Call) -> None:
    """Print the functions in which calls with 64 units and 16 steps spend their time."""
    for kind in LAYERS[name]:
        layer = kind(64, 64).to(device, dtype)
        x, dy = (torch.randn(16, ROWS, 64, device=device, dtype=dtype) for _ in range(2))
        for mode in ("forward", "both"):
            call = make_call(layer, mode, x, dy)
            time_in_turns([call], 10, wait)
            python = cProfile.Profile()
            with python:
                for _ in range(200):
                    call()
            wait()
            text = io.StringIO()
            pstats.Stats(python, stream=text).sort_stats("tottime").print_stats(40)
            print(f"== {kind.__module__}.{kind.__name__} {mode}: 200 calls\n{text.getvalue()}", flush=True)
            with torch.profiler.profile() as operators:
                for _ in range(20):
                    call()
                wait()
            print(operators.key_averages().table(sort_by="self_cpu_time_total", row_limit=40), flush=True)


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--layers", default=",".join(LAYERS), help="names, separated by commas")
    parser.add_argument("--lengths", default=",".join(map(str, STEPS)), help="steps, separated by commas")
    parser.add_argument("--repetitions", type=int, default=300)
    parser.add_argument("--profile", action="store_true", help="print profiles of calls and measure nothing else")
    args = parser.parse_args()
    torch.set_num_threads(1)
    wait: Call = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    dtype, names = getattr(torch, args.dtype), args.layers.split(",")
    if args.profile:
        for name in names:
            profile(name, args.device, dtype, wait)
        return
    lengths = [int(T) for T in args.lengths.split(",") if T]
    settings = {"device": args.device, "dtype": args.dtype, "rows": ROWS, "repetitions": args.repetitions}
    rows: list[dict[str, Any]] = []
    for name in names:
        rows += compare(name, args.device, dtype, lengths, args.repetitions, wait)
        write_record(args.json, settings=settings, calls=rows)
    steps = [time_steps(name, args.device, args.repetitions, wait) for name in names]
    write_record(args.json, settings=settings, calls=rows, steps=steps)
