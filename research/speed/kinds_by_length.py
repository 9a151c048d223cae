"""Time and memory of attention, linear and nonlinear recurrence against the length of the sequence.

    python -m research kinds_by_length --device cuda --json out.json
    python -m research kinds_by_length --device cpu --width 64 --lengths 256 512      (float32, one thread)

One layer of each, `--batch` sequences, forward and both passes, in bfloat16 on a GPU; the fastest of several calls, and
the most bytes that a call allocated above its inputs and weights (on a GPU).
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import seqloom
from research.record import Stopwatch, build_parser, describe_run, print_row
from seqloom.attention import Attention

HEADS = 8
MAX_SECONDS = 1.0  # a layer that takes longer at one length is not run at longer ones


@dataclass(frozen=True)
class Entry:
    """A layer: its kind, its name, its kernel, and how to make it for a width."""

    kind: str
    name: str
    kernel: str
    make: Callable[[int], nn.Module]


ENTRIES = (
    Entry("attention", "attention", "sdpa", lambda d: Attention(d, HEADS, causal=True)),
    Entry("linear", "gated_deltanet", "chunk", lambda d: seqloom.GatedDeltaNet(d, HEADS, kernel="chunk")),
    Entry("linear", "gated_deltanet", "fla", lambda d: seqloom.GatedDeltaNet(d, HEADS, kernel="fla")),
    Entry("linear", "mamba2", "chunk", lambda d: seqloom.Mamba2(d, HEADS, kernel="chunk")),
    Entry("linear", "mlstm", "chunk", lambda d: seqloom.MLSTM(d, HEADS, kernel="chunk")),
    Entry("nonlinear", "lstm", "auto", lambda d: seqloom.LSTM(d, d, batch_first=True)),
    Entry("nonlinear", "attn_rnn", "auto", lambda d: seqloom.AttnRNN(d, d, batch_first=True)),
)


def measure_rows(
    device: torch.device, width: int, batch: int, lengths: list[int], kernels: list[str]
) -> Iterator[dict[str, object]]:
    """Yield a row for each layer, length and pass."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for entry in (e for e in ENTRIES if not kernels or e.kernel in kernels):
        for T in lengths:
            row: dict[str, object] = {"kind": entry.kind, "layer": entry.name, "kernel": entry.kernel, "T": T}
            try:
                torch.manual_seed(0)
                layer = entry.make(width).to(device, dtype)
                x = torch.randn(batch, T, width, device=device, dtype=dtype)
                with torch.no_grad():
                    row["forward_ms"], row["forward_bytes"] = time_call(partial(run, layer, x, False), device)
                x.requires_grad_()
                row["both_ms"], row["both_bytes"] = time_call(partial(run, layer, x, True), device)
            except Exception as error:  # a missing package or too little memory: the others go on
                row["failed"] = f"{type(error).__name__}: {error}"[:300]
            layer = x = None  # type: ignore[assignment]
            if device.type == "cuda":
                torch.cuda.empty_cache()
            yield row
            if "failed" in row or float(row["both_ms"]) > 1e3 * MAX_SECONDS:  # type: ignore[arg-type]
                break


def run(layer: nn.Module, x: Tensor, backward: bool) -> None:
    """Call a layer, and compute all gradients of the sum of its outputs."""
    y, _ = layer(x)
    if backward:
        torch.autograd.grad(y.float().sum(), [x, *layer.parameters()], allow_unused=True)


def time_call(call: Callable[[], None], device: torch.device) -> tuple[float, float | None]:
    """Return the milliseconds of the fastest call and the most bytes that one allocated (None on a CPU)."""
    is_cuda = device.type == "cuda"
    call()
    call()
    gc.collect()
    held = 0
    if is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    times, begun = [], Stopwatch()
    while len(times) < 2 or (len(times) < 10 and begun.seconds < 0.5):
        start = Stopwatch()
        call()
        if is_cuda:
            torch.cuda.synchronize()
        times.append(1e3 * start.seconds)
    return min(times), torch.cuda.max_memory_allocated() - held if is_cuda else None


def main() -> None:
    """Measure, and write the rows so far after each of them."""
    parser = build_parser(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2_048, 8_192, 32_768])
    parser.add_argument("--kernels", nargs="*", default=[], help="these alone, such as chunk")
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    for row in measure_rows(torch.device(given.device), given.width, given.batch, given.lengths, given.kernels):
        rows.append(row)
        print_row(row)
        if given.json:
            settings = {"width": given.width, "batch": given.batch, "heads": HEADS}
            Path(given.json).write_text(
                json.dumps(describe_run(seed=0, settings=settings, rows=rows), indent=1) + "\n", encoding="utf-8"
            )
