"""AttnRNN in float32 on an NVIDIA GPU, for small layers: a block takes one row of the batch through all of time.

Its threads hold the weights in registers, and of more than 96 units some in shared memory. A product is a plain sum in
float32, whatever torch's flags allow, and a few lanes share it: nothing but time counts here, and three barriers make a
step of it, four where a head lies in several warps. The backward is that of attn_rnn_cluster, with kernels of its own.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.kernels.cuda.attn_rnn import parts
from seqloom.kernels.cuda.attn_rnn import scan as _attn_rnn_scan
from seqloom.kernels.cuda.attn_rnn.block_code import Setting, setting
from seqloom.kernels.cuda.attn_rnn.cluster_backward import Chunk, steps
from seqloom.kernels.cuda.runtime.launch import Code

MULTIPLE, LARGEST = 16, 128  # of which the hidden size is one, and the largest
MOST = 1_024  # rows of 64 units, half as many above
KERNELS = ("forward", "reverse")
# Up to so many units: how many of a thread's quads of each weight lie in shared memory. With fewer, registers spill.
AWAY = {"forward": {96: 0, 112: 5, 128: 4}, "reverse": {96: 0, 128: 5}}
STAGES = 4  # steps in the ring of what comes from the GPU's memory


def why_not(cell: Any, job: ScanJob) -> str | None:
    reason = parts.why_not(cell, job, (torch.float32,), heads=16)
    if reason is not None:
        return reason
    if cell.hidden_size % MULTIPLE or cell.hidden_size > LARGEST:
        return f"it takes hidden sizes {MULTIPLE}, {2 * MULTIPLE}, .. {LARGEST}, not {cell.hidden_size}"
    flags = (job.mask is not None, bool(job.keep), job.reset is not None)
    how = setting(cell.hidden_size, cell.heads, torch.float32, cell.context, cell.norm, *flags)
    return _no_room(how, job.x.device)


def _no_room(how: Setting, device: torch.device) -> str | None:
    gpu: Any = torch.cuda.get_device_properties(device)  # torch types fewer of them than it has
    needed, room = max(code(how, name).shared for name in KERNELS), gpu.shared_memory_per_block_optin
    if needed > room:
        return f"it needs {needed >> 10} KB of shared memory to a block, {gpu.name} has {room >> 10}"
    return None


def why_not_auto(cell: Any, job: ScanJob) -> str | None:
    """A multiprocessor takes a row at a time, of 64 units two: of many rows a cluster takes more at once.

    Where the two meet is reckoned from their times with 256 rows.
    """
    B = len(job.x)
    if B * -(-cell.hidden_size // 64) <= MOST:
        return None
    return f"clusters of blocks should be faster with {B} rows of {cell.hidden_size} units; kernel='row' asks for it"


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    return _attn_rnn_scan.run(_TIER, cell, job)


@dataclass(frozen=True)
class RowCode(Code):
    """A kernel of a block a row."""

    def start(self, arguments: ctypes.Structure, B: int, device: torch.device) -> None:
        self.launch(arguments, B, device)


def code_for(how: Setting, name: str, _: int, __: torch.device) -> RowCode:
    return code(how, name)


@cache
def code(how: Setting, name: str) -> RowCode:
    """attn_rnn_row_<name>, for this setting."""
    H, D, deep = how.hidden, how.hidden // how.heads, -(-how.hidden // 32)
    threads, away = 2 * H, next(some for largest, some in AWAY[name].items() if largest >= H)
    piece = 1 if D % 4 else min(16, D & -D)
    slot, aside = 4 * H * (1 + how.keep), 16 * threads
    if name == "reverse":
        slot = 4 * H * (7 + how.keep) + 16 * how.heads
    shared = 5 * (128 * deep + 64) + (16 * H // piece if piece != D else 0) + STAGES * slot + aside
    files = ("device.cuh", "pairs.cuh", "attn_rnn_told.cuh", "attn_rnn_row.cuh", f"attn_rnn_row_{name}.cu")
    return RowCode(f"attn_rnn_row_{name}", files, (*how._macros, ("AWAY", away)), threads, shared + 64 * away * threads)


class _Chunk(Chunk):
    code_for = staticmethod(code_for)


def _forward(how: Setting, arguments: ctypes.Structure, B: int, device: torch.device) -> None:
    code_for(how, "forward", B, device).start(arguments, B, device)


_TIER = _attn_rnn_scan.Tier(_forward, _Chunk, steps)
