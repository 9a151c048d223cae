"""A gated cell back through time on a GPU, a chunk of steps after another, the last first.

A batched product computes what U h was in all steps of a chunk, a kernel walks back through them, and a batched product
makes the weight's gradient. Those of biases and scales are summed on the way, a row of the batch each.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqloom.kernels.cuda.gated.code import Setting
from seqloom.kernels.cuda.gated.grid import as_taken, code_for
from seqloom.kernels.cuda.runtime import launch
from seqloom.kernels.cuda.runtime.launch import record

CHUNK = 1 << 23  # numbers in one of a chunk's planes
PIECE = 256  # rows that are summed in one go
LIMIT = 1 << 22  # numbers in the sums of all pieces

Reverse = record(
    "Reverse",
    [
        *("weight", "bias", "scale", "scale_c", "bias_c", "dy", "x", "y", "c", "keep_0", "keep_1", "u", "spread"),
        *("first_0", "first_1", "start_0", "start_1", "mask", "reset", "lengths"),
        *("dx", "du", "ds_0", "ds_1", "dstart_0", "dstart_1", "dbias", "dscale", "dbias_c", "dscale_c"),
        *((name, ctypes.c_int) for name in ("B", "T", "from_", "steps")),
    ],
)


def go_back(setting: Setting, given: dict[str, Any], dlast: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients of x, the weights, the first states and the starts, in the order of the forward's arguments."""
    kind, H, x, weight = setting.kind, setting.hidden, given["x"], given["weight"]
    B, T, wide = x.shape
    steps = min(T, max(1, CHUNK // (B * H)))
    dx, turned = torch.empty_like(x), as_taken(setting, weight.view(kind.gates, H, H).transpose(1, 2))
    seen, u, du = x.new_empty(B * steps, H), x.new_empty(B * steps, wide), x.new_empty(B * steps, wide)
    ds = [d.to(torch.float32, memory_format=torch.contiguous_format, copy=True) for d in dlast]
    dstart = [None if given[f"start_{i}"] is None else torch.zeros_like(given["first_0"]) for i in range(kind.states)]
    sums = {"dbias": wide, "dscale": wide * kind.norm, "dbias_c": H * kind.memory, "dscale_c": H * kind.memory}
    found = {name: x.new_zeros(B, n, dtype=torch.float32) if n else None for name, n in sums.items()}
    known = given | found | {"dx": dx, "u": u, "du": du, "weight": turned, "B": B, "T": T}
    known |= {f"ds_{i}": d for i, d in enumerate(ds)} | {f"dstart_{i}": d for i, d in enumerate(dstart)}
    told: Any = launch.pointers(Reverse, known)
    code, dweight = code_for(setting, "reverse", B, x.device), None
    for begin in reversed(range(0, T, steps)):
        told.from_, told.steps = begin, min(steps, T - begin)
        rows = B * told.steps
        _before(seen[:rows].view(B, -1, H), given, begin)
        if kind.norm or given["bias"] is None:
            torch.mm(seen[:rows], weight.t(), out=u[:rows])
        else:
            torch.addmm(given["bias"], seen[:rows], weight.t(), out=u[:rows])
        code.start(told, B, x.device)
        more = _product(du[:rows], seen[:rows])
        dweight = more if dweight is None else dweight.add_(more)
    added = {name: None if t is None else t.sum(0) for name, t in found.items()}
    dbias = None if given["bias"] is None else added["dbias"]
    own = (dweight, dbias, added["dscale"], added["dscale_c"], added["dbias_c"])
    return [dx, *(None if t is None else t.to(x.dtype) for t in own), *ds, *dstart]


def _before(seen: Tensor, given: dict[str, Any], begin: int) -> None:
    """The states before some steps, as the products saw them."""
    steps, y, mask, reset = seen.shape[1], given["y"], given["mask"], given["reset"]
    seen[:, 0].copy_(given["first_0"] if begin == 0 else y[:, begin - 1])
    seen[:, 1:].copy_(y[:, begin : begin + steps - 1])
    if reset is not None:
        anew = reset[:, begin : begin + steps].unsqueeze(-1)
        torch.where(anew, given["start_0"].unsqueeze(1).to(seen.dtype), seen, out=seen)
    if mask is not None:
        seen.mul_(mask.unsqueeze(1))


def _product(d: Tensor, r: Tensor) -> Tensor:
    """d^T r in float32, in pieces of rows: there are many rows and few columns."""
    rows, wanted = len(d), max(1, min(len(d) // PIECE, LIMIT // (d.shape[1] * r.shape[1])))
    n = next(n for n in range(wanted, 0, -1) if rows % n == 0)
    d, r = d.view(n, rows // n, -1).transpose(1, 2), r.view(n, rows // n, -1)
    return (torch.bmm(d, r, out_dtype=torch.float32) if d.is_cuda else torch.bmm(d.float(), r.float())).sum(0)
