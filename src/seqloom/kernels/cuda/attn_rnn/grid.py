"""AttnRNN on a large NVIDIA GPU: a group of blocks anywhere on it takes some rows of the batch through all of time.

A block has 32 units, in float32 16, and their weights in its registers and shared memory; a group has as many blocks as
all units take. They send each other what they find through the GPU's memory, in packets that carry their number. All
blocks run at the same time, which the GPU is asked for when they start; a batch of more groups goes in several turns.
What is computed is what attn_rnn_cluster computes, and so is the backward.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.precision import autocast_dtype
from seqloom.kernels.cuda.attn_rnn import parts
from seqloom.kernels.cuda.attn_rnn import scan as _attn_rnn_scan
from seqloom.kernels.cuda.attn_rnn.block_code import TYPES, Setting, setting
from seqloom.kernels.cuda.attn_rnn.cluster_backward import Chunk, steps
from seqloom.kernels.cuda.attn_rnn.cluster_code import files, tf32
from seqloom.kernels.cuda.runtime.grid import GridCode, groups

LARGEST, MULTIPLE = 1024, 16  # the hidden size, and of what it is a multiple
UNITS = {2: 32, 4: 16}  # of a block, by the bytes of a number
MANY = 128  # rows above which the large products of attn_rnn_graph are faster
FEW = 16  # blocks of a group above which the forward is faster in fewer groups of more rows, as it was on an H200
ONE_ROUND = 32  # blocks of which a warp takes from four; of more from eight
# rounds, bytes of a number, rows: of the four weights in shared memory, and tiles of one more
KEPT = {
    (1, 2, 8): (2, 2),
    (1, 2, 16): (2, 6),
    (1, 4, 8): (0, 0),
    (1, 4, 16): (1, 0),
    (2, 4, 8): (2, 8),
    (2, 4, 16): (2, 8),
}
WARPS = 8
PACKETS = {2: 640, 4: 1312}  # of 16 bytes, to a row


def why_not(cell: Any, job: ScanJob) -> str | None:
    reason = parts.why_not(cell, job, TYPES, heads=16)
    if reason is not None:
        return reason
    if cell.hidden_size % MULTIPLE or cell.hidden_size > LARGEST:
        return f"it takes hidden sizes {MULTIPLE}, {2 * MULTIPLE}, .. {LARGEST}, not {cell.hidden_size}"
    flags = (job.mask is not None, bool(job.keep), job.reset is not None)
    dtype = autocast_dtype("cuda") or job.x.dtype
    how = setting(cell.hidden_size, cell.heads, dtype, cell.context, cell.norm, *flags)
    kernels = (code_for(how, name, len(job.x), job.x.device) for name in ("forward", "reverse"))
    return next((reason for kernel in kernels if (reason := kernel.why_not(job.x.device)) is not None), None)


def why_not_auto(_: Any, job: ScanJob) -> str | None:
    return f"attn_rnn_graph is faster above {MANY} rows" if len(job.x) > MANY else None


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    return _attn_rnn_scan.run(_TIER, cell, job)


def code_for(setting: Setting, name: str, B: int, device: torch.device) -> GridCode:
    """The one that suits a batch of B: 16 rows to a group where 8 do not run at once."""
    room = groups(-(-setting.hidden // UNITS[setting.dtype.itemsize]), device)
    return code(setting, name, 8 if 8 * room >= B else 16, tf32())


@cache
def code(setting: Setting, name: str, rows: int, tf32: bool = False) -> GridCode:
    """attn_rnn_cluster_<name> on a grid, for this setting: eight warps, with a part of each sum."""
    size = setting.dtype.itemsize
    blocks, tiles = -(-setting.hidden // UNITS[size]), UNITS[size] // 16
    rounds = 1 if blocks <= ONE_ROUND else 2
    kept, spare = KEPT[rounds, size, rows]
    sizes = {"ROWS": rows, "CLUSTER": blocks, "EACH": tiles, "SPLIT": WARPS, "TALL": tiles, "ROUNDS": rounds}
    sizes |= {"KEPT": kept, "SPARE": spare, "LANES": 16, "TF32": int(tf32 and setting.dtype == torch.float32)}
    shared = 2 * 4 * WARPS * rows * (UNITS[size] + 4) + 256 * size * WARPS * (
        kept * tiles * 16 * rounds // size + spare
    )
    told = f"attn_rnn_cluster_{name}", files("grid", name), (*setting._macros, *sizes.items())
    least = 8 if name == "forward" and blocks > FEW else 1
    return GridCode(*told, 32 * WARPS, shared, blocks, rows, PACKETS[size], least)


class _Chunk(Chunk):
    code_for = staticmethod(code_for)


def _forward(setting: Setting, arguments: ctypes.Structure, B: int, device: torch.device) -> None:
    code_for(setting, "forward", B, device).start(arguments, B, device)


_TIER = _attn_rnn_scan.Tier(_forward, _Chunk, steps)
