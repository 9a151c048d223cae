"""Time compiled cells on a GPU against torch.nn.GRU and seqloom's GRU of the same size.

    python -m research compiled_gpu [--cells leaky,lem] [--types bfloat16,tf32] [--check] [--json FILE]

Microseconds per step, the fastest of several rounds between CUDA events. Before timing, each cell is compared with
the loop on a short sequence. --check stops after that: it fills the cache of compiled kernels, and several such
processes can run beside each other.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

import seqloom
from research.record import build_parser, print_row, time_best, write_record
from research.speed.published_cells import CELLS

HIDDEN, BATCHES, LENGTH, SHORT = (64, 128, 256, 512), (16, 64), 512, 24
NAMES = ("leaky", "mgu_gate_after", "mgu", "janet", "lem", "cornn", "slstm", "ln_lstm", "indrnn")
TYPES = ("bfloat16", "float16", "float32", "tf32")
OWN = "seqloom.GRU"
ROUNDS = 4
SEED = 0


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--cells", default=",".join(NAMES), help="names, separated by commas")
    parser.add_argument("--types", default=",".join(TYPES), help="names, separated by commas")
    parser.add_argument("--hidden", default=",".join(map(str, HIDDEN)), help="sizes, separated by commas")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)), help="sizes, separated by commas")
    parser.add_argument("--check", action="store_true", help="compare with the loop, and time nothing")
    args = parser.parse_args()
    rows = []
    for kind in args.types.split(","):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = kind == "tf32"
        for hidden in map(int, args.hidden.split(",")):
            for batch in map(int, args.batches.split(",")):
                rows += measure_rows(args.cells.split(","), kind, hidden, batch, args.check)
    write_record(args.json, seed=SEED, length=LENGTH, rounds=ROUNDS, rows=rows)


def measure_rows(names: list[str], kind: str, hidden: int, batch: int, only_check: bool) -> list[dict[str, object]]:
    """Return a row for each cell, torch.nn.GRU and seqloom's GRU first."""
    dtype = torch.float32 if kind == "tf32" else getattr(torch, kind)
    place = {"device": "cuda", "dtype": dtype}
    torch.manual_seed(SEED)
    x = torch.randn(LENGTH, batch, hidden, **place)
    layers: dict[str, nn.Module] = {"torch.nn.GRU": nn.GRU(hidden, hidden, **place)}
    layers[OWN] = seqloom.Recurrent("gru", hidden, hidden, **place)
    layers |= {n: seqloom.Recurrent(CELLS[n], hidden, hidden, kernel="compiled", **place) for n in names}
    rows, base = [], {}
    for name, layer in layers.items():
        row: dict[str, object] = {"cell": name, "dtype": kind, "hidden": hidden, "batch": batch}
        if name in names:
            row["error"] = compare(layer, x[:SHORT])
        if not only_check:
            forward, both = time_passes(layer, x)
            base.setdefault(name, (forward, both))
            row |= {"forward_us": forward, "both_us": both, "kernel": describe(layer, x)}
            row |= {f"of_{n}": round(both / base[n][1], 2) for n in ("torch.nn.GRU", OWN) if n in base}
        print_row(row)
        rows.append(row)
    return rows


def compare(layer: nn.Module, x: Tensor) -> str:
    """Return how far outputs and gradients are from float64, for the kernel and for the loop."""

    def differentiate(layer: nn.Module, x: Tensor) -> list[Tensor]:
        x = x.detach().clone().requires_grad_()
        y = layer(x)[0]
        grads = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
        return [t.detach().double() for t in (y, *grads)]

    loop = copy.deepcopy(layer)
    loop.kernel = "loop"
    try:
        mine = differentiate(layer, x)
        with torch.no_grad():
            mine.append(layer(x)[0].double())
    except Exception as error:  # the others are still measured
        return f"{type(error).__name__}: {error}"[:300]
    low, true = differentiate(loop, x), differentiate(loop.double(), x.double())
    low, true = [*low, low[0]], [*true, true[0]]
    errors = [max(float((a - b).norm() / b.norm()) for a, b in zip(some, true, strict=True)) for some in (mine, low)]
    return f"{errors[0]:.1e} ({errors[1]:.1e} loop)"


def describe(layer: nn.Module, x: Tensor) -> str:
    return seqloom.explain(layer, x).kernels[0] if isinstance(layer, seqloom.Recurrent) else "torch"


def time_passes(layer: nn.Module, x: Tensor) -> tuple[float, float]:
    """Return microseconds per step of the forward pass, and of both passes."""

    def run_forward() -> None:
        with torch.no_grad():
            layer(x)

    wanted = x.detach().clone().requires_grad_()

    def run_both() -> None:
        layer(wanted)[0].sum().backward()

    return time_steps(run_forward), time_steps(run_both)


def time_steps(call: Callable[[], None]) -> float:
    """Return the microseconds of a time step in the fastest round of two calls."""
    return round(1e6 * time_best(call, 2, ROUNDS, device="cuda") / LENGTH, 2)
