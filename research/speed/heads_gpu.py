"""Time block-diagonal recurrent layers on a GPU: python -m research heads_gpu [--cells LSTM] [--json F].

A GRU with 8 heads of 64 units (16 rows, 512 steps; TorchRL published 28 / 63 ms for its block-GRU on a GB200) and an
LSTM with 12 heads of 64 (16 rows, 1,024 steps; FlashRNN published 2.0 / 8.6 ms on an H100), in bfloat16, forward and
both passes. Beside them the same layer without heads, every head by its own launch, and torch.nn's. Before a time is
taken, outputs and gradients are compared with the loop in float32. Times are medians by CUDA events, in ms.
"""

import copy
from functools import partial

import torch

import seqloom
from research.record import build_parser, print_row, write_record
from research.speed.odd_sizes import run_both, run_forward, time_in_turns

CASES = (("LSTM", 768, 12, 16, 1024), ("GRU", 512, 8, 16, 512), ("GRU", 512, 8, 64, 512), ("GRU", 1024, 8, 16, 512))


def compare_with_loop(layer: torch.nn.Module, x: torch.Tensor) -> float:
    """Return the largest relative error of outputs and gradients over 32 steps."""
    results = []
    for one, dtype in ((layer, torch.bfloat16), (copy.deepcopy(layer).float(), torch.float32)):
        one.kernel = layer.kernel if dtype == torch.bfloat16 else "loop"
        part = x[:32].detach().to(dtype).requires_grad_()
        y, _ = one(part)
        gradients = torch.autograd.grad(y.float().sin().sum(), [part, *one.parameters()])
        results.append([t.detach().float() for t in (y, *gradients)])
    return max(float((a - b).norm() / b.norm()) for a, b in zip(*results, strict=True))


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--cells", nargs="*", default=["LSTM", "GRU"])
    parser.add_argument("--rounds", type=int, default=10, help="turns of each layer; the median is taken")
    args = parser.parse_args()
    rows = []
    for name, H, heads, B, T in (case for case in CASES if case[0] in args.cells):
        torch.manual_seed(0)
        kind = getattr(seqloom, name)
        layers = {
            "heads in one launch": kind(H, H, heads=heads),
            "a launch for each head": kind(H, H, heads=heads, kernel="each"),
            "without heads": kind(H, H),
            "torch.nn, without heads": getattr(torch.nn, name)(H, H),
        }
        layers = {label: layer.to("cuda", torch.bfloat16) for label, layer in layers.items()}
        x = torch.randn(T, B, H, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        error = compare_with_loop(layers["heads in one launch"], x)
        kernel = str(seqloom.explain(layers["heads in one launch"], x).kernels[0])
        for mode, run in (("forward", run_forward), ("both", run_both)):
            times = time_in_turns([partial(run, layer, x) for layer in layers.values()], args.rounds)
            for label, ms in zip(layers, times, strict=True):
                row = {"cell": name, "units": H, "heads": heads, "rows": B, "steps": T, "pass": mode, "layer": label}
                rows.append(row | {"ms": round(ms, 3), "kernel": kernel, "error": round(error, 5)})
                print_row(rows[-1])
            write_record(args.json, rows=rows)
