"""AttnRNN with slots on an NVIDIA GPU in one kernel: a block runs all time steps of the slots of a few sequences.

The eight columns that attn_rnn_cuda uses for rows of the batch are slots here: those of four sequences with two slots
each, or of one sequence with five or more. The scores between slots are a small product. The forward pass saves the
states of all slots if a backward pass may follow; the backward pass is that of attn_rnn_cuda, with other kernels.
"""

from __future__ import annotations

from functools import cache

from seqloom.core.job import ScanJob
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.attn_rnn import block, scan
from seqloom.kernels.cuda.attn_rnn.backward import FusedChunk
from seqloom.kernels.cuda.attn_rnn.setting import AttnRNNSetting
from seqloom.kernels.cuda.runtime.launch import CudaCode


@cache
def find_code(setting: AttnRNNSetting, name: str) -> CudaCode:
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
    macros, shared = (*setting.macros, ("SLOTS", setting.slots)), 16 * H * buffers + scores + rings[name]
    source = f"attn_rnn/slots_{name}.cu"
    return CudaCode(f"attn_rnn_slots_{name}", source, macros, 2 * H, shared, heuristics.MOST_SLOTS // setting.slots)


def _why_no_room(_kernel: scan.AttnRNNKernel, setting: AttnRNNSetting, _job: ScanJob) -> str | None:
    """Return why the kernels do not take this number of slots; None if they do."""
    most = heuristics.MOST_SLOTS
    return None if 2 <= setting.slots <= most else f"it takes 2 to {most} slots, not {setting.slots}"


KERNEL = scan.AttnRNNKernel(
    "slots",
    lambda setting, name, *_: find_code(setting, name),
    FusedChunk,
    block.count_steps,
    largest={2: heuristics.BLOCK_LARGEST_HIDDEN},
    slots=heuristics.MOST_SLOTS,
    why_no_room=_why_no_room,
)
