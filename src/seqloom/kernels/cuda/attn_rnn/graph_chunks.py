"""Chunks of AttnRNN's forward and backward steps on preallocated memory, which attn_rnn_graph records.

Time comes first in the planes, (steps, B, ..), so that the operands of a product are contiguous.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seqloom.core.job import ScanJob
from seqloom.kernels.attn_rnn_plain import Equations
from seqloom.kernels.autograd import Call
from seqloom.kernels.cuda.attn_rnn.backward import count_slices
from seqloom.kernels.cuda.attn_rnn.manual import run_backward, run_forward
from seqloom.kernels.cuda.attn_rnn.setting import AttnRNNSetting


class _GraphChunk:
    """Weights, input and noise of some steps."""

    def __init__(self, setting: AttnRNNSetting, B: int, steps: int, device: torch.device) -> None:
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

    def load(self, call: Call) -> None:
        """Copy what all chunks of a pass share: the weights, the mask and the state after a reset."""
        Wq, bq, Wo, bo, Wg, bg, scale, bias, *_ = call.weights
        H, start = self.setting.hidden, call.starts[0] if call.starts else None
        pairs = [(self.Wqg[:H], Wq), (self.Wqg[H:], Wg[:, :H]), (self.Wg, Wg), (self.Wo, Wo)]
        pairs += [(self.bqg[:H], bq), (self.bqg[H:], bg), (self.bo, bo), (self.scale, scale), (self.bias, bias)]
        pairs += [(to, source) for to, source in ((self.mask, call.mask), (self.start, start)) if to is not None]
        for to, source in pairs:
            if source is not None:
                to.copy_(source)

    def take(self, call: Call, left: Tensor, begin: int, n: int) -> None:
        """Copy the input and the noise of the steps begin .. begin + n - 1."""
        now, (keep,) = slice(begin, begin + n), call.keep or (None,)
        self.u[:n].copy_(call.x[:, now].transpose(0, 1))
        self.left.copy_(left)
        for to, source in ((self.keep, keep), (self.reset, call.reset)):
            if to is not None and source is not None:
                to[:n].copy_(source[:, now].transpose(0, 1))

    def _launch(self, name: str, rows: int, values: dict[str, Any]) -> None:
        code = self.setting.pointwise[name]
        code.launch(code.pack(values), rows, self.device)

    def _select(self, t: Tensor | None, step: int) -> Tensor | None:
        return None if t is None else t[step]


class ForwardChunk(_GraphChunk):
    """Forward pass of some steps: updates h and writes y."""

    def __init__(self, setting: AttnRNNSetting, B: int, steps: int, device: torch.device) -> None:
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
        self._launch("begin", B, self._begin(0) | {"h": self.h})
        for t in range(self.steps):
            torch.addmm(self.bqg, self.seen, self.Wqg.T, out=self.qg)
            self._launch("attend", B, attend | {"u": self.u[t]})
            torch.addmm(self.bo, self.aC, self.Wo.T, out=self.s)
            self._launch("gelu", B, {"s": self.s, "o": self.o})
            g.addmm_(self.o, self.Wg[:, H:].T)
            self._launch(
                "end", B, end | {"keep": self._select(self.keep, t), "y": self.y[t], "next": self._begin(t + 1)}
            )

    def _begin(self, step: int) -> dict[str, Any]:
        where = {"past": self.past, "seen": self.seen, "left": self.left, "step": step}
        return where | {"start": self.start, "mask": self.mask, "reset": self._select(self.reset, step)}


class BackwardChunk(_GraphChunk):
    """Backward pass of some steps: updates dh, writes du, accumulates the gradients of the weights."""

    def __init__(self, setting: AttnRNNSetting, B: int, steps: int, device: torch.device) -> None:
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
        self.slices = next(n for n in range(count_slices(rows, H, setting.dtype), 0, -1) if rows % n == 0)

    def clear(self, dlast: Tensor) -> None:
        """Begin with the last chunk."""
        self.dh.copy_(dlast)
        for d in (*self.gradients, self.dstart):
            d.zero_()

    def take_back(self, h0: Tensor, y: Tensor, dy: Tensor, begin: int, n: int) -> None:
        """Copy the states before the steps, as saved by the forward pass, and the gradient of the outputs."""
        self.dy[:n].copy_(dy[:, begin : begin + n].transpose(0, 1))
        self.past[0].copy_(h0 if begin == 0 else y[:, begin - 1])
        self.past[1:n].copy_(y[:, begin : begin + n - 1].transpose(0, 1))
        if self.reset is not None and self.start is not None:
            torch.where(self.reset[:-1].unsqueeze(-1), self.start, self.past, out=self.past)
        torch.mul(self.past, 1.0 if self.mask is None else self.mask, out=self.seen)
        over = (torch.arange(self.steps, device=self.device).unsqueeze(1) >= self.left).unsqueeze(-1)
        for plane in (self.u, self.past, self.seen):  # padding may hold any value, and 0 times NaN is NaN
            plane.masked_fill_(over, 0)

    def launch(self) -> None:
        rows, H = self.steps * self.B, self.setting.hidden
        self._inside(rows, H)
        for t in reversed(range(self.steps)):
            self._end(t)
            torch.mm(self.dg[t], self.Wg, out=self.before)
            gelu = {"before": self.before, "slope": self.slope[t], "dz": self.dz, "ds": self.ds[t]}
            self._launch("back_gelu", self.B, gelu)
            torch.mm(self.ds[t], self.Wo, out=self.v)
            attend = {
                "v": self.v,
                "u": self.u[t],
                "q": self.qg[t],
                "past": self.past[t],
                "attention": self.attention[t],
            }
            attend |= {"acc": self.acc, "dq": self.dq[t], "du": self.du[t]}
            self._launch("back_attend", self.B, attend)
            torch.mm(self.dq[t], self.Wqg[:H], out=self.query)
        self._end(-1)
        gradients = sum_gradients(self.back.view(4, rows, H), self.planes.view(4, rows, H), self.slices)
        for total, gradient in zip(self.gradients, gradients, strict=True):
            total.add_(gradient)

    def _inside(self, rows: int, H: int) -> None:
        """Compute the intermediates of all steps at once."""
        qg, o = self.qg.view(rows, 2 * H), self.o.view(rows, H)
        g = qg[:, H:]
        torch.addmm(self.bqg, self.seen.view(rows, H), self.Wqg.T, out=qg)
        attend = {"q": qg, "u": self.u, "past": self.past, "aC": self.aC, "attention": self.attention}
        self._launch("attend", rows, attend)
        torch.addmm(self.bo, self.aC.view(rows, H), self.Wo.T, out=self.s.view(rows, H))
        self._launch("gelu", rows, {"s": self.s, "o": self.o, "slope": self.slope})
        g.addmm_(o, self.Wg[:, H:].T)
        end = {"g": g, "o": self.o, "past": self.past, "scale": self.scale, "bias": self.bias}
        self._launch("end", rows, end | {"gate": self.g, "n": self.n, "deviation": self.deviation})

    def _end(self, t: int) -> None:
        """Run the last part of backward step t; t = -1 computes only the gradient of the state before the chunk."""
        values: dict[str, Any] = {} if t < 0 else {name: part[t] for name, part in self._parts().items()}
        values |= {"scale": self.scale, "bias": self.bias, "mask": self.mask, "left": self.left, "step": t}
        values |= {"dh": self.dh, "dstart": self.dstart, "acc": self.acc, "dz": self.dz}
        if t + 1 < self.steps:
            values |= {"before": self.before, "query": self.query, "reset": self._select(self.reset, t + 1)}
        self._launch("back_end", self.B, values)

    def _parts(self) -> dict[str, Tensor]:
        """Return the tensors (over all steps of a chunk) from which a backward step reads its own slice."""
        n = self.n if self.setting.norm else self.o
        parts = {"dy": self.dy, "g": self.g, "n": n, "past": self.past, "deviation": self.deviation}
        parts |= {"dg": self.dg, "dn": self.dn}
        return parts if self.keep is None else parts | {"keep": self.keep}


def sum_gradients(back: Tensor, planes: Tensor, n: int) -> tuple[Tensor, ...]:
    """Return the gradients of weight_q, bias_q, .. bias_n in float32, as sums of n split-K slices.

    Args:
        back: dq, ds, dg, dn, (4, rows, H).
        planes: seen, aC, o, n, (4, rows, H).
        n: Number of slices.
    """
    H = back.shape[-1]
    d, r = back.view(4, n, -1, H), planes.view(4, n, -1, H)
    dq, ds, dgo, dn = _multiply(d.flatten(0, 1), r.flatten(0, 1)).view(4, n, H, H).sum(1)
    dgh = _multiply(d[2], r[0]).sum(0)
    bq, bo, bg, bn = back.sum(1, dtype=torch.float32)
    return dq, bq, ds, bo, torch.cat([dgh, dgo], 1), bg, dn.diagonal(), bn


def _multiply(d: Tensor, r: Tensor) -> Tensor:
    """Multiply (n, rows, H) and (n, rows, M) to (n, H, M) in float32."""
    if d.is_cuda and d.dtype != torch.float32:
        return torch.bmm(d.transpose(1, 2), r, out_dtype=torch.float32)
    return torch.bmm(d.transpose(1, 2).float(), r.float())


class _SlotsChunk:
    """Weights, input and noise of some steps with slots: plain torch, in float32 for every type."""

    def __init__(self, setting: AttnRNNSetting, B: int, steps: int, device: torch.device) -> None:
        H, K, slots, self.steps, self.device = setting.hidden, steps, setting.slots, steps, device
        self.cell = Equations(H, setting.heads, setting.context, setting.norm, slots)
        shapes = [(H, H), (H,), (H, H), (H,), (H, 2 * H), (H,), (H,), (H,)]
        self.own = [self._new(*shape) for shape in shapes]
        self.u, self.h = self._new(B, K, H), self._new(B, slots, H)
        self.states = self._new(B, K, slots, H)
        self.start = self._new(B, slots, H) if setting.reset else None
        left = self._new(B, dtype=torch.int32)
        reset = self._new(B, K, dtype=torch.bool) if setting.reset else None
        mask = self._new(B, H) if setting.mask else None
        keep = (self._new(B, K, slots, H),) if setting.keep else ()
        self.job = ScanJob(self.u, (), left, reset, None, mask, keep)

    def _new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    @property
    def weights(self) -> list[Any]:
        return self.own if self.cell.norm else [*self.own[:6], None, None]

    def load(self, call: Call) -> None:
        """Copy what all chunks of a pass share: the weights, the mask and the state after a reset."""
        given = *call.weights[: len(self.own)], call.mask, call.starts[0] if call.starts else None
        for to, source in zip((*self.own, self.job.mask, self.start), given, strict=True):
            if to is not None and source is not None:
                to.copy_(source)

    def take(self, call: Call, left: Tensor, begin: int, n: int) -> None:
        """Copy the input and the noise of the steps begin .. begin + n - 1."""
        now, lengths = slice(begin, begin + n), self.job.lengths
        assert lengths is not None
        lengths.copy_(left)
        pairs = [(self.u, call.x), (self.job.reset, call.reset), *zip(self.job.keep, call.keep, strict=True)]
        for to, source in pairs:
            if to is not None and source is not None:
                to[:, :n].copy_(source[:, now])
        self._clear(self.u)

    def _clear(self, t: Tensor) -> None:
        """Write zeros past each length: the padding may hold any value, and 0 times NaN is NaN."""
        t.masked_fill_(~self.job.valid_steps()[(...,) + (None,) * (t.dim() - 2)], 0)


class SlotsForwardChunk(_SlotsChunk):
    """Run some steps of the forward pass: update h, and write the states of all slots to y."""

    @property
    def y(self) -> Tensor:
        return self.states.transpose(0, 1)

    def launch(self) -> None:
        with torch.autocast(self.device.type, enabled=False):
            states, h = run_forward(self.cell, self.job, self.start, self.u, self.h, self.weights)
        self.states.copy_(states)
        self.h.copy_(h)


class SlotsBackwardChunk(_SlotsChunk):
    """Backward pass of some steps: updates dh, writes du, accumulates the gradients of the weights."""

    def __init__(self, setting: AttnRNNSetting, B: int, steps: int, device: torch.device) -> None:
        super().__init__(setting, B, steps, device)
        self.dy, self.du_rows = torch.zeros_like(self.u), torch.zeros_like(self.u)
        self.dh, self.dstart = torch.zeros_like(self.h), torch.zeros_like(self.h)
        self.gradients = [torch.zeros_like(w) for w in self.own]

    @property
    def du(self) -> Tensor:
        return self.du_rows.transpose(0, 1)

    def clear(self, dlast: Tensor) -> None:
        """Begin with the last chunk."""
        self.dh.copy_(dlast)
        for d in (*self.gradients, self.dstart):
            d.zero_()

    def take_back(self, h0: Tensor, states: Tensor, dy: Tensor, begin: int, n: int) -> None:
        """Copy the state before the chunk, those after its steps, and the gradient of the outputs."""
        self.dy[:, :n].copy_(dy[:, begin : begin + n])
        self.h.copy_(h0 if begin == 0 else states[:, begin - 1])
        self.states[:, :n].copy_(states[:, begin : begin + n])
        self._clear(self.states)

    def launch(self) -> None:
        tensors, grads = (self.start, self.u, self.h), (self.dy, self.dh)
        with torch.autocast(self.device.type, enabled=False):
            dstart, du, dh, *gradients = run_backward(self.cell, self.job, tensors, self.states, grads, self.weights)
        pairs = [(self.dstart, dstart), *zip(self.gradients, gradients, strict=True)]
        for to, d in pairs:
            if d is not None:
                to.add_(d)
        assert du is not None and dh is not None
        self.du_rows.copy_(du)
        self.dh.copy_(dh)
