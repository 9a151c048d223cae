"""Time compiled cells against the loop, hand-written kernels and torch.nn.GRU on one thread of a CPU.

    OMP_NUM_THREADS=1 python -m research compiled_cells [--cells leaky,gru] [--rounds 7] [--note "..."] [--json FILE]

Kernels of one cell and shape (compiled, loop, the engine's own and what "auto" takes), and torch.nn.GRU, run in turns;
the round with the least processor time of each counts.
Only ratios within one run are comparable. Against the loop and the hand-written kernel a ratio compares the same work;
against torch.nn.GRU it does not unless the cell is a GRU: Leaky multiplies with a third of a GRU's weights, LEM with
four thirds.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn

import seqloom
from research.record import PROCESSOR, build_parser, measure, print_row, write_record
from research.speed.published_cells import CELLS
from seqloom.kernels.registry import list_kernels

HIDDEN, BATCHES, LENGTH = (64, 128, 256), (1, 32), 100
ROUND_SECONDS = 0.02  # a call that takes less is repeated within a round
SEED = 0
NAMES = ("leaky", "mgu", "lem", "rnn", "gru", "lstm", "ln_gru", "ln_lstm", "attn_rnn", "indrnn")


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--cells", default=",".join(NAMES), help="names, separated by commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--note", default="", help="what a reader must know about the machine")
    args = parser.parse_args()
    torch.set_num_threads(1)
    load, rows = os.getloadavg()[0], []
    for name in args.cells.split(","):
        for hidden in HIDDEN:
            for batch in BATCHES:
                rows += measure_cell(name, hidden, batch, args.rounds)
    settings = {"seed": SEED, "length": LENGTH, "threads": 1, "dtype": "float32", "rounds": args.rounds}
    settings |= {"clock": "processor time, least of the rounds", "note": args.note}
    settings |= {"load_at_start": round(load, 1), "load_at_end": round(os.getloadavg()[0], 1)}
    write_record(args.json, settings=settings, rows=rows)


def measure_cell(name: str, hidden: int, batch: int, rounds: int) -> list[dict[str, object]]:
    """Return one row for each kernel and pass of a cell, torch.nn.GRU first."""
    torch.manual_seed(SEED)
    x = torch.randn(LENGTH, batch, hidden, requires_grad=True)
    layers: dict[str, nn.Module] = {"torch.nn.GRU": nn.GRU(hidden, hidden)}
    best = seqloom.explain(seqloom.Recurrent(CELLS[name], hidden, hidden), x).kernels[0]
    by_hand = [kernel.name for kernel in list_kernels(name) if kernel.name in (best, f"{name}_cpu")]
    names = dict.fromkeys(["any_compiled", "any_loop", *by_hand])
    layers |= {kernel: seqloom.Recurrent(CELLS[name], hidden, hidden, kernel=kernel) for kernel in names}

    def run_forward(layer: nn.Module) -> None:
        with torch.no_grad():
            layer(x)

    def run_both(layer: nn.Module) -> None:
        layer(x)[0].sum().backward()

    rows = []
    for pass_name, call in (("forward", run_forward), ("forward+backward", run_both)):
        seconds = time_in_turns({kernel: partial(call, layer) for kernel, layer in layers.items()}, rounds)
        for kernel, spent in seconds.items():
            row = {"cell": name, "kernel": kernel, "hidden": hidden, "batch": batch, "length": LENGTH}
            row |= {"pass": pass_name, "us_per_step": round(1e6 * spent / LENGTH, 3)}
            row |= {"times_nn_gru": round(seconds["torch.nn.GRU"] / spent, 3)}
            rows.append(row)
            print_row(row)
    return rows


def time_in_turns(calls: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Return the processor seconds of one call of each, in the best of several rounds."""
    repeats, best = {}, {}
    for name, call in calls.items():
        call()  # compiles
        repeats[name] = max(1, round(ROUND_SECONDS / max(measure(call, clock=PROCESSOR), 1e-6)))
    for _ in range(rounds):
        for name, call in calls.items():
            spent = measure(call, repeats[name], clock=PROCESSOR)
            best[name] = min(spent, best.get(name, spent))
    return best
