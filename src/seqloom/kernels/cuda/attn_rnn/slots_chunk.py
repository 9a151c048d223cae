"""A chunk of AttnRNN's steps with slots, forward and back: plain torch on memory of its own, in float32 for every type.

To attn_rnn_graph these are what the chunks of _attn_rnn_chunks are: the same names, time first in what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqloom.core.job import ScanJob
from seqloom.kernels.cuda.attn_rnn import walk
from seqloom.kernels.cuda.attn_rnn.block_code import Setting
from seqloom.kernels.cuda.attn_rnn.parts import Plan


@dataclass(frozen=True)
class Kind:
    """The cell, as far as its equations go."""

    hidden_size: int
    heads: int
    context: tuple[str, ...]
    norm: bool
    slots: int


class Slots:
    """What both ways have: weights, the input, and the noise."""

    def __init__(self, setting: Setting, B: int, steps: int, device: torch.device, slots: int) -> None:
        H, K, self.steps, self.device = setting.hidden, steps, steps, device
        self.kind = Kind(H, setting.heads, setting.context, setting.norm, slots)
        shapes = [(H, H), (H,), (H, H), (H,), (H, 2 * H), (H,), (H,), (H,)]
        self.own = [self._new(*shape) for shape in shapes]
        self.u, self.h = self._new(B, K, H), self._new(B, slots, H)
        self.kept = self._new(B, K, slots, H)
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
        return self.own if self.kind.norm else [*self.own[:6], None, None]

    def set_weights(self, own: Any, mask: Tensor | None, start: Tensor | None) -> None:
        for to, given in zip((*self.own, self.job.mask, self.start), (*own, mask, start), strict=True):
            if to is not None and given is not None:
                to.copy_(given)

    def take(self, plan: Plan, u: Tensor, left: Tensor, begin: int, n: int) -> None:
        """The input and the noise of steps begin..begin+n-1."""
        now, lengths = slice(begin, begin + n), self.job.lengths
        assert lengths is not None
        lengths.copy_(left)
        pairs = [(self.u, u), (self.job.reset, plan.reset), *((k, plan.keep) for k in self.job.keep)]
        for to, given in pairs:
            if to is not None and given is not None:
                to[:, :n].copy_(given[:, now])
        self._clear(self.u)

    def _clear(self, t: Tensor) -> None:
        """What lies past a length may be anything, and 0 times NaN is NaN."""
        t.masked_fill_(~self.job.valid_steps()[(...,) + (None,) * (t.dim() - 2)], 0)


class SlotsOnward(Slots):
    """Forward: h goes in and comes out; y, here the states of all slots, comes out."""

    @property
    def y(self) -> Tensor:
        return self.kept.transpose(0, 1)

    def launch(self) -> None:
        with torch.autocast(self.device.type, enabled=False):
            kept, h = walk.forth(self.kind, self.job, self.start, self.u, self.h, self.weights)
        self.kept.copy_(kept)
        self.h.copy_(h)


class SlotsBack(Slots):
    """Back: dh goes in and comes out; du comes out, and the weights' gradients are added up."""

    def __init__(self, setting: Setting, B: int, steps: int, device: torch.device, slots: int) -> None:
        super().__init__(setting, B, steps, device, slots)
        self.dy, self.found = torch.zeros_like(self.u), torch.zeros_like(self.u)
        self.dh, self.dstart = torch.zeros_like(self.h), torch.zeros_like(self.h)
        self.gradients = [torch.zeros_like(w) for w in self.own]

    @property
    def du(self) -> Tensor:
        return self.found.transpose(0, 1)

    def clear(self, dlast: Tensor) -> None:
        """Before the last chunk, which is the first to be gone through."""
        self.dh.copy_(dlast)
        for d in (*self.gradients, self.dstart):
            d.zero_()

    def take_back(self, h0: Tensor, kept: Tensor, dy: Tensor, begin: int, n: int) -> None:
        """The state before the chunk and those after its steps, and the gradient of the outputs."""
        self.dy[:, :n].copy_(dy[:, begin : begin + n])
        self.h.copy_(h0 if begin == 0 else kept[:, begin - 1])
        self.kept[:, :n].copy_(kept[:, begin : begin + n])
        self._clear(self.kept)

    def launch(self) -> None:
        inputs, grads = (self.start, self.u, self.h), (self.dy, self.dh)
        with torch.autocast(self.device.type, enabled=False):
            begun, du, dh, *weights = walk.back(self.kind, self.job, inputs, self.kept, grads, self.weights)
        pairs = [(self.dstart, begun), *zip(self.gradients, weights, strict=True)]
        for to, d in pairs:
            if d is not None:
                to.add_(d)
        assert du is not None and dh is not None
        self.found.copy_(du)
        self.dh.copy_(dh)
