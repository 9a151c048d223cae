"""Products of large float32 matrices on a GPU, as accurate as torch's and faster.

Tensor cores do not multiply float32. Each value is split into two fp16 parts of 11 bits each (hi/lo split), and three
products of such parts give one product of 22 bits; sums are in float32. torch's full-precision float32 products do not
use tensor cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from seqloom.core.memory import empty, new_empty
from seqloom.core.precision import allows_tf32
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.runtime import groups, launch
from seqloom.kernels.cuda.runtime.launch import CudaCode

ROWS = 32  # rows that share a scale
TILE, DEPTH, THREADS = 128, 32, 256  # as in multiply.cu
WIDE, STAGES, AT_ONCE = 4, 3, 2  # columns per block / 32, stages, blocks per multiprocessor
HOPPER_STAGES = 6  # of hopper.cu


def is_faster(like: Tensor, rows: int, columns: int, depth: int) -> bool:
    """Return whether (rows, depth) times (depth, columns) is faster with the fp16 hi/lo split.

    Args:
        like: One of the factors.
        rows: Of the result.
        columns: Of the result.
        depth: Of the sums.
    """
    if like.dtype != torch.float32 or columns % 8 or depth % 8 or rows % 8 or allows_tf32():
        return False
    return (
        rows * columns * depth >= heuristics.EXACT_LEAST_PRODUCTS
        and like.is_cuda
        and launch.why_not(like.device) is None
    )


@dataclass(frozen=True, eq=False)
class SplitMatrix:
    """A float32 matrix (rows, columns) as two in fp16: (parts[0] + parts[1]) * units, with one unit per 32 rows."""

    parts: Tensor  # (2, rows, columns)
    units: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.parts.shape[1], self.parts.shape[2]

    def narrow(self, columns: int) -> SplitMatrix:
        """Return the first columns, a multiple of 8, without copying them."""
        return SplitMatrix(self.parts[:, :, :columns], self.units)


def split(t: Tensor) -> SplitMatrix:
    """Split a matrix.

    Args:
        t: (rows, columns) or (some, others, columns), float32; columns is a multiple of 8. Only the columns must be
            contiguous.
    """
    t = t.unsqueeze(0) if t.dim() == 2 else t
    if t.stride(2) != 1 or any(s % 4 for s in t.stride()[:2]) or t.data_ptr() % 16:
        t = t.contiguous()
    some, others, columns = t.shape
    rows = some * others
    parts = empty(2, rows, columns, dtype=torch.float16, device=t.device)
    units = empty(-(-rows // ROWS), dtype=torch.float32, device=t.device)
    code, numbers = find_split_code(), {"rows": rows, "inner": others, "columns": columns}
    numbers |= {"outer_stride": t.stride(0), "inner_stride": t.stride(1)}
    code.launch(code.pack({"from_": t, "to": parts, "unit": units, **numbers}), len(units), t.device)
    return SplitMatrix(parts, units)


def multiply(a: SplitMatrix, b: SplitMatrix, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Return a b^T + bias.

    Args:
        a: (rows, depth).
        b: (columns, depth).
        bias: (columns,), or None.
        out: (rows, columns), contiguous: where the result is written.
    """
    (M, K), N = a.shape, b.shape[0]
    if out is None:
        out = new_empty(a.units, M, N)
    _launch(0, a, b, bias, out, (M, N, K), K)
    return out


def multiply_transposed(a: SplitMatrix, b: SplitMatrix) -> Tensor:
    """Return a^T b of (depth, rows) and (depth, columns): a sum over many rows of both."""
    (K, M), N = a.shape, b.shape[1]
    device = a.parts.device
    depth = choose_depth(M, N, K, launch.multiprocessors(device) * (1 if has_wgmma(device, K) else AT_ONCE))
    slices = -(-K // depth)
    out = new_empty(a.units, slices, M, N)
    _launch(1, a, b, None, out, (M, N, K), depth)
    return out[0] if slices == 1 else out.sum(0)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x weight^T + bias, (rows, columns), by the faster of these kernels and torch's.

    Args:
        x: (rows, depth), or (some, others, depth) with any strides.
        weight: (columns, depth).
        bias: (columns,), or None.
    """
    depth = x.shape[-1]
    if is_faster(x, x.numel() // depth, len(weight), depth):
        return multiply(split(x), split(weight), bias)
    result: Tensor = torch._C._nn.linear(x.reshape(-1, depth), weight, bias)
    return result


def differentiate_linear(
    d: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool], hi_lo: SplitMatrix | None = None
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of x (rows, depth) and of the weight that `linear` has, if they are needed.

    Args:
        d: The gradient of the result, (rows, columns).
        x: As in `linear`.
        weight: As in `linear`.
        needs: Whether each of the two is needed.
        hi_lo: The hi/lo split of d, if it was already computed.
    """
    depth = x.shape[-1]
    if any(needs) and is_faster(d, len(d), d.shape[1], depth):
        hi_lo = split(d) if hi_lo is None else hi_lo
        dx = multiply(hi_lo, split(weight.t().contiguous())) if needs[0] else None
        return dx, multiply_transposed(hi_lo, split(x)) if needs[1] else None
    return d.mm(weight) if needs[0] else None, d.t().mm(x.reshape(-1, depth)) if needs[1] else None


@cache
def choose_depth(M: int, N: int, K: int, room: int) -> int:
    """Return the depth of a split-K slice, such that the blocks fill `room` an integral number of times."""
    tiles = -(-M // TILE) * -(-N // (32 * WIDE))
    most = max(1, K // heuristics.EXACT_PIECE_ROWS)
    ways = [max(1, min(most, room * waves // tiles)) for waves in (1, 2, 3, 4)]
    slices = max(ways, key=lambda n: (tiles * n / (room * -(-tiles * n // room)), -n))
    return DEPTH * -(-K // (DEPTH * slices))


def _launch(
    transposed: int,
    a: SplitMatrix,
    b: SplitMatrix,
    bias: Tensor | None,
    out: Tensor,
    sizes: tuple[int, int, int],
    depth: int,
) -> None:
    M, N, K = sizes
    by_wgmma = has_wgmma(out.device, K)
    code = _multiply_code(transposed, by_wgmma)
    known: dict[str, object] = {
        "a": a.parts,
        "b": b.parts,
        "a_unit": a.units,
        "b_unit": b.units,
        "bias": bias,
        "c": out,
    }
    known |= {"plane_a": a.parts.stride(0), "plane_b": b.parts.stride(0)}
    known |= {"wide_a": a.parts.stride(1), "wide_b": b.parts.stride(1), "M": M, "N": N, "K": K, "depth": depth}
    arguments = code.pack(known)
    tiles = -(-M // TILE) * -(-N // (32 * WIDE)) * -(-K // depth)
    code.launch(arguments, min(tiles, launch.multiprocessors(out.device)) if by_wgmma else tiles, out.device)


@cache
def find_split_code() -> CudaCode:
    """Return the kernel that splits 32 rows."""
    return CudaCode("exact_split", "products/split.cu", (), 256, 32)


def has_wgmma(device: torch.device, depth: int) -> bool:
    """Return whether the GPU uses wgmma for products with sums over `depth` values."""
    return depth >= heuristics.EXACT_WGMMA_DEPTH and groups.has_wgmma(device)


@cache
def _multiply_code(transposed: int, by_wgmma: bool = False) -> CudaCode:
    stages = HOPPER_STAGES if by_wgmma else STAGES
    macros, bytes_ = (("TRANSPOSED", transposed), ("STAGES", stages)), stages * 4 * DEPTH * (TILE + 32 * WIDE)
    if by_wgmma:
        return CudaCode("exact_multiply", "products/hopper.cu", macros, THREADS, bytes_ + 1024, generation="a")
    more = ("BLOCKS_AT_ONCE", AT_ONCE), ("WIDE", WIDE)
    return CudaCode("exact_multiply", "products/multiply.cu", (*macros, *more), THREADS, bytes_)
