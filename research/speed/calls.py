"""Time small calls, where the cost of Python shows: python -m research calls [--rounds 12] [--json FILE].

Print the processor time of a forward without gradients, of one with them, and of a streaming step, in microseconds:
the least of several rounds, on one thread. To compare two versions, run it in turns with PYTHONPATH set to the src
folder of each.
"""

from collections.abc import Callable
from functools import partial

import torch

import seqloom
from research.record import PROCESSOR, build_parser, print_row, time_best, write_record

CALLS = 200  # in a round; ten times as many steps


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)

    def measure(call: Callable[[], object], calls: int = CALLS) -> float:
        return round(1e6 * time_best(call, calls, args.rounds, PROCESSOR), 1)

    x, rows = torch.randn(5, 2, 8), []
    for kind in (seqloom.GRU, seqloom.AttnRNN, seqloom.LSTM):
        layer = kind(8, 16)
        _, state = layer.step(x[0])
        row: dict[str, str | float] = {"layer": kind.__name__}
        with torch.no_grad():
            row["forward_us"] = measure(partial(layer, x))
            row["step_us"] = measure(partial(layer.step, x[0], state), 10 * CALLS)
        row["forward_with_gradients_us"] = measure(partial(layer, x))
        rows.append(row)
        print_row(row)
    write_record(args.json, rows=rows)
