"""Compile-time settings of AttnRNN's kernels, and the kernels that all sizes share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, TypeAlias

import torch

from seqloom.kernels.cuda.runtime.launch import CudaCode

CONTEXT_ROWS = ("h", "x", "h+x", "h*x")
POINTWISE = ("begin", "before", "attend", "gelu", "end", "back_end", "back_gelu", "back_attend")
Weights: TypeAlias = Sequence[Any]  # as in WEIGHT_NAMES; scale and bias are None without a norm
TYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}  # FORMAT of the CUDA source


@dataclass(frozen=True)
class AttnRNNSetting:
    """The cell and the options of a job, as macros of the CUDA source."""

    hidden: int
    heads: int
    dtype: torch.dtype
    context: tuple[str, ...]
    norm: bool
    mask: bool
    keep: bool
    reset: bool
    real_head: int = 0  # units of a head without the padding to full tiles; 0: all
    slots: int = 1  # rows of the state; only some kernels have more than one

    @property
    def aux(self) -> int:
        """Floats saved per step: the attention of each head, then 1 / deviation; with slots that alone."""
        return 4 if self.slots > 1 else 4 * self.heads + 4

    @cached_property
    def macros(self) -> tuple[tuple[str, int], ...]:
        context = sum(1 << i for i, row in enumerate(CONTEXT_ROWS) if row in self.context)
        sizes = {"HIDDEN": self.hidden, "HEADS": self.heads, "FORMAT": TYPES[self.dtype], "CONTEXT": context}
        sizes |= {"REAL_HEAD": self.real_head or self.hidden // self.heads}
        flags = {"NORM": self.norm, "MASK": self.mask, "KEEP": self.keep, "RESET": self.reset}
        return tuple((sizes | {name: int(flag) for name, flag in flags.items()}).items())

    @property
    def sequence(self) -> int:
        """Bytes of 8 rows of one step in shared memory, padded."""
        return 8 * (2 * self.hidden + 16)

    @cached_property
    def sums(self) -> CudaCode:
        """The kernel that sums the gradients of biases and scales."""
        groups = 1 if self.dtype == torch.float32 else 2 if self.hidden > 512 else 4
        pairs = groups * self.hidden // 2
        shared = 4 * 10 * pairs if groups > 1 else 0
        return CudaCode("attn_rnn_sums", "attn_rnn/weight_sums.cu", self.macros, -(-pairs // 32) * 32, shared)

    @cached_property
    def finish(self) -> CudaCode:
        """The kernel that adds up the split-K slices of every gradient."""
        return replace(self.sums, name="attn_rnn_finish", shared=0)

    @cached_property
    def pointwise(self) -> dict[str, CudaCode]:
        """Return the pointwise kernels that run between the products; each block handles one row."""
        return {name: self._find_pointwise(name) for name in POINTWISE}

    def _find_pointwise(self, name: str) -> CudaCode:
        H, D = self.hidden, self.hidden // self.heads
        wide = 32 if H <= 64 else 1024 if H >= 2048 else -(-(H // 2) // 32) * 32
        share = 1 if D < 128 or self.heads > 8 else 4 if D >= 256 else 2
        threads, shared = wide, 8 * wide // 32 if name in ("end", "back_end") else 0
        if name in ("before", "gelu"):  # a thread has 8 values
            threads = -(-H // 256) * 32
        if name in ("attend", "back_attend"):
            threads, shared = 32 * self.heads * share, 16 * self.heads * share if share > 1 else 0
        source = f"attn_rnn/pointwise{'_back' if name.startswith('back') else ''}.cu"
        return CudaCode(f"attn_rnn_{name}", source, self.macros, threads, shared)


@cache
def find_setting(*fields: Any, **more: Any) -> AttnRNNSetting:  # noqa: ANN401  # the fields of AttnRNNSetting
    """Return the same object for equal fields, since it caches the loaded kernels."""
    return AttnRNNSetting(*fields, **more)
