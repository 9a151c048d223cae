"""Time hidden sizes that are no whole tiles against the next multiple of 16: python -m research odd_sizes [--json F].

GRU, LSTM and AttnRNN with 100 and 300 units and with 112 and 304, on a GPU: 512 steps, 32 rows, input = hidden. The two
sides take turns; a ratio above 1 is what the odd size costs. Times are medians by CUDA events, in ms.
"""

import statistics
from collections.abc import Callable
from functools import partial

import torch

import seqloom
from research.record import build_parser, measure, print_row, write_record

PAIRS = ((100, 112), (300, 304))
STEPS, ROWS = 512, 32
WARM_CALLS = 12  # some launches are recorded after three calls


def time_in_turns(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """Return the median time of each call in ms; the calls take turns."""
    times: list[list[float]] = [[] for _ in calls]
    for i in range(rounds + WARM_CALLS):
        for call, own in zip(calls, times, strict=True):
            seconds = measure(call, device="cuda")
            if i >= WARM_CALLS:
                own.append(1e3 * seconds)
    return [statistics.median(own) for own in times]


def run_forward(layer: torch.nn.Module, x: torch.Tensor) -> None:
    """Run the layer without gradients."""
    with torch.no_grad():
        layer(x)


def run_both(layer: torch.nn.Module, x: torch.Tensor) -> None:
    """Run the layer and its backward pass."""
    layer(x)[0].backward(x.detach())


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--types", default="bfloat16,float32", help="names, separated by commas")
    parser.add_argument("--layers", default="GRU,LSTM,AttnRNN", help="names, separated by commas")
    args = parser.parse_args()
    rows = []
    for name in args.layers.split(","):
        for dtype in args.types.split(","):
            for pair in PAIRS:
                layers = [getattr(seqloom, name)(H, H).to("cuda", getattr(torch, dtype)) for H in pair]
                xs = [torch.randn(STEPS, ROWS, H, device="cuda", dtype=getattr(torch, dtype)) for H in pair]
                for x in xs:
                    x.requires_grad_()
                for mode, run in (("forward", run_forward), ("both", run_both)):
                    calls = [partial(run, layer, x) for layer, x in zip(layers, xs, strict=True)]
                    odd, even = time_in_turns(calls, args.rounds)
                    row = {"layer": name, "dtype": dtype, "H": pair[0], "against": pair[1], "mode": mode}
                    row |= {"odd_ms": round(odd, 3), "even_ms": round(even, 3), "ratio": round(odd / even, 3)}
                    print_row(row)
                    rows.append(row)
                    write_record(args.json, steps=STEPS, rows_of_a_batch=ROWS, rows=rows)
