"""A chunk of AttnRNN's steps on memory of its own, forward and back: what the CUDA graph of attn_rnn_graph records.

Time comes first here, (steps, B, ..), so that what a product takes lies together.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from seqloom.kernels.cuda.attn_rnn import block_code
from seqloom.kernels.cuda.attn_rnn.block_code import Setting
from seqloom.kernels.cuda.attn_rnn.parts import Plan
from seqloom.kernels.cuda.attn_rnn.weight_sums import pieces, sums
from seqloom.kernels.cuda.runtime import launch as _cuda


class Chunk:
    """What both ways have: weights, the input, and the noise."""

    def __init__(self, setting: Setting, B: int, steps: int, device: torch.device) -> None:
        self.setting, self.B, self.steps, self.device = setting, B, steps, device
        H, K = setting.hidden, steps
        self.Wqg, self.bqg, self.Wg = self._new(2 * H, H), self._new(2 * H), self._new(H, 2 * H)
        self.Wo, self.bo, self.scale, self.bias = self._new(H, H), self._new(H), self._new(H), self._new(H)
        self.u = self._new(K, B, H)
        self.mask = self._new(B, H) if setting.mask else None
        self.keep = self._new(K, B, H) if setting.keep else None
        self.reset = self._new(K + 1, B, dtype=torch.bool) if setting.reset else None
        self.start = self._new(B, H, dtype=torch.float32) if setting.reset else None
        self.left = self._new(B, dtype=torch.int32)

    def _new(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.zeros(shape, dtype=dtype or self.setting.dtype, device=self.device)

    def set_weights(self, own: Any, mask: Tensor | None, start: Tensor | None) -> None:
        Wq, bq, Wo, bo, Wg, bg, scale, bias = own
        H = self.setting.hidden
        pairs = [(self.Wqg[:H], Wq), (self.Wqg[H:], Wg[:, :H]), (self.Wg, Wg), (self.Wo, Wo)]
        pairs += [(self.bqg[:H], bq), (self.bqg[H:], bg), (self.bo, bo), (self.scale, scale), (self.bias, bias)]
        pairs += [(to, given) for to, given in ((self.mask, mask), (self.start, start)) if to is not None]
        for to, given in pairs:
            if given is not None:
                to.copy_(given)

    def take(self, plan: Plan, u: Tensor, left: Tensor, begin: int, n: int) -> None:
        """The input and the noise of steps begin..begin+n-1."""
        now = slice(begin, begin + n)
        self.u[:n].copy_(u[:, now].transpose(0, 1))
        self.left.copy_(left)
        for to, given in ((self.keep, plan.keep), (self.reset, plan.reset)):
            if to is not None and given is not None:
                to[:n].copy_(given[:, now].transpose(0, 1))

    def do(self, name: str, kind: type[ctypes.Structure], rows: int, given: dict[str, Any]) -> None:
        self.setting.rows[name].launch(_cuda.pointers(kind, given), rows, self.device)

    def at(self, t: Tensor | None, step: int) -> Tensor | None:
        return None if t is None else t[step]


class Onward(Chunk):
    """Forward: h goes in and comes out; y comes out."""

    def __init__(self, setting: Setting, B: int, steps: int, device: torch.device) -> None:
        super().__init__(setting, B, steps, device)
        H = setting.hidden
        self.h = self._new(B, H, dtype=torch.float32)
        self.past, self.seen = self._new(B, H, dtype=torch.float32), self._new(B, H)
        self.qg, self.aC, self.s, self.o = self._new(B, 2 * H), self._new(B, H), self._new(B, H), self._new(B, H)
        self.y = self._new(steps, B, H)

    def launch(self) -> None:
        H, B = self.setting.hidden, self.B
        g = self.qg[:, H:]
        attend = {"q": self.qg, "past": self.past, "aC": self.aC}
        end = {"g": g, "o": self.o, "scale": self.scale, "bias": self.bias, "past": self.past, "h": self.h}
        self.do("begin", block_code.Begin, B, self._begin(0) | {"h": self.h})
        for t in range(self.steps):
            torch.addmm(self.bqg, self.seen, self.Wqg.T, out=self.qg)
            self.do("attend", block_code.Attend, B, attend | {"u": self.u[t]})
            torch.addmm(self.bo, self.aC, self.Wo.T, out=self.s)
            self.do("gelu", block_code.Gelu, B, {"s": self.s, "o": self.o})
            g.addmm_(self.o, self.Wg[:, H:].T)
            after = _cuda.pointers(block_code.Begin, self._begin(t + 1))
            self.do("end", block_code.End, B, end | {"keep": self.at(self.keep, t), "y": self.y[t], "next": after})

    def _begin(self, step: int) -> dict[str, Any]:
        where = {"past": self.past, "seen": self.seen, "left": self.left, "step": step}
        return where | {"start": self.start, "mask": self.mask, "reset": self.at(self.reset, step)}


class Back(Chunk):
    """Back: dh goes in and comes out; du comes out, and the weights' gradients are added up."""

    def __init__(self, setting: Setting, B: int, steps: int, device: torch.device) -> None:
        super().__init__(setting, B, steps, device)
        H, K = setting.hidden, steps
        whole: dict[str, Any] = {"dtype": torch.float32}
        self.past, self.dy, self.du = self._new(K, B, H, **whole), self._new(K, B, H), self._new(K, B, H)
        self.planes = self._new(4, K, B, H)  # seen, aC, o, n
        self.seen, self.aC, self.o, self.n = self.planes
        self.qg, self.s, self.slope, self.g = (self._new(K, B, m * H) for m in (2, 1, 1, 1))
        self.attention = self._new(K, B, setting.heads, 4, **whole)
        self.deviation = self._new(K, B, **whole)
        self.back = self._new(4, K, B, H)  # dq, ds, dg, dn
        self.dq, self.ds, self.dg, self.dn = self.back
        self.dh, self.dstart, self.acc, self.dz = (self._new(B, H, **whole) for _ in range(4))
        self.before, self.v, self.query = self._new(B, 2 * H), self._new(B, H), self._new(B, H)
        shapes = [(H, H), (H,), (H, H), (H,), (H, 2 * H), (H,), (H,), (H,)]
        self.gradients = [self._new(*shape, **whole) for shape in shapes]
        rows = K * B
        self.pieces = next(n for n in range(pieces(rows, H, setting.dtype), 0, -1) if rows % n == 0)

    def clear(self, dlast: Tensor) -> None:
        """Before the last chunk, which is the first to be gone through."""
        self.dh.copy_(dlast)
        for d in (*self.gradients, self.dstart):
            d.zero_()

    def take_back(self, h0: Tensor, y: Tensor, dy: Tensor, begin: int, n: int) -> None:
        """The states before the steps, as the forward kept them, and the gradient of its outputs."""
        self.dy[:n].copy_(dy[:, begin : begin + n].transpose(0, 1))
        self.past[0].copy_(h0 if begin == 0 else y[:, begin - 1])
        self.past[1:n].copy_(y[:, begin : begin + n - 1].transpose(0, 1))
        if self.reset is not None and self.start is not None:
            torch.where(self.reset[:-1].unsqueeze(-1), self.start, self.past, out=self.past)
        torch.mul(self.past, 1.0 if self.mask is None else self.mask, out=self.seen)
        over = (torch.arange(self.steps, device=self.device).unsqueeze(1) >= self.left).unsqueeze(-1)
        for plane in (self.u, self.past, self.seen):  # past a length lies anything, and 0 times NaN is NaN
            plane.masked_fill_(over, 0)

    def launch(self) -> None:
        rows, H = self.steps * self.B, self.setting.hidden
        self._inside(rows, H)
        for t in reversed(range(self.steps)):
            self._end(t)
            torch.mm(self.dg[t], self.Wg, out=self.before)
            gelu = {"before": self.before, "slope": self.slope[t], "dz": self.dz, "ds": self.ds[t]}
            self.do("back_gelu", block_code.BackGelu, self.B, gelu)
            torch.mm(self.ds[t], self.Wo, out=self.v)
            attend = {
                "v": self.v,
                "u": self.u[t],
                "q": self.qg[t],
                "past": self.past[t],
                "attention": self.attention[t],
            }
            attend |= {"acc": self.acc, "dq": self.dq[t], "du": self.du[t]}
            self.do("back_attend", block_code.BackAttend, self.B, attend)
            torch.mm(self.dq[t], self.Wqg[:H], out=self.query)
        self._end(-1)
        found = sums(self.back.view(4, rows, H), self.planes.view(4, rows, H), self.pieces)
        for d, now in zip(self.gradients, found, strict=True):
            d.add_(now)

    def _inside(self, rows: int, H: int) -> None:
        """All steps of the chunk at once."""
        qg, o = self.qg.view(rows, 2 * H), self.o.view(rows, H)
        g = qg[:, H:]
        torch.addmm(self.bqg, self.seen.view(rows, H), self.Wqg.T, out=qg)
        attend = {"q": qg, "u": self.u, "past": self.past, "aC": self.aC, "attention": self.attention}
        self.do("attend", block_code.Attend, rows, attend)
        torch.addmm(self.bo, self.aC.view(rows, H), self.Wo.T, out=self.s.view(rows, H))
        self.do("gelu", block_code.Gelu, rows, {"s": self.s, "o": self.o, "slope": self.slope})
        g.addmm_(o, self.Wg[:, H:].T)
        end = {"g": g, "o": self.o, "past": self.past, "scale": self.scale, "bias": self.bias}
        self.do("end", block_code.End, rows, end | {"gate": self.g, "n": self.n, "deviation": self.deviation})

    def _end(self, t: int) -> None:
        """Step t, or -1: nothing but the gradient of the state before the chunk."""
        given: dict[str, Any] = {} if t < 0 else {name: part[t] for name, part in self._parts().items()}
        given |= {"scale": self.scale, "bias": self.bias, "mask": self.mask, "left": self.left, "step": t}
        given |= {"dh": self.dh, "dstart": self.dstart, "acc": self.acc, "dz": self.dz}
        if t + 1 < self.steps:
            given |= {"before": self.before, "query": self.query, "reset": self.at(self.reset, t + 1)}
        self.do("back_end", block_code.BackEnd, self.B, given)

    def _parts(self) -> dict[str, Tensor]:
        """What a step back takes of its own step."""
        n = self.n if self.setting.norm else self.o
        parts = {"dy": self.dy, "g": self.g, "n": n, "past": self.past, "deviation": self.deviation}
        parts |= {"dg": self.dg, "dn": self.dn}
        return parts if self.keep is None else parts | {"keep": self.keep}
