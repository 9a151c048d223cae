"""AttnRNN back through a chunk of time on a GPU, and the gradients of its weights, added up over the chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqloom.kernels import _cuda
from seqloom.kernels._attn_rnn_blocks import LARGEST, Finish, Inside, Reverse, Setting, Sums
from seqloom.kernels._attn_rnn_sums import pieces

BLOCKS = 528  # of sums: four a multiprocessor of the largest GPUs
INSIDE = ("seen", "aC", "o", "n", "q", "slope", "g")
BACK = ("dq", "ds", "dg", "dn")


class Chunk:
    """What is inside some steps, and its gradients: planes of (rows, H), padded to whole pieces.

    `given` are the other arguments of the kernels: what they are told is written once for all chunks.
    """

    def __init__(self, setting: Setting, B: int, steps: int, u: Tensor, given: dict[str, Any]) -> None:
        self.setting, self.B, self.device, self.given = setting, B, u.device, given  # kept: kernels get addresses
        H, rows = setting.hidden, B * steps
        self.pieces = pieces(rows, H, u.dtype)
        self.parts = max(1, min(BLOCKS, rows // 32))
        padded = -(-rows // self.pieces) * self.pieces
        self.inside, self.back = u.new_empty(7, padded, H), u.new_empty(4, padded, H)
        self.aux = u.new_empty(rows, setting.aux, dtype=torch.float32)
        self.products = u.new_empty(4 * self.pieces, H, H, dtype=torch.float32)
        wide = torch.float64 if u.dtype == torch.float32 else torch.float32
        self.partial = u.new_empty(self.parts, 5, H, dtype=wide)
        self.first = True
        planes = dict(zip(INSIDE, self.inside, strict=True)) | dict(zip(BACK, self.back, strict=True))
        if not setting.norm:
            planes["n"] = planes["o"]
        told = given | planes | {"aux": self.aux, "partial": self.partial}
        self.told: tuple[Any, ...] = tuple(_cuda.pointers(kind, told) for kind in (Inside, Reverse, Sums))

    def go_back(self, begin: int, steps: int) -> None:
        rows, setting = self.B * steps, self.setting
        if rows < self.back.shape[1]:
            self.inside[:3, rows:] = 0
            self.back[:, rows:] = 0
        inside, reverse, sums = self.told
        inside.from_ = reverse.from_ = begin
        inside.steps = reverse.steps = steps
        sums.rows, sums.first = rows, int(self.first)
        at_once = _cuda.multiprocessors(self.device) * max(1, LARGEST // setting.hidden)  # each loads the weights once
        setting.inside.launch(inside, min(at_once, -(-rows // (8 * setting.teams))), self.device)
        setting.reverse.launch(reverse, -(-self.B // 8), self.device)
        setting.sums.launch(sums, self.parts, self.device)
        self._add_products()
        self.first = False

    def _add_products(self) -> None:
        """dq, ds, dg with seen, aC, o, and dg with seen: sums of pieces, so that no sum is long."""
        n, H = self.pieces, self.setting.hidden
        back, inside = self.back.view(4 * n, -1, H), self.inside[:3].view(3 * n, -1, H)
        pairs = ((0, 3, slice(0, 3 * n), slice(0, 3 * n)), (3, 4, slice(2 * n, 3 * n), slice(0, n)))
        for begin, end, d, r in pairs:
            _add_product(self.products[begin * n : end * n], back[d].transpose(1, 2), inside[r], self.first)

    def gradients(self, own: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Those of the weights, in their type."""
        found = [None if w is None else torch.empty_like(w, memory_format=torch.contiguous_format) for w in own]
        names = ("q", "bias_q", "o", "bias_o", "g", "bias_g", "scale", "bias")
        sizes = {"pieces": self.pieces, "parts": self.parts}
        given = {"products": self.products, "partial": self.partial, **dict(zip(names, found, strict=True)), **sizes}
        self.setting.finish.launch(_cuda.pointers(Finish, given), 4 * self.setting.hidden + 5, self.device)
        return found


def _add_product(total: Tensor, d: Tensor, r: Tensor, first: bool) -> None:
    """total (+)= d r in float32."""
    if d.dtype == torch.float32:
        torch.bmm(d, r, out=total) if first else total.baddbmm_(d, r)
        return
    product = torch.bmm(d, r, out_dtype=torch.float32) if d.is_cuda else torch.bmm(d.float(), r.float())
    total.copy_(product) if first else total.add_(product)
