"""AttnRNN on an NVIDIA GPU, for small layers: a block runs all time steps of one row of the batch.

Its threads hold the weights in registers in float32, and above 96 units some of them in shared memory. A product is a
plain sum in float32, shared by a few lanes, whatever the type and torch's flags. A step takes three barriers, or four
if a head spans several warps. With more than 96 units and few rows, a second block of a cluster computes the product of
each row that is needed last (row_pair.cuh). The backward pass is that of attn_rnn_cluster, with another kernel.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from seqloom.kernels import heuristics
from seqloom.kernels.cuda.attn_rnn import scan
from seqloom.kernels.cuda.attn_rnn.backward import DividedChunk, count_steps
from seqloom.kernels.cuda.attn_rnn.setting import AttnRNNSetting
from seqloom.kernels.cuda.runtime import groups, launch
from seqloom.kernels.cuda.runtime.launch import CudaCode

STAGES = 4  # steps in the ring buffer for loads from global memory, as in row.cuh


def _why_no_room(setting: AttnRNNSetting, device: torch.device) -> str | None:
    gpu: Any = torch.cuda.get_device_properties(device)  # torch's type stubs lack some of its fields
    needed = max(find_code(setting, name).shared for name in ("forward", "reverse"))
    room = gpu.shared_memory_per_block_optin
    if needed > room:
        return f"it needs {needed >> 10} KB of shared memory to a block, {gpu.name} has {room >> 10}"
    return None


@cache
def find_code(setting: AttnRNNSetting, name: str, paired: bool = False) -> CudaCode:
    """Return the kernel attn_rnn_row_<name>, forward or reverse; attn_rnn_row_pair_<name> has two blocks per row."""
    H, D, deep = setting.hidden, setting.hidden // setting.heads, -(-setting.hidden // 32)
    in_shared = next(quads for largest, quads in heuristics.ROW_QUADS_IN_SHARED[name].items() if largest >= H)
    in_shared = 0 if paired else in_shared
    threads, piece = 2 * H, 1 if D % 4 else min(16, D & -D)
    size, weights, rest = setting.dtype.itemsize, (3 if paired else 4) * 16 * in_shared * threads, 16 * threads
    slot = (4 if paired else size) * H * (1 + setting.keep)
    if name == "reverse":
        slot = 4 * H + size * H * (6 + setting.keep) + 16 * (setting.heads + paired)
    if paired:
        rest = 4 * H + 16
    shared = 5 * (128 * deep + 64) + (16 * H // piece if piece != D else 0) + (2 if paired else STAGES) * slot
    macros = (*setting.macros, ("QUADS_IN_SHARED", in_shared), ("CLUSTER", 1 + paired))
    kernel = f"row_pair_{name}" if paired else f"row_{name}"
    named = f"attn_rnn_{kernel}", f"attn_rnn/{kernel}.cu", macros
    return CudaCode(*named, threads, shared + rest + weights, blocks=1 + paired)


def is_paired(setting: AttnRNNSetting, B: int, device: torch.device) -> bool:
    """Return whether a row gets two blocks: if one lacks the registers for the weights and the GPU has room."""
    is_large, has_room = setting.hidden > heuristics.ROW_PAIR_HIDDEN, launch.multiprocessors(device) >= 2 * B
    return is_large and has_room and groups.has_clusters(device)


def choose_code(setting: AttnRNNSetting, name: str, B: int, device: torch.device) -> CudaCode:
    """Return the kernel for a batch of B rows."""
    return find_code(setting, name, is_paired(setting, B, device))


KERNEL = scan.AttnRNNKernel(
    "row",
    choose_code,
    DividedChunk,
    count_steps,
    largest=dict.fromkeys((2, 4), heuristics.ROW_LARGEST_HIDDEN),
    why_no_room=lambda _, setting, job: _why_no_room(setting, job.x.device),
    gives_end=True,
)
