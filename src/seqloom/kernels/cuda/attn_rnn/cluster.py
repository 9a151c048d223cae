"""AttnRNN on NVIDIA GPUs from Hopper on: a cluster of blocks takes some rows of the batch through all of time.

The blocks share the weights out among them, hold them in registers and what does not fit there in shared memory, and
send what they find to each other's shared memory. The state is carried in float32; nothing waits for the host; no sum
depends on chance. The forward keeps the outputs alone. The backward takes a chunk of time after another, the last
first: batched products compute what was inside its steps, clusters walk back through them, and batched products make
the weights' gradients. In float32 the products are as exact as torch's flags say: 19 bits, or all.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.precision import autocast_dtype
from seqloom.kernels.cuda.attn_rnn import grid as attn_rnn_grid
from seqloom.kernels.cuda.attn_rnn import parts
from seqloom.kernels.cuda.attn_rnn import scan as _attn_rnn_scan
from seqloom.kernels.cuda.attn_rnn.block_code import TYPES, Setting, setting
from seqloom.kernels.cuda.attn_rnn.cluster_backward import Chunk, steps
from seqloom.kernels.cuda.attn_rnn.cluster_code import LARGEST, code_for, tf32

MULTIPLE = 16  # of which the hidden size is one
WIDE, EXACT = 640, 320  # units above which groups of more blocks are faster; of float32 that no product may shorten
LESS, SEVERAL = 448, 56  # units and rows above which they are, too


def why_not(cell: Any, job: ScanJob) -> str | None:
    reason = parts.why_not(cell, job, TYPES, heads=16)
    if reason is not None:
        return reason
    dtype = autocast_dtype("cuda") or job.x.dtype
    largest = LARGEST[dtype.itemsize]
    if cell.hidden_size % MULTIPLE or cell.hidden_size > largest:
        return f"it takes hidden sizes {MULTIPLE}, {2 * MULTIPLE}, .. {largest}, not {cell.hidden_size}"
    flags = (job.mask is not None, bool(job.keep), job.reset is not None)
    how = setting(cell.hidden_size, cell.heads, dtype, cell.context, cell.norm, *flags)
    kernels = (code_for(how, name, len(job.x), job.x.device) for name in ("forward", "reverse"))
    return next((reason for kernel in kernels if (reason := kernel.why_not(job.x.device)) is not None), None)


def why_not_auto(cell: Any, job: ScanJob) -> str | None:
    """Where another of ours is the faster one, as it was on an H200."""
    H, B = cell.hidden_size, len(job.x)
    exact = (autocast_dtype("cuda") or job.x.dtype) == torch.float32 and not tf32()
    most = EXACT if exact else WIDE
    if B > attn_rnn_grid.MANY:
        return attn_rnn_grid.why_not_auto(cell, job) if H > WIDE else None
    faster = (most < H or (H > LESS and B > SEVERAL)) and attn_rnn_grid.why_not(cell, job) is None
    return f"attn_rnn_grid is faster with {H} units and {B} rows" if faster else None


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    return _attn_rnn_scan.run(_TIER, cell, job)


def _forward(setting: Setting, arguments: ctypes.Structure, B: int, device: torch.device) -> None:
    code_for(setting, "forward", B, device).start(arguments, B, device)


_TIER = _attn_rnn_scan.Tier(_forward, Chunk, steps)
