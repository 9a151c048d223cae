"""Time a ragged batch against as many real steps without padding: python -m research ragged_gpu [--json FILE].

AttnRNN in bfloat16 on a GPU. Lengths are uniform between a quarter of the longest and all of it; the other batch has as
many steps in fewer rows, all of full length. `ratio` is the time per real step, ragged over unpadded; target 1.1.
Ragged rows run in the given order and longest first (row_order.py in layers/recurrent/gpu); `auto` says which
of the two the layer uses.
"""

import statistics
from contextlib import nullcontext
from functools import partial
from itertools import product
from unittest import mock

import torch

import seqloom
from research.record import build_parser, print_row, write_record
from seqloom.layers.formats import read_input
from seqloom.layers.recurrent import layer as recurrent
from seqloom.tools import timing

LENGTH, HIDDEN, BATCH = 512, (128, 256, 512, 1_024), (64, 256)
ORDERS = {"own order": False, "longest first": True}


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    timing.ROUND = 0.02
    rows = [measure_row(*case, args.rounds) for case in product(HIDDEN, BATCH, (False, True))]
    write_record(args.json, length=LENGTH, rows=rows)


def measure_row(hidden: int, batch: int, back: bool, rounds: int) -> dict[str, object]:
    layer = seqloom.AttnRNN(hidden, hidden, batch_first=True, device="cuda", dtype=torch.bfloat16)
    noise = torch.Generator().manual_seed(0)
    lengths = torch.randint(LENGTH // 4, LENGTH + 1, (batch,), generator=noise)
    lengths[int(torch.randint(batch, (), generator=noise))] = LENGTH
    whole = round(int(lengths.sum()) / LENGTH)
    steps = {"unpadded": whole * LENGTH} | dict.fromkeys(ORDERS, int(lengths.sum()))
    full, ragged = (partial(call, layer, *draw_input(rows, hidden, back)) for rows in (whole, batch))
    lengths = lengths.cuda()
    runs = {"unpadded": full} | dict.fromkeys(ORDERS, partial(ragged, lengths=lengths))
    times_by_name: dict[str, list[float]] = {name: [] for name in runs}
    for _, name in product(range(rounds), runs):
        with (
            mock.patch.object(recurrent, "should_sort", lambda *_, sort=ORDERS[name]: sort)
            if name in ORDERS
            else nullcontext()
        ):
            times_by_name[name].append(timing.time_call(runs[name], "cuda"))
    ns = {name: 1e9 * statistics.median(times) / steps[name] for name, times in times_by_name.items()}
    x = draw_input(batch, hidden, back)[0]
    row: dict[str, object] = {
        "hidden": hidden,
        "batch": batch,
        "rows_unpadded": whole,
        "pass": ("forward", "both")[back],
    }
    row["kernels"] = {
        name: kernel(layer, rows, hidden, back) for name, rows in (("ragged", batch), ("unpadded", whole))
    }
    row["auto"] = list(ORDERS)[recurrent.should_sort(read_input(x, lengths, True, hidden), layer.cell_at(0), "auto")]
    row["ns_per_step"] = {name: round(t, 2) for name, t in ns.items()}
    row["ratio"] = {name: round(ns[name] / ns["unpadded"], 3) for name in ORDERS}
    print_row(row)
    return row


def draw_input(rows: int, hidden: int, back: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    x = torch.randn(rows, LENGTH, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=back)
    return x, torch.randn_like(x) if back else None


def kernel(layer: seqloom.Recurrent, rows: int, hidden: int, back: bool) -> str:
    with torch.set_grad_enabled(back):
        return seqloom.explain(layer, draw_input(rows, hidden, back)[0]).kernels[0]


def call(layer: torch.nn.Module, x: torch.Tensor, dy: torch.Tensor | None, lengths: torch.Tensor | None = None) -> None:
    with torch.set_grad_enabled(dy is not None):
        y = layer(x, lengths=lengths)[0]
    if dy is not None:
        torch.autograd.grad(y, [x, *layer.parameters()], dy)
