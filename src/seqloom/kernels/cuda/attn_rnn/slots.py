"""AttnRNN with slots on an NVIDIA GPU in one kernel: a block takes the slots of a few sequences through all of time.

The eight columns that attn_rnn_cuda has for rows of the batch are slots here: of four sequences with two each, of one
with five or more. What slots ask of each other is a small product of its own. The forward keeps the states of all slots
where someone may go back, and the backward is that of attn_rnn_cuda, with kernels of its own.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import State
from seqloom.core.job import ScanJob
from seqloom.kernels.cuda.attn_rnn import parts as _attn_rnn_parts
from seqloom.kernels.cuda.attn_rnn import scan as _attn_rnn_scan
from seqloom.kernels.cuda.attn_rnn.block import MULTIPLE, steps
from seqloom.kernels.cuda.attn_rnn.block_backward import Chunk
from seqloom.kernels.cuda.attn_rnn.block_code import LARGEST, Inside, Reverse, Setting, SlotsForward
from seqloom.kernels.cuda.attn_rnn.parts import Plan
from seqloom.kernels.cuda.runtime import launch
from seqloom.kernels.cuda.runtime.launch import Code

SLOTS = 8  # at most
KERNELS = ("forward", "inside", "reverse")


def why_not(cell: Any, job: ScanJob) -> str | None:
    reason = _attn_rnn_parts.why_not(cell, job, (torch.bfloat16, torch.float16), heads=16, slots=True)
    if reason is not None:
        return reason
    if not 2 <= cell.slots <= SLOTS:
        return f"it takes 2 to {SLOTS} slots, not {cell.slots}"
    if cell.hidden_size % MULTIPLE or cell.hidden_size > LARGEST:
        return f"it takes hidden sizes {MULTIPLE}, {2 * MULTIPLE}, .. {LARGEST}, not {cell.hidden_size}"
    return None


def run(cell: Any, job: ScanJob) -> tuple[Tensor, State]:
    return _attn_rnn_scan.run(_tier(cell.slots, torch.is_grad_enabled()), cell, job)


@cache
def _tier(slots: int, back: bool) -> _attn_rnn_scan.Tier:
    """`back`: someone may ask for gradients."""
    at_once = SLOTS // slots

    def forward(how: Setting, arguments: ctypes.Structure, B: int, device: torch.device) -> None:
        code(how, slots, "forward").launch(arguments, -(-B // at_once), device)

    def states(y: Tensor, _: Tensor) -> Tensor | None:
        B, T, H = y.shape
        return y.new_empty(B, T, slots, H) if back else None

    return _attn_rnn_scan.Tier(forward, _Chunk, lambda u: steps(u, slots), SlotsForward, states)


@cache
def code(how: Setting, slots: int, name: str) -> Code:
    """attn_rnn_slots_<name>, for this setting."""
    H, D = how.hidden, how.hidden // how.heads
    near = max((16 * w + 15) // D - 16 * w // D + 1 for w in range(H // 16))  # heads that have units in one warp
    scores = H // 16 * near * 544 if 16 % D else 0  # nothing where no head crosses a warp's border
    buffers = 4 if name == "reverse" else 3 + (how.mask and how.norm)
    rings = {
        "forward": 4 * (1 + how.keep) * how._sequence,
        "inside": 3 * 2 * how._sequence,
        "reverse": 4 * ((7 + how.keep) * how._sequence + 8 * 16),
    }
    parts = ["slots"] if name == "reverse" else ["math", "step", "slots", "slots_step"]
    files = ("device.cuh", "attn_rnn.cuh", *(f"attn_rnn_{part}.cuh" for part in parts), f"attn_rnn_slots_{name}.cu")
    shared = 16 * H * buffers + scores + rings[name]
    return Code(f"attn_rnn_slots_{name}", files, (*how._macros, ("SLOTS", slots)), 2 * H, shared)


class _Chunk(Chunk):
    """Planes of every slot's rows: one kernel for what is inside the steps, one back through them."""

    def __init__(self, plan: Plan, steps: int, given: dict[str, Any], own: Any) -> None:
        u: Tensor = given["x"]
        self.slots, self.rows = plan.cell.slots, len(u)
        super().__init__(plan.setting, len(u) * self.slots, steps, u, _attn_rnn_scan.in_type(given, own))
        self.aux = u.new_empty(self.B * steps, 4, dtype=torch.float32)
        told = self.given | self.planes | {"aux": self.aux}
        self.told: tuple[Any, Any] = launch.pointers(Inside, told), launch.pointers(Reverse, told)
        self.at_once = launch.multiprocessors(u.device) * max(1, LARGEST // plan.setting.hidden)

    def _walk(self, begin: int, steps: int) -> None:
        inside, reverse = self.told
        inside.from_ = reverse.from_ = begin
        inside.steps = reverse.steps = steps
        sequences = SLOTS // self.slots
        blocks = min(self.at_once, -(-self.rows * steps // sequences))
        code(self.setting, self.slots, "inside").launch(inside, blocks, self.device)
        code(self.setting, self.slots, "reverse").launch(reverse, -(-self.rows // sequences), self.device)
