"""Backward pass of AttnRNN over a chunk of steps on a GPU, with the gradients of its weights summed over the chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from seqloom.core.memory import empty_like, new_empty
from seqloom.core.precision import allows_tf32
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.attn_rnn.setting import AttnRNNSetting, Weights
from seqloom.kernels.cuda.products import exact
from seqloom.kernels.cuda.runtime import launch
from seqloom.kernels.cuda.runtime.launch import CudaCode

INSIDE = ("seen", "aC", "o", "n", "q", "slope", "g")
FindCode: TypeAlias = Callable[[AttnRNNSetting, str, int, torch.device], Any]
BACK = ("dq", "ds", "dg", "dn")
WEIGHTS = ("q", "bias_q", "o", "bias_o", "g", "bias_g", "scale", "bias")  # the struct of arguments.cuh


def count_slices(rows: int, hidden: int, dtype: torch.dtype) -> int:
    """Return the number of split-K slices of a sum over rows, so that no single sum is long."""
    return max(1, min(rows // heuristics.PIECE_ROWS[dtype], heuristics.PIECE_NUMBERS // hidden**2))


class Chunk:
    """Intermediates of some steps and their gradients: planes of (rows, H), padded to full split-K slices.

    To save time on the host, the kernels' arguments and the operands of the GEMMs are created once for all chunks of a
    pass, which begins with `load`. Only the first chunk, which is the last in time, may have fewer than `steps` steps.
    """

    def __init__(self, setting: AttnRNNSetting, B: int, steps: int, u: Tensor) -> None:
        self.setting, self.B, self.device = setting, B, u.device
        self.values: dict[str, Any] = {}
        H, rows = setting.hidden, B * steps
        # Whether products of float32 use the fp16 hi/lo split. Short passes use torch's products, which are recorded.
        self.is_exact = steps < u.shape[1] and exact.is_faster(u, H, H, rows)
        self.slices = n = 1 if self.is_exact else count_slices(rows, H, u.dtype)
        self.parts = max(1, min(heuristics.SUM_BLOCKS, rows // 32))
        padded = -(-rows // n) * n
        self.inside, self.back = new_empty(u, 7, padded, H), new_empty(u, 4, padded, H)
        self.products = new_empty(u, 4 * n, H, H, dtype=torch.float32)
        wide = torch.float64 if u.dtype == torch.float32 else torch.float32
        self.partial = new_empty(u, self.parts, 5, H, dtype=wide)
        self.planes: dict[str, Any] = dict(zip(INSIDE, self.inside, strict=True))
        self.planes |= dict(zip(BACK, self.back, strict=True))
        if not setting.norm:
            self.planes["n"] = self.planes["o"]
        self.sums = setting.sums.pack(self.planes | {"partial": self.partial})
        # dq, ds, dg with seen, aC, o, and dg with seen
        d, seen = self.back.view(4 * n, -1, H).transpose(1, 2), self.inside[:3].view(3 * n, -1, H)
        self.pairs = (
            (self.products[: 3 * n], d[: 3 * n], seen),
            (self.products[3 * n :], d[2 * n : 3 * n], seen[:n]),
        )
        self.first = True
        self.splits: list[exact.SplitMatrix] = []  # seen, aC and o, if they were split for a product

    def load(self, values: dict[str, Any], weights: Weights) -> None:
        """Begin a backward pass.

        Args:
            values: The kernels' arguments that belong to this pass, by name: x, y, h0, dy, du, dh, ...
            weights: As in WEIGHT_NAMES.
        """
        self.values = values  # keeps the tensors alive, since kernels only get addresses
        self.first = True

    def go_back(self, begin: int, steps: int) -> None:
        """Run the backward pass of steps begin .. begin + steps - 1, and accumulate the gradients of the weights."""
        rows = self.B * steps
        if self.first:
            self.clear_padding(rows)
        self._fill_planes(begin, steps)
        self.add_products(rows)

    def clear_padding(self, rows: int) -> None:
        """Set everything after this many rows to 0, for the products."""
        if rows < self.back.shape[1]:
            self.inside[:3, rows:] = 0
            self.back[:, rows:] = 0

    def add_products(self, rows: int) -> None:
        """Accumulate the gradients of the weights over the planes."""
        self.sums.rows, self.sums.first = rows, int(self.first)
        self.setting.sums.launch(self.sums, self.parts, self.device)
        if self.takes_hi_lo(rows):
            self._add_hi_lo(rows)
        else:
            for total, d, r in self.pairs:
                _add_product(total, d, r, self.first)
        self.first = False

    def takes_hi_lo(self, rows: int) -> bool:
        """Return whether products over this many rows use the fp16 hi/lo split, under torch's current flags."""
        return self.is_exact and rows % 8 == 0 and not allows_tf32()

    def _add_hi_lo(self, rows: int) -> None:
        """Do what `_add_product` does for all pairs."""
        dq, ds, dg = (exact.split(self.back[i, :rows]) for i in range(3))
        seen, aC, o = self.splits or [exact.split(self.inside[i, :rows]) for i in range(3)]
        self.splits = []
        for total, d, r in zip(self.products, (dq, ds, dg, dg), (seen, aC, o, seen), strict=True):
            product = exact.multiply_transposed(d, r)
            total.copy_(product) if self.first else total.add_(product)

    def _fill_planes(self, begin: int, steps: int) -> None:
        raise NotImplementedError

    def gradients(self, weights: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients of the weights, in their type."""
        grads = [None if w is None else empty_like(w, memory_format=torch.contiguous_format) for w in weights]
        values = {"products": self.products, "partial": self.partial, "slices": self.slices, "parts": self.parts}
        finish = self.setting.finish
        arguments = finish.pack(values | dict(zip(WEIGHTS, grads, strict=True)))
        finish.launch(arguments, 4 * self.setting.hidden + 5, self.device)
        return grads


def name_weights(weights: Weights) -> dict[str, Tensor | None]:
    """Return the struct of weights of arguments.cuh, by name."""
    return {name: None if w is None else align(w) for name, w in zip(WEIGHTS, weights, strict=True)}


def align(t: Tensor) -> Tensor:
    """Return the tensor, contiguous and aligned to 16 bytes."""
    t = t.contiguous()
    return t if t.data_ptr() % 16 == 0 else t.clone()


def _add_product(total: Tensor, d: Tensor, r: Tensor, first: bool) -> None:
    """Compute total = d r, or total += d r, in float32, for every slice."""
    if d.dtype == torch.float32:
        torch.bmm(d, r, out=total) if first else total.baddbmm_(d, r)
    elif not d.is_cuda:
        product = torch.bmm(d.float(), r.float())
        total.copy_(product) if first else total.add_(product)
    elif first:
        torch.bmm(d, r, out_dtype=torch.float32, out=total)
    else:
        torch.baddbmm(total, d, r, out_dtype=torch.float32, out=total)


class FusedChunk(Chunk):
    """A chunk of attn_rnn_cuda or attn_rnn_slots: a kernel for the intermediates, and one for the backward steps."""

    def __init__(self, find_code: FindCode, setting: AttnRNNSetting, steps: int, u: Tensor) -> None:
        super().__init__(setting, len(u) * setting.slots, steps, u)
        inside, reverse = (find_code(setting, name, len(u), u.device) for name in ("inside", "reverse"))
        self.codes, self.rows = (inside, reverse), len(u)
        self.aux = new_empty(u, self.B * steps, setting.aux, dtype=torch.float32)
        named = self.planes | {"aux": self.aux}
        self.arguments = inside.pack(named), reverse.pack(named)
        # one block of `inside` per multiprocessor, or several for a small layer: each loads the weights once
        per_multiprocessor = max(1, heuristics.BLOCK_LARGEST_HIDDEN // setting.hidden)
        self.at_once = launch.multiprocessors(u.device) * per_multiprocessor

    def load(self, values: dict[str, Any], weights: Weights) -> None:
        dtype = values["x"].dtype
        starts = {n: None if values[n] is None else values[n].to(dtype).contiguous() for n in ("h0", "start")}
        super().load(values | starts | {"w": name_weights(weights)}, weights)
        for arguments in self.arguments:
            launch.fill(arguments, self.values)

    def _fill_planes(self, begin: int, steps: int) -> None:
        for arguments in self.arguments:
            arguments.from_, arguments.steps = begin, steps
        inside, reverse = self.codes
        blocks = min(self.at_once, -(-self.rows * steps // inside.rows))
        inside.launch(self.arguments[0], blocks, self.device)
        reverse.start(self.arguments[1], self.rows, self.device)


def count_steps(u: Tensor, _slots: int = 1) -> int:
    """Return the steps of a DividedChunk: a chunk for every CHUNK_BYTES of its planes, MOST_CHUNKS at most."""
    T, size = u.shape[1], u.element_size()
    # 7 planes, 4 planes of gradients, q and g side by side, and the states in float32.
    whole = u.numel() * (13 * size + 4)
    return -(-T // min(heuristics.MOST_CHUNKS, -(-whole // heuristics.CHUNK_BYTES)))


class DividedChunk(Chunk):
    """A chunk of attn_rnn_row, _cluster or _grid: intermediates by batched GEMMs, backward steps by a kernel."""

    def __init__(self, find_code: FindCode, setting: AttnRNNSetting, steps: int, u: Tensor) -> None:
        B, _, H = u.shape
        super().__init__(setting, B, steps, u)
        rows, whole = B * steps, torch.float32
        self.past, self.qg = new_empty(u, rows, H, dtype=whole), new_empty(u, rows, 2 * H)
        self.attention = new_empty(u, rows, setting.heads, 4, dtype=whole)
        self.deviation = new_empty(u, rows, dtype=whole)
        self.transposed = new_empty(u, 4 * H, H)  # the weights transposed, for the backward pass
        self.Wqg, self.bqg = new_empty(u, 2 * H, H), new_empty(u, 2 * H)  # operands of products with the state
        self.reverse: CudaCode = find_code(setting, "reverse", B, u.device)
        self.arguments = self._pack_arguments()
        self._make_views(rows)

    def _pack_arguments(self) -> dict[str, Any]:
        """Return the arguments of each kernel; `load` sets those of a pass, `go_back` the steps."""
        H, inside = self.setting.hidden, self.planes
        values = inside | {"past": self.past, "attention": self.attention, "deviation": self.deviation}
        values |= {"q": self.qg, "gate": inside["g"]}
        values |= {"u": inside["o"], "s": inside["q"]}  # planes that are not used for anything else yet
        values["w"] = {"q": self.transposed[:H], "o": self.transposed[H : 2 * H], "g": self.transposed[2 * H :]}
        codes = self.setting.pointwise
        arguments = {name: codes[name].pack(values) for name in ("before", "attend", "gelu")}
        arguments["end"] = codes["end"].pack(values | {"g": self.qg[:, H:]})
        return arguments | {"reverse": self.reverse.pack(values)}

    def load(self, values: dict[str, Any], weights: Weights) -> None:
        Wq, bq, Wo, self.bo, Wg, bg, *norm_weights = weights
        H = self.setting.hidden
        self.Wo, self.Wgo = Wo.t(), Wg[:, H:].t()
        torch.cat((Wq.t(), self.Wo, Wg[:, :H].t(), self.Wgo), out=self.transposed)
        torch.cat((Wq, Wg[:, :H]), out=self.Wqg)
        torch.cat((bq, bg), out=self.bqg)
        norm = {n: None if w is None else align(w) for n, w in zip(("scale", "bias"), norm_weights, strict=True)}
        (x_row, x_step, _), (y_row, y_step, _) = values["x"].stride(), values["y"].stride()
        strides = {"x_row": x_row, "x_step": x_step, "y_row": y_row, "y_step": y_step}
        super().load(values | strides | norm | {"w": norm}, weights)
        for name in ("before", "end", "reverse"):
            launch.fill(self.arguments[name], self.values)

    def _make_views(self, rows: int) -> None:
        """Slice the operands of the weight-gradient GEMMs to this many rows."""
        self.rows = rows
        self.seen, self.aC, self.o, self.s = (self.inside[i, :rows] for i in (0, 1, 2, 4))
        self.both = self.qg[:rows]
        self.gate = self.both[:, self.setting.hidden :]

    def _fill_planes(self, begin: int, steps: int) -> None:
        rows = self.B * steps
        if rows != self.rows:
            self._make_views(rows)
        for name in ("before", "reverse"):
            self.arguments[name].from_, self.arguments[name].steps = begin, steps
        self._launch("before")
        self.find_inside()
        self.reverse.start(self.arguments["reverse"], self.B, self.device)

    def find_inside(self) -> None:
        """Compute the intermediates of the steps from the states before them and their input."""
        if self.takes_hi_lo(self.rows):
            self._find_inside_by_hi_lo()
            return
        torch.addmm(self.bqg, self.seen, self.Wqg.t(), out=self.both)  # a product into full rows includes the bias
        self._launch("attend")
        torch.addmm(self.bo, self.aC, self.Wo, out=self.s)
        self._launch("gelu")
        self.gate.addmm_(self.o, self.Wgo)
        self._launch("end")

    def _find_inside_by_hi_lo(self) -> None:
        seen = exact.split(self.seen)
        exact.multiply(seen, exact.split(self.Wqg), self.bqg, self.both)
        self._launch("attend")
        aC = exact.split(self.aC)
        exact.multiply(aC, exact.split(self.Wo.t()), self.bo, self.s)
        self._launch("gelu")
        o = exact.split(self.o)
        self.gate.add_(exact.multiply(o, exact.split(self.Wgo.t())))
        self._launch("end")
        self.splits = [seen, aC, o]

    def _launch(self, name: str) -> None:
        self.setting.pointwise[name].launch(self.arguments[name], self.rows, self.device)
