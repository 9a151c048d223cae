"""The three CUDA kernels of AttnRNN: their settings, their records of arguments, their sizes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch

from seqloom.kernels.cuda.runtime.launch import Code, record

LARGEST = 128
ROWS = ("h", "x", "h+x", "h*x")
ROW_KERNELS = ("begin", "before", "attend", "gelu", "end", "back_end", "back_gelu", "back_attend")
TYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
_LONG = ctypes.c_longlong
_CHUNK = [(name, ctypes.c_int) for name in ("B", "T", "from_", "steps")]
_STRIDES = [(f"{name}_{way}", _LONG) for name in ("x", "y") for way in ("row", "step")]

Weights = record("Weights", ["q", "bias_q", "o", "bias_o", "g", "bias_g", "scale", "bias"])
_FORWARD: list[Any] = [
    *(("w", Weights), "x", "keep", "h0", "start", "mask", "reset", "lengths", "y", "last"),
    *_STRIDES,
    *(("B", ctypes.c_int), ("T", ctypes.c_int)),
]
Forward = record("Forward", _FORWARD)
SlotsForward = record("SlotsForward", [*_FORWARD, "kept"])
Inside = record(
    "Inside",
    [
        *(("w", Weights), "x", "y", "h0", "start", "mask", "reset", "lengths"),
        *("seen", "q", "aC", "slope", "o", "g", "n", "aux"),
        *_CHUNK,
    ],
)
Reverse = record(
    "Reverse",
    [
        *(("w", Weights), "dy", "x", "y", "keep", "h0", "start", "mask"),
        *("q", "slope", "g", "n", "aux", "reset", "lengths", "du", "dq", "ds", "dg", "dn", "dh", "dstart"),
        *_CHUNK,
    ],
)
Sums = record("Sums", ["dq", "ds", "dg", "dn", "n", "partial", ("rows", _LONG), ("first", ctypes.c_int)])
Finish = record(
    "Finish",
    [
        *("products", "partial", "q", "bias_q", "o", "bias_o", "g", "bias_g", "scale", "bias"),
        *(("pieces", ctypes.c_int), ("parts", ctypes.c_int)),
    ],
)

Begin = record("Begin", ["h", "start", "mask", "reset", "left", "past", "seen", ("step", ctypes.c_int)])
Before = record(
    "Before",
    [
        *("x", "y", "h0", "start", "mask", "reset", "lengths", "past", "seen", "u"),
        *((name, ctypes.c_int) for name in ("T", "from_", "steps")),
    ],
)
Attend = record("Attend", ["q", "u", "past", "aC", "attention"])
Gelu = record("Gelu", ["s", "o", "slope"])
End = record("End", ["g", "o", "scale", "bias", "keep", "past", "h", "y", "gate", "n", "deviation", ("next", Begin)])
BackEnd = record(
    "BackEnd",
    [
        *("dy", "g", "n", "scale", "bias", "keep", "mask", "past", "deviation", "left", "before", "query", "reset"),
        *("dh", "dstart", "acc", "dz", "dg", "dn", ("step", ctypes.c_int)),
    ],
)
BackGelu = record("BackGelu", ["before", "slope", "dz", "ds"])
BackAttend = record("BackAttend", ["v", "u", "q", "past", "attention", "acc", "dq", "du"])


@dataclass(frozen=True)
class Setting:
    """What the kernels are compiled for."""

    hidden: int
    heads: int
    dtype: torch.dtype
    context: tuple[str, ...]
    norm: bool
    mask: bool
    keep: bool
    reset: bool

    @property
    def aux(self) -> int:
        """Floats that are kept of a step: the attention of each head, then 1 / deviation."""
        return 4 * self.heads + 4

    @cached_property
    def _macros(self) -> tuple[tuple[str, int], ...]:
        context = sum(1 << i for i, row in enumerate(ROWS) if row in self.context)
        names = {"HIDDEN": self.hidden, "HEADS": self.heads, "FORMAT": TYPES[self.dtype], "CONTEXT": context}
        flags = {"NORM": self.norm, "MASK": self.mask, "KEEP": self.keep, "RESET": self.reset}
        return tuple((names | {name: int(flag) for name, flag in flags.items()}).items())

    @cached_property
    def forward(self) -> Code:
        return self._code("forward", "step", self._step + 4 * (1 + self.keep) * self._sequence)

    @cached_property
    def inside(self) -> Code:
        return self._code("inside", "step", self._step + 3 * 2 * self._sequence)

    @cached_property
    def reverse(self) -> Code:
        ring = 4 * ((7 + self.keep) * self._sequence + 8 * 4 * self.aux)
        return self._code("reverse", "", 4 * 16 * self.hidden + self._sums + ring)

    @cached_property
    def sums(self) -> Code:
        groups = 1 if self.dtype == torch.float32 else 2 if self.hidden > 512 else 4
        pairs, files = groups * self.hidden // 2, ("device.cuh", "pairs.cuh", "attn_rnn_sums.cu")
        return Code("attn_rnn_sums", files, self._macros, -(-pairs // 32) * 32, 4 * 10 * pairs if groups > 1 else 0)

    @cached_property
    def finish(self) -> Code:
        return replace(self.sums, name="attn_rnn_finish", shared=0)

    @cached_property
    def rows(self) -> dict[str, Code]:
        """The pointwise parts, a block a row."""
        return {name: self._row(name) for name in ROW_KERNELS}

    def _row(self, name: str) -> Code:
        H, D = self.hidden, self.hidden // self.heads
        wide = 32 if H <= 64 else 1024 if H >= 2048 else -(-(H // 2) // 32) * 32
        share = 1 if D < 128 or self.heads > 8 else 4 if D >= 256 else 2
        threads, shared = wide, 8 * wide // 32 if name in ("end", "back_end") else 0
        if name in ("attend", "back_attend"):
            threads, shared = 32 * self.heads * share, 16 * self.heads * share if share > 1 else 0
        files = ("device.cuh", "rows.cuh", f"attn_rnn_rows{'_back' if name.startswith('back') else ''}.cu")
        return Code(f"attn_rnn_{name}", files, self._macros, threads, shared)

    def _code(self, name: str, part: str, shared: int) -> Code:
        parts = ["attn_rnn_math.cuh", f"attn_rnn_{part}.cuh"] if part else []
        files = ("device.cuh", "attn_rnn.cuh", *parts, f"attn_rnn_{name}.cu")
        return Code(f"attn_rnn_{name}", files, self._macros, 2 * self.hidden, shared)

    @property
    def _sequence(self) -> int:
        """Bytes of 8 rows of one step, padded."""
        return 8 * (2 * self.hidden + 16)

    @property
    def _step(self) -> int:
        return (3 + (self.mask and self.norm)) * 16 * self.hidden + self._sums

    @property
    def _sums(self) -> int:
        whole = (self.hidden // self.heads) % 16 == 0
        return self.hidden // 16 * (128 if whole else 1536)


@cache
def setting(*given: Any) -> Setting:
    """The same object for the same words: it keeps the kernels that are loaded."""
    return Setting(*given)
