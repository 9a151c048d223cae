"""AttnRNN on an NVIDIA GPU, for small layers: a block takes one row of the batch through all of time.

Its threads hold the weights in registers, and of more than 96 units some in shared memory, in float32. A product is a
plain sum in float32, whatever the type and torch's flags, shared by a few lanes. A step takes three barriers, four if a
head lies in several warps. The backward is that of attn_rnn_cluster, with another kernel.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.precision import autocast_dtype
from seqloom.kernels import tuning
from seqloom.kernels.cuda.attn_rnn import scan
from seqloom.kernels.cuda.attn_rnn.backward import DividedChunk, count_steps
from seqloom.kernels.cuda.attn_rnn.setting import TYPES, AttnRNNSetting
from seqloom.kernels.cuda.runtime.launch import CudaCode

STAGES = 4  # steps in the ring of what comes from the GPU's memory, as in row.cuh


def why_not(cell: Cell, job: ScanJob) -> str | None:
    """Return why this cell or job cannot run here; None if it can."""
    reason = scan.why_not(cell, job, TYPES, largest=tuning.ROW_LARGEST_HIDDEN)
    return reason or _why_no_room(scan.read_padded(cell, job), job.x.device)


def _why_no_room(setting: AttnRNNSetting, device: torch.device) -> str | None:
    gpu: Any = torch.cuda.get_device_properties(device)  # torch's type stubs lack some of its fields
    needed = max(find_code(setting, name).shared for name in ("forward", "reverse"))
    room = gpu.shared_memory_per_block_optin
    if needed > room:
        return f"it needs {needed >> 10} KB of shared memory to a block, {gpu.name} has {room >> 10}"
    return None


def why_not_auto(cell: Cell, job: ScanJob) -> str | None:
    """Return why another kernel is faster for this job; None if none is."""
    B, dtype = len(job.x), autocast_dtype("cuda") or job.x.dtype
    if dtype != torch.float32:
        few = tuning.ROW_MOST_HALF_ROWS >= B
        return None if few else f"attn_rnn_cuda is faster with {B} rows of 16 bits; kernel='row' asks for it"
    if B * -(-cell.hidden_size // 64) <= tuning.ROW_MOST_ROWS:
        return None
    return f"clusters of blocks should be faster with {B} rows of {cell.hidden_size} units; kernel='row' asks for it"


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    """Run the cell over the job's sequences."""
    return scan.run(TIER, cell, job)


@cache
def find_code(setting: AttnRNNSetting, name: str) -> CudaCode:
    """Return the kernel attn_rnn_row_<name>: forward or reverse."""
    H, D, deep = setting.hidden, setting.hidden // setting.heads, -(-setting.hidden // 32)
    in_shared = next(quads for largest, quads in tuning.ROW_QUADS_IN_SHARED[name].items() if largest >= H)
    threads, piece = 2 * H, 1 if D % 4 else min(16, D & -D)
    size = setting.dtype.itemsize
    slot, spill = size * H * (1 + setting.keep), 16 * threads
    if name == "reverse":
        slot = 4 * H + size * H * (6 + setting.keep) + 16 * setting.heads
    shared = 5 * (128 * deep + 64) + (16 * H // piece if piece != D else 0) + STAGES * slot + spill
    macros, source = (*setting.macros, ("QUADS_IN_SHARED", in_shared)), f"attn_rnn/row_{name}.cu"
    return CudaCode(f"attn_rnn_row_{name}", source, macros, threads, shared + 64 * in_shared * threads)


def _find_code(setting: AttnRNNSetting, name: str, *_: object) -> CudaCode:
    return find_code(setting, name)


class _RowChunk(DividedChunk):
    find_code = staticmethod(_find_code)


TIER = scan.Tier(_find_code, _RowChunk, count_steps)
