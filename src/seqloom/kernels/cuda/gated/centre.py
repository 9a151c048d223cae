"""Centre the weights of normalised gates over the units, and their gradient, in one launch each."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from seqloom.core.memory import empty_like, new_empty
from seqloom.kernels.cuda.runtime.launch import CudaCode

FORMATS = {torch.bfloat16: 0, torch.float16: 1}  # FORMAT of the CUDA source
COLUMNS, THREADS = 16, 512  # per block, as in centre.cu


def centre_weights(weight: Tensor, hidden: int) -> Tensor:
    """Centre weights: subtract their mean over the units of a gate, which a normalisation removes anyway.

    The mean of their products is then 0, so a kernel sums only squares.

    Args:
        weight: (gates * H, H), contiguous, of 16 bits; with heads, those of all heads in order.
        hidden: H, a multiple of 16.

    Returns:
        (gates, H, H)
    """
    each = weight.detach().view(-1, hidden, hidden)
    to = empty_like(each)
    code = _make_code("centre", hidden, weight.dtype)
    code.launch(code.pack({"weight": each, "to": to}), len(each) * hidden // COLUMNS, weight.device)
    return to


def centre_gradient(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient (gates, H, H) of weights that were centred, in 16 bits.

    Args:
        parts: (parts, gates, H, H) in float32, contiguous; their sum is the gradient of the centred weights.
        dtype: Type of the result.
    """
    count, matrices, H = parts.shape[:3]
    to = new_empty(parts, matrices, H, H, dtype=dtype)
    code = _make_code("centre_gradient", H, dtype)
    known = {"parts": parts, "to": to, "count": count, "matrices": matrices}
    code.launch(code.pack(known), matrices * H // COLUMNS, parts.device)
    return to


@cache
def _make_code(name: str, hidden: int, dtype: torch.dtype) -> CudaCode:
    macros = ("HIDDEN", hidden), ("FORMAT", FORMATS[dtype])
    return CudaCode(name, "gated/centre.cu", macros, THREADS, 4 * THREADS // 2)
