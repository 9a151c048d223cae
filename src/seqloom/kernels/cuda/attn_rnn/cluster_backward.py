"""AttnRNN back through a chunk of time where blocks share the units: what was inside by batched products, then back."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from seqloom.kernels.cuda.attn_rnn import block_backward
from seqloom.kernels.cuda.attn_rnn.block_code import Attend, Before, End, Gelu, Weights
from seqloom.kernels.cuda.attn_rnn.cluster_code import code_for
from seqloom.kernels.cuda.attn_rnn.parts import Plan
from seqloom.kernels.cuda.runtime import launch
from seqloom.kernels.cuda.runtime.launch import record

Reverse = record(
    "Reverse",
    [
        *(("w", Weights), "dy", "x", "keep", "mask", "q", "slope", "g", "n", "past", "attention", "deviation"),
        *("reset", "lengths", "du", "dq", "ds", "dg", "dn", "dh", "dstart"),
        *((name, ctypes.c_int) for name in ("B", "T", "from_", "steps")),
    ],
)


KINDS = {"before": Before, "attend": Attend, "gelu": Gelu, "reverse": Reverse}
ROOM, CHUNKS = 64 << 20, 8


def steps(u: Tensor) -> int:
    """How many make a chunk.

    A chunk costs the host a dozen launches, its planes cost memory. Less than ROOM bytes of them do not matter. Where
    all steps take more, an eighth of it is still less than what a layer holds anyway.
    """
    T, size = u.shape[1], u.element_size()
    whole = u.numel() * (13 * size + 4)  # 7 planes, 4 of gradients, q and g side by side, and the states in float32
    return -(-T // min(CHUNKS, -(-whole // ROOM)))


class Chunk(block_backward.Chunk):
    """The planes of a chunk: seen, aC, o, n, s, slope and g of all its steps, and their gradients."""

    code_for: Callable[..., Any] = staticmethod(code_for)

    def __init__(self, plan: Plan, steps: int, given: dict[str, Any], own: Any) -> None:
        u: Tensor = given["x"]
        B, _, H = u.shape
        super().__init__(plan.setting, B, steps, u, given)
        rows, whole = B * steps, torch.float32
        Wq, bq, Wo, self.bo, Wg, bg, scale, bias = own
        self.bqg, self.Wqg, self.Wo, self.Wgo = (
            torch.cat([bq, bg]),
            torch.cat([Wq, Wg[:, :H]]).t(),
            Wo.t(),
            Wg[:, H:].t(),
        )
        self.past, self.qg = u.new_empty(rows, H, dtype=whole), u.new_empty(rows, 2 * H)
        self.attention = u.new_empty(rows, plan.setting.heads, 4, dtype=whole)
        self.deviation = u.new_empty(rows, dtype=whole)
        self.turned = torch.cat([Wq, Wo, Wg], 1).t().contiguous()  # for the way back
        self.told = self._told(scale, bias)
        self.reverse = self.code_for(self.setting, "reverse", B, self.device)
        self._look(rows)

    def _told(self, scale: Tensor | None, bias: Tensor | None) -> dict[str, Any]:
        """What each kernel is told, but for where the chunk begins and how long it is."""
        H, inside, size = self.setting.hidden, self.planes, self.turned.element_size()
        known = self.given | inside | {"past": self.past, "attention": self.attention, "deviation": self.deviation}
        known |= {"q": self.qg, "scale": scale, "bias": bias, "gate": inside["g"]}
        known |= {"u": inside["o"], "s": inside["q"]}  # planes in which nothing else is yet
        tq, each = self.turned.data_ptr(), H * H * size
        known["w"] = launch.pointers(
            Weights, {"q": tq, "o": tq + each, "g": tq + 2 * each, "scale": scale, "bias": bias}
        )
        told = {name: launch.pointers(kind, known) for name, kind in KINDS.items()}
        return told | {"end": launch.pointers(End, known | {"g": self.qg.data_ptr() + H * size})}

    def _look(self, rows: int) -> None:
        """What products see of so many rows."""
        self.rows = rows
        self.seen, self.aC, self.o, self.s = (self.inside[i, :rows] for i in (0, 1, 2, 4))
        self.both = self.qg[:rows]
        self.gate = self.both[:, self.setting.hidden :]

    def _walk(self, begin: int, steps: int) -> None:
        told, rows = self.told, self.B * steps
        if rows != self.rows:
            self._look(rows)
        told["before"].from_ = told["reverse"].from_ = begin
        told["before"].steps = told["reverse"].steps = steps
        self._do("before")
        torch.addmm(self.bqg, self.seen, self.Wqg, out=self.both)
        self._do("attend")
        torch.addmm(self.bo, self.aC, self.Wo, out=self.s)
        self._do("gelu")
        self.gate.addmm_(self.o, self.Wgo)
        self._do("end")
        self.reverse.start(told["reverse"], self.B, self.device)

    def _do(self, name: str) -> None:
        self.setting.rows[name].launch(self.told[name], self.rows, self.device)
