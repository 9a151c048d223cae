"""Layer normalisation of the input's products of LN-GRU and LN-LSTM, in one pass over memory each way."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from seqloom.core.memory import empty_like, new_empty
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.gated.code import TYPES
from seqloom.kernels.cuda.runtime.launch import CudaCode

WARPS = 8  # warps per block, as in input_norm.cu


def normalise(product: Tensor, scale: Tensor, bias: Tensor, gates: int, keeps: bool) -> tuple[Tensor, Tensor | None]:
    """Return normalised products, and with `keeps` what the backward pass needs: means and 1 / deviations.

    Args:
        product: (.., gates * H), contiguous, of 16 bits.
        scale: (gates * H,) of the same type.
        bias: (gates * H,) of the same type.
        gates: Number of gates; each is normalised separately.
        keeps: Whether gradients will be needed.
    """
    H = len(scale) // gates
    vectors, y = product.numel() // H, empty_like(product)
    spread = new_empty(product, vectors, 2, dtype=torch.float32) if keeps else None
    code = _make_code("normalise", gates, H, product.dtype)
    known = {"product": product, "scale": scale, "bias": bias, "to": y, "spread": spread, "vectors": vectors}
    code.launch(code.pack(known), _count_blocks(code, gates, vectors, heuristics.NORM_BLOCKS), product.device)
    return y, spread


def undo_norm(dy: Tensor, product: Tensor, spread: Tensor, scale: Tensor, gates: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the product, the scale and the bias."""
    H = len(scale) // gates
    vectors, dproduct = product.numel() // H, empty_like(product)
    code = _make_code("normalise_back", gates, H, product.dtype)
    blocks = _count_blocks(code, gates, vectors, heuristics.NORM_BACK_BLOCKS)
    partial = new_empty(product, blocks * code.rows // gates, gates, 2, H, dtype=torch.float32)
    known = {"product": product, "scale": scale, "dy": dy, "spread": spread, "dproduct": dproduct, "partial": partial}
    code.launch(code.pack(known | {"vectors": vectors}), blocks, product.device)
    dbias, dscale = partial.sum(0).to(scale.dtype).transpose(0, 1).reshape(2, -1)
    return dproduct, dscale, dbias


@cache
def _make_code(name: str, gates: int, hidden: int, dtype: torch.dtype) -> CudaCode:
    """Return a kernel of input_norm.cu; its rows are the vectors that a block processes at a time."""
    warp_group = 1 if hidden <= 256 else 2 if hidden <= 512 else 4  # up to eight units per lane
    macros = ("HIDDEN", hidden), ("GATES", gates), ("GROUP_WARPS", warp_group), ("FORMAT", TYPES[dtype])
    shared = 16 * WARPS if warp_group > 1 else 0
    return CudaCode(name, "gated/input_norm.cu", macros, 32 * WARPS, shared, rows=WARPS // warp_group)


def _count_blocks(code: CudaCode, gates: int, vectors: int, most: int) -> int:
    """Return the number of blocks for these vectors: a multiple of the gates, so that a group of warps has one gate."""
    return -(-min(most, -(-vectors // code.rows)) // gates) * gates
