"""Time one token of a stream on one thread: python -m research stream [--hidden 128] [--json FILE].

One row, float32, inference mode, denormals flushed; the fastest of many short rounds counts.
"""

from collections.abc import Callable

import torch

import seqloom
from research.record import build_parser, print_row, time_best, write_record

TURNS, ROUNDS, STEPS = 10, 200, 40  # short rounds in turns, so that some run undisturbed


def streams(D: int, H: int) -> dict[str, Callable[[], object]]:
    """Return a function for each layer that reads one token, from the state after the first."""
    x, steps = torch.randn(1, D), {}
    for cell in ("rnn", "gru", "lstm", "attn_rnn", "ln_gru", "ln_lstm"):
        layer = seqloom.Recurrent(cell, D, H).eval()
        steps[f"seqloom {cell}.step"] = lambda step=layer.step, now=layer.step(x)[1]: step(x, now)
    gru, cell = torch.nn.GRU(D, H).eval(), torch.nn.GRUCell(D, H).eval()
    steps["torch.nn.GRU, T=1"] = lambda now=gru(x.unsqueeze(0))[1]: gru(x.unsqueeze(0), now)
    steps["torch.nn.GRUCell"] = lambda now=cell(x): cell(x, now)
    return steps


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--hidden", type=int, default=128)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows = []
    with torch.inference_mode():
        for D in (args.hidden, args.hidden // 2):
            best: dict[str, float] = {}
            for name, step in list(streams(D, args.hidden).items()) * TURNS:
                best[name] = min(best.get(name, float("inf")), time_best(step, STEPS, ROUNDS))
            for name, seconds in best.items():
                rows.append({"layer": name, "input": D, "us_per_token": round(1e6 * seconds, 2)})
                print_row(rows[-1])
    write_record(args.json, hidden=args.hidden, denormals="flushed", rows=rows)
