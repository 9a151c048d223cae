"""Time directions and layers at once against in turn on a GPU: python -m research streams_gpu [--json FILE].

Bidirectional layers, and stacked ones over a long sequence (`streams.py` and `wavefront.py` of layers/recurrent/gpu),
in bfloat16. Each call runs eagerly and as a CUDA graph, without host time. All take turns; the median of the
rounds counts.
"""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product

import torch

import seqloom
from research.record import build_parser, print_row, write_record
from seqloom.layers.recurrent import layer as recurrent
from seqloom.layers.recurrent.gpu import streams
from seqloom.tools import timing

SHORT, LONG = 512, 2_048
CASES = [
    *((cell, 2, 1, hidden, batch, SHORT) for cell, hidden, batch in product(("attn_rnn", "gru"), (128, 256), (16, 64))),
    *((cell, 1, layers, 128, batch, LONG) for cell, layers, batch in product(("attn_rnn", "gru"), (2, 4), (16, 64))),
]


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    timing.ROUND = 0.02
    rows = [measure_row(*case, back, args.rounds) for case, back in product(CASES, (False, True))]
    write_record(args.json, rows=rows)


def measure_row(
    cell: str, ways: int, layers: int, hidden: int, batch: int, length: int, back: bool, rounds: int
) -> dict[str, object]:
    how = {"bidirectional": ways == 2, "batch_first": True, "device": "cuda", "dtype": torch.bfloat16}
    layer = seqloom.Recurrent(cell, hidden, hidden, layers, **how)
    x = torch.randn(batch, length, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=back)
    dy = torch.randn(batch, length, ways * hidden, device="cuda", dtype=torch.bfloat16)
    run, runs = partial(call, layer, x, dy if back else None), {}
    for at_once in (True, False):
        with order(at_once):
            run()  # kernels are compiled
            runs[at_once, "call"], runs[at_once, "graph"] = run, timing.capture_graph(run)
    times_by_run: dict[tuple[bool, str], list[float]] = {key: [] for key, each in runs.items() if each}
    for _, key in product(range(rounds), times_by_run):
        with order(key[0]):
            times_by_run[key].append(timing.time_call(runs[key], "cuda"))
    ms = {key: 1e3 * statistics.median(times) for key, times in times_by_run.items()}
    row: dict[str, object] = {"cell": cell, "ways": ways, "layers": layers, "hidden": hidden, "batch": batch}
    row |= {"length": length, "pass": "both" if back else "forward"}
    row |= {f"{kind}_{'at_once' if at_once else 'in_turn'}_ms": round(t, 4) for (at_once, kind), t in ms.items()}
    for kind in ("call", "graph"):
        if (True, kind) in ms and (False, kind) in ms:
            row[f"{kind}_times_as_fast"] = round(ms[False, kind] / ms[True, kind], 3)
    print_row(row)
    return row


def call(layer: torch.nn.Module, x: torch.Tensor, dy: torch.Tensor | None) -> None:
    with torch.set_grad_enabled(dy is not None):
        y = layer(x)[0]
    if dy is not None:
        torch.autograd.grad(y, [x, *layer.parameters()], dy)


@contextmanager
def order(at_once: bool) -> Iterator[None]:
    """Run everything at once, also gated cells, which otherwise stay on one stream at these lengths; or in turn."""
    before = streams.can_use_streams, recurrent.should_use_wavefront, streams.MIN_STEPS
    streams.MIN_STEPS = {"attn_rnn": 1, "gru": 1}
    if not at_once:
        streams.can_use_streams = recurrent.should_use_wavefront = lambda *_: False
    try:
        yield
    finally:
        streams.can_use_streams, recurrent.should_use_wavefront, streams.MIN_STEPS = before
