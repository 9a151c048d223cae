"""AttnRNN back through a chunk of time on a GPU, and the gradients of its weights, added up over the chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqloom.kernels.cuda.attn_rnn.block_code import LARGEST, Finish, Inside, Reverse, Setting, Sums
from seqloom.kernels.cuda.attn_rnn.weight_sums import pieces
from seqloom.kernels.cuda.runtime import launch

BLOCKS = 528  # of sums: four a multiprocessor of the largest GPUs
INSIDE = ("seen", "aC", "o", "n", "q", "slope", "g")
BACK = ("dq", "ds", "dg", "dn")


class Chunk:
    """What is inside some steps, and its gradients: planes of (rows, H), padded to whole pieces.

    What kernels are told, and what products see of the planes, is written once for all chunks: the host has no time to
    lose here. Of T steps only the first chunk, which is the last in time, may have fewer than `steps`.
    """

    def __init__(self, setting: Setting, B: int, steps: int, u: Tensor, given: dict[str, Any]) -> None:
        self.setting, self.B, self.device, self.given = setting, B, u.device, given  # kept: kernels get addresses
        H, rows = setting.hidden, B * steps
        self.pieces = n = pieces(rows, H, u.dtype)
        self.parts = max(1, min(BLOCKS, rows // 32))
        padded = -(-rows // n) * n
        self.inside, self.back = u.new_empty(7, padded, H), u.new_empty(4, padded, H)
        self.products = u.new_empty(4 * n, H, H, dtype=torch.float32)
        wide = torch.float64 if u.dtype == torch.float32 else torch.float32
        self.partial = u.new_empty(self.parts, 5, H, dtype=wide)
        each = padded * H * u.element_size()
        planes = {name: self.inside.data_ptr() + i * each for i, name in enumerate(INSIDE)}  # addresses
        planes |= {name: self.back.data_ptr() + i * each for i, name in enumerate(BACK)}
        if not setting.norm:
            planes["n"] = planes["o"]
        self.planes: dict[str, Any] = planes
        self.sums: Any = launch.pointers(Sums, planes | {"partial": self.partial})
        # dq, ds, dg with seen, aC, o, and dg with seen
        d, seen = self.back.view(4 * n, -1, H).transpose(1, 2), self.inside[:3].view(3 * n, -1, H)
        self.pairs = (
            (self.products[: 3 * n], d[: 3 * n], seen),
            (self.products[3 * n :], d[2 * n : 3 * n], seen[:n]),
        )
        self.first = True

    def go_back(self, begin: int, steps: int) -> None:
        rows = self.B * steps
        if self.first and rows < self.back.shape[1]:
            self.inside[:3, rows:] = 0
            self.back[:, rows:] = 0
        self._walk(begin, steps)
        self.sums.rows, self.sums.first = rows, int(self.first)
        self.setting.sums.launch(self.sums, self.parts, self.device)
        for total, d, r in self.pairs:
            _add_product(total, d, r, self.first)
        self.first = False

    def _walk(self, begin: int, steps: int) -> None:
        """Fills the planes."""
        raise NotImplementedError

    def gradients(self, own: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Those of the weights, in their type."""
        found = [None if w is None else torch.empty_like(w, memory_format=torch.contiguous_format) for w in own]
        names = ("q", "bias_q", "o", "bias_o", "g", "bias_g", "scale", "bias")
        sizes = {"pieces": self.pieces, "parts": self.parts}
        given = {"products": self.products, "partial": self.partial, **dict(zip(names, found, strict=True)), **sizes}
        self.setting.finish.launch(launch.pointers(Finish, given), 4 * self.setting.hidden + 5, self.device)
        return found


class BlockChunk(Chunk):
    """Of attn_rnn_cuda: one kernel for what is inside the steps, one back through them."""

    def __init__(self, setting: Setting, B: int, steps: int, u: Tensor, given: dict[str, Any]) -> None:
        super().__init__(setting, B, steps, u, given)
        self.aux = u.new_empty(B * steps, setting.aux, dtype=torch.float32)
        told = given | self.planes | {"aux": self.aux}
        self.told: tuple[Any, Any] = launch.pointers(Inside, told), launch.pointers(Reverse, told)
        # each loads the weights once
        self.at_once = launch.multiprocessors(u.device) * max(1, LARGEST // setting.hidden)

    def _walk(self, begin: int, steps: int) -> None:
        inside, reverse = self.told
        inside.from_ = reverse.from_ = begin
        inside.steps = reverse.steps = steps
        blocks = min(self.at_once, -(-self.B * steps // 8))
        self.setting.inside.launch(inside, blocks, self.device)
        self.setting.reverse.launch(reverse, -(-self.B // 8), self.device)


def _add_product(total: Tensor, d: Tensor, r: Tensor, first: bool) -> None:
    """total (+)= d r in float32: sums of pieces, so that no sum is long."""
    if d.dtype == torch.float32:
        torch.bmm(d, r, out=total) if first else total.baddbmm_(d, r)
    elif not d.is_cuda:
        product = torch.bmm(d.float(), r.float())
        total.copy_(product) if first else total.add_(product)
    elif first:
        torch.bmm(d, r, out_dtype=torch.float32, out=total)
    else:
        torch.baddbmm(total, d, r, out_dtype=torch.float32, out=total)
