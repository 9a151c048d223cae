"""AttnRNN on an NVIDIA GPU in one kernel: a block runs all time steps of 8 rows of the batch.

The forward pass saves only the outputs. The backward pass processes chunks of time, the last one first: one kernel
recomputes the intermediates of a chunk, another runs its backward steps, and batched GEMMs compute the gradients of the
weights. The state and its gradient are kept in float32. No host synchronisation; deterministic (no atomics).
"""

from __future__ import annotations

from functools import cache

from torch import Tensor

from seqloom.kernels import heuristics
from seqloom.kernels.cuda.attn_rnn import scan
from seqloom.kernels.cuda.attn_rnn.backward import FusedChunk
from seqloom.kernels.cuda.attn_rnn.setting import AttnRNNSetting
from seqloom.kernels.cuda.runtime.launch import CudaCode

ROWS = 8  # rows per block: the columns of a product


@cache
def find_code(setting: AttnRNNSetting, name: str) -> CudaCode:
    """Return the kernel attn_rnn_<name>: forward, inside or reverse."""
    H = setting.hidden
    sums = H // 16 * (128 if (H // setting.heads) % 16 == 0 else 1536)
    step = (3 + (setting.mask and setting.norm)) * 16 * H + sums
    shared = {
        "forward": step + 4 * (1 + setting.keep) * setting.sequence,
        "inside": step + 3 * 2 * setting.sequence,
        "reverse": 4 * 16 * H + sums + 4 * ((7 + setting.keep) * setting.sequence + 8 * 4 * setting.aux),
    }
    return CudaCode(f"attn_rnn_{name}", f"attn_rnn/block_{name}.cu", setting.macros, 2 * H, shared[name], ROWS)


def count_steps(u: Tensor, slots: int = 1) -> int:
    """Return the number of steps in a chunk of the backward pass."""
    B, T, H = u.shape
    each, (least, most) = B * slots * H, heuristics.BLOCK_CHUNK_NUMBERS
    return min(T, max(1, min(most, max(least, -(-T // heuristics.BLOCK_CHUNKS) * each)) // each))


KERNEL = scan.AttnRNNKernel(
    "cuda",
    lambda setting, name, *_: find_code(setting, name),
    FusedChunk,
    count_steps,
    largest={2: heuristics.BLOCK_LARGEST_HIDDEN},
)
