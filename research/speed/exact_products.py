"""Time exact float32 products in halves of fp16 against torch's: python -m research exact_products [--json FILE].

The products around a GRU over 512 steps: of the input, and of the gradient of a weight. Microseconds by CUDA events,
the fastest of some rounds, and the distance from float64 over that of torch's product. `--forms` are the kernel's
settings: columns of a warp / 8, stages, blocks at once; or wgmma.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from research.record import build_parser, measure, print_row, write_record
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.products import exact

SEED = 0


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--shapes", default="512x64,256x256,256x64,1024x64", help="units x rows")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--forms", default=f"{exact.WIDE}/{exact.STAGES}/{exact.AT_ONCE}")
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(SEED)
    rows: list[dict[str, Any]] = []
    for shape in args.shapes.split(","):
        units, batch = map(int, shape.split("x"))
        x = torch.randn(args.length * batch, units, device="cuda")
        weight, d = (
            torch.randn(3 * units, units, device="cuda") / units**0.5,
            torch.randn(len(x), 3 * units, device="cuda"),
        )
        parts = [exact.split(t) for t in (x, weight, d)]
        calls: dict[str, tuple[str, Callable[[], Tensor]]] = {
            "split x": ("", lambda x=x: exact.split(x).units),
            "split d": ("", lambda d=d: exact.split(d).units),
            "x w^T, torch": ("", lambda x=x, w=weight: x.mm(w.t())),
            "d^T x, torch": ("", lambda x=x, d=d: d.t().mm(x)),
        }
        for form in args.forms.split(","):
            calls[f"x w^T, {form}"] = (form, lambda p=parts: exact.multiply(p[0], p[1]))
            calls[f"d^T x, {form}"] = (form, lambda p=parts: exact.multiply_transposed(p[2], p[0]))
        true = {"x w^T": x[:4096].double().mm(weight.double().t()), "d^T x": d.double().t().mm(x.double())}
        for name, (form, call) in calls.items():
            if form:
                set_form(form)
            us = min(time_call(call) for _ in range(args.rounds))
            row: dict[str, Any] = {"units": units, "rows": batch, "what": name, "us": round(us, 1)}
            if name[:5] in true:
                exactly = true[name[:5]]
                row["tflops"] = round(6 * len(x) * units**2 / us / 1e6, 1)
                row["distance"] = float((call()[: len(exactly)].double() - exactly).norm() / exactly.norm())
            print_row(row)
            rows.append(row)
            write_record(args.json, length=args.length, seed=SEED, rows=rows)


def set_form(text: str) -> None:
    heuristics.EXACT_WGMMA_DEPTH = 0 if text == "wgmma" else 1 << 40
    if text == "wgmma":
        return
    exact.WIDE, exact.STAGES, exact.AT_ONCE = map(int, text.split("/"))
    exact._multiply_code.cache_clear()
    exact.choose_depth.cache_clear()


def time_call(call: Callable[[], object]) -> float:
    """Return the microseconds of a call, after one to warm up."""
    call()
    return 1e6 * measure(call, 2, "cuda")
