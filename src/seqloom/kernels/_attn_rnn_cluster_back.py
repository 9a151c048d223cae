"""AttnRNN back through a chunk of time where blocks share the units: what was inside by batched products, then back."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from seqloom.kernels import _attn_rnn_back, _cuda
from seqloom.kernels._attn_rnn_back import BACK
from seqloom.kernels._attn_rnn_blocks import Attend, End, Gelu, Weights
from seqloom.kernels._attn_rnn_cluster_code import code_for
from seqloom.kernels._attn_rnn_parts import Plan
from seqloom.kernels._cuda import record

Reverse = record(
    "Reverse",
    [
        *(("w", Weights), "dy", "x", "keep", "mask", "q", "slope", "g", "n", "past", "attention", "deviation"),
        *("reset", "lengths", "du", "dq", "ds", "dg", "dn", "dh", "dstart"),
        *((name, ctypes.c_int) for name in ("B", "T", "from_", "steps")),
    ],
)


SMALL, LARGE = 1 << 18, 1 << 22  # numbers in one of a chunk's planes: fewer are not worth their launches
CHUNKS = 4  # of a sequence that is neither: their planes are half of what a layer holds anyway


def steps(B: int, T: int, H: int) -> int:
    """How many make a chunk."""
    wanted = -(-T // CHUNKS) * B * H
    return min(T, max(1, min(LARGE, max(SMALL, wanted)) // (B * H)))


class Chunk(_attn_rnn_back.Chunk):
    """The planes of a chunk: seen, aC, o, n, s, slope and g of all its steps, and their gradients."""

    code_for: Callable[..., Any] = staticmethod(code_for)

    def __init__(self, plan: Plan, steps: int, given: dict[str, Any], own: Any) -> None:
        u: Tensor = given["x"]
        B, _, H = u.shape
        super().__init__(plan.setting, B, steps, u, given)
        self.plan, rows = plan, B * steps
        Wq, bq, Wo, bo, Wg, bg, self.scale, self.bias = own
        self.Wqg, self.bqg, self.Wo, self.bo, self.Wgo = (
            torch.cat([Wq, Wg[:, :H]]),
            torch.cat([bq, bg]),
            Wo,
            bo,
            Wg[:, H:],
        )
        self.turned = [w.t().contiguous() for w in (Wq, Wo, Wg)]
        tq, to, tg, scale, bias = (None if w is None else w.data_ptr() for w in (*self.turned, self.scale, self.bias))
        self.w = Weights(tq, None, to, None, tg, None, scale, bias)
        whole: dict[str, Any] = {"dtype": torch.float32}
        self.past, self.qg = u.new_empty(rows, H, **whole), u.new_empty(rows, 2 * H)
        self.attention, self.deviation = u.new_empty(rows, plan.setting.heads, 4, **whole), u.new_empty(rows, **whole)

    def go_back(self, begin: int, steps: int) -> None:
        rows, setting = self.B * steps, self.setting
        if rows < self.back.shape[1]:
            self.inside[:3, rows:] = 0
            self.back[:, rows:] = 0
        seen, aC, o, n, s, slope, g = (plane[:rows] for plane in self.inside)
        past, qg = self.past[:rows], self.qg[:rows]
        u = self._begin(past, seen, begin, steps)
        torch.addmm(self.bqg, seen, self.Wqg.T, out=qg)
        self._do("attend", Attend, rows, {"q": qg, "u": u, "past": past, "aC": aC, "attention": self.attention})
        torch.addmm(self.bo, aC, self.Wo.T, out=s)
        self._do("gelu", Gelu, rows, {"s": s, "o": o, "slope": slope})
        gate = qg[:, setting.hidden :].addmm_(o, self.Wgo.T)
        end = {"g": gate, "o": o, "past": past, "scale": self.scale, "bias": self.bias}
        self._do("end", End, rows, end | {"gate": g, "n": n, "deviation": self.deviation})
        planes = dict(zip(BACK, self.back, strict=True)) | {
            "q": qg,
            "slope": slope,
            "g": g,
            "n": n if setting.norm else o,
        }
        found = {"past": past, "attention": self.attention, "deviation": self.deviation, "from_": begin, "steps": steps}
        arguments = _cuda.pointers(Reverse, self.given | planes | found | {"w": self.w})
        self.code_for(setting, "reverse", self.B, self.device).start(arguments, self.B, self.device)
        sums = self.told[-1]
        sums.rows, sums.first = rows, int(self.first)
        setting.sums.launch(sums, self.parts, self.device)
        self._add_products()
        self.first = False

    def _begin(self, past: Tensor, seen: Tensor, begin: int, steps: int) -> Tensor:
        """The states before the steps, as they were and as the products saw them; and the input of the chunk."""
        plan, given = self.plan, self.given
        y, u = given["y"], given["x"]
        now, H = slice(begin, begin + steps), u.shape[2]
        past, seen = past.view(self.B, steps, H), seen.view(self.B, steps, H)
        past[:, 0].copy_(given["h0"] if begin == 0 else y[:, begin - 1])
        past[:, 1:].copy_(y[:, begin : begin + steps - 1])
        if plan.reset is not None:
            torch.where(plan.reset[:, now].unsqueeze(-1), given["start"].unsqueeze(1), past, out=past)
        seen.copy_(past if plan.mask is None else past * plan.mask.unsqueeze(1))
        if plan.lengths is None:
            return u[:, now].contiguous()
        over = torch.arange(begin, begin + steps, device=u.device) >= plan.lengths.unsqueeze(1)
        return u[:, now].masked_fill(
            over.unsqueeze(-1), 0
        )  # what lies past a length may be anything, and 0 times NaN is NaN

    def _do(self, name: str, kind: type[ctypes.Structure], rows: int, given: dict[str, Any]) -> None:
        self.setting.rows[name].launch(_cuda.pointers(kind, given), rows, self.device)
