"""AttnRNN with slots on an NVIDIA GPU in one kernel: a block runs all time steps of the slots of a few sequences.

The eight columns that attn_rnn_cuda uses for rows of the batch are slots here: those of four sequences with two slots
each, or of one sequence with five or more. The scores between slots are a small product. The forward pass saves the
states of all slots if a backward pass may follow; the backward pass is that of attn_rnn_cuda, with other kernels.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.memory import new_empty
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.attn_rnn import block, scan
from seqloom.kernels.cuda.attn_rnn.backward import FusedChunk
from seqloom.kernels.cuda.attn_rnn.setting import AttnRNNInputs, AttnRNNSetting
from seqloom.kernels.cuda.runtime.launch import CudaCode


def why_not(cell: Cell, job: ScanJob) -> str | None:
    """Return why this cell or job cannot run here; None if it can."""
    most, largest = heuristics.MOST_SLOTS, heuristics.BLOCK_LARGEST_HIDDEN
    reason = scan.why_not(cell, job, (torch.bfloat16, torch.float16), largest=largest, slots=most)
    if reason is None and not 2 <= cell.slots <= most:
        return f"it takes 2 to {most} slots, not {cell.slots}"
    return reason


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    """Run the cell over the job's sequences."""
    return scan.run(_make_tier(cell.slots, torch.is_grad_enabled()), cell, job)


@cache
def _make_tier(slots: int, train: bool) -> scan.Tier:
    """Return the tier for this many slots; `train`: gradients may be wanted."""

    def make_states(y: Tensor) -> Tensor | None:
        B, T, H = y.shape
        return new_empty(y, B, T, slots, H) if train else None

    def find(setting: AttnRNNSetting, name: str, *_: object) -> CudaCode:
        return find_code(setting, slots, name)

    return scan.Tier(find, _make_chunk, lambda u: block.count_steps(u, slots), make_states)


@cache
def find_code(setting: AttnRNNSetting, slots: int, name: str) -> CudaCode:
    """Return the kernel attn_rnn_slots_<name>: forward, inside or reverse."""
    H, D = setting.hidden, setting.hidden // setting.heads
    near = max((16 * w + 15) // D - 16 * w // D + 1 for w in range(H // 16))  # heads that have units in one warp
    scores = H // 16 * near * 544 if 16 % D else 0  # none if no head crosses a warp boundary
    buffers = 4 if name == "reverse" else 3 + (setting.mask and setting.norm)
    rings = {
        "forward": 4 * (1 + setting.keep) * setting.sequence,
        "inside": 3 * 2 * setting.sequence,
        "reverse": 4 * ((7 + setting.keep) * setting.sequence + 8 * 16),
    }
    macros, shared = (*setting.macros, ("SLOTS", slots)), 16 * H * buffers + scores + rings[name]
    source = f"attn_rnn/slots_{name}.cu"
    return CudaCode(f"attn_rnn_slots_{name}", source, macros, 2 * H, shared, heuristics.MOST_SLOTS // slots)


def _make_chunk(inputs: AttnRNNInputs, steps: int, u: Tensor) -> FusedChunk:
    setting, slots = inputs.setting, inputs.cell.slots
    inside, reverse = (find_code(setting, slots, name) for name in ("inside", "reverse"))
    return FusedChunk(inside, reverse, setting, steps, u, 4, slots)
