"""AttnRNN on an NVIDIA GPU in one kernel: a block takes 8 rows of the batch through all of time.

The forward keeps the outputs alone. The backward takes a chunk of time after another, the last first: one kernel
computes what was inside its steps, one walks back through them, and batched products make the weights' gradients.
The state and its gradient are carried in float32; nothing waits for the host; no sum depends on chance.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.kernels.cuda.attn_rnn import parts
from seqloom.kernels.cuda.attn_rnn import scan as _attn_rnn_scan
from seqloom.kernels.cuda.attn_rnn.block_backward import BlockChunk
from seqloom.kernels.cuda.attn_rnn.block_code import LARGEST, Setting
from seqloom.kernels.cuda.attn_rnn.parts import Plan

MULTIPLE = 16  # of which the hidden size is one
CHUNKS = 2  # a chunk's memory, eleven planes of its states, stays small beside a layer's own
SMALL, LARGE = 1 << 19, 1 << 24  # numbers in a plane: fewer are not worth their launches, more not their memory


def why_not(cell: Cell, job: ScanJob) -> str | None:
    reason = parts.why_not(cell, job, (torch.bfloat16, torch.float16), heads=16)
    if reason is None and (cell.hidden_size % MULTIPLE or cell.hidden_size > LARGEST):
        return f"it takes hidden sizes {MULTIPLE}, {2 * MULTIPLE}, .. {LARGEST}, not {cell.hidden_size}"
    return reason


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    return _attn_rnn_scan.run(_TIER, cell, job)


def _forward(setting: Setting, arguments: ctypes.Structure, B: int, device: torch.device) -> None:
    setting.forward.launch(arguments, -(-B // 8), device)


def _chunk(plan: Plan, steps: int, given: dict[str, Any], own: Any) -> BlockChunk:
    u: Tensor = given["x"]
    return BlockChunk(plan.setting, len(u), steps, u, _attn_rnn_scan.in_type(given, own))


def steps(u: Tensor, slots: int = 1) -> int:
    """How many make a chunk."""
    B, T, H = u.shape
    each = B * slots * H
    return min(T, max(1, min(LARGE, max(SMALL, -(-T // CHUNKS) * each)) // each))


_TIER = _attn_rnn_scan.Tier(_forward, _chunk, steps)
