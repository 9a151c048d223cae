"""AttnRNN on a large NVIDIA GPU: a group of blocks anywhere on it takes some rows of the batch through all of time.

A block has 32 units, in float32 16, and their weights in its registers and shared memory; a group has as many blocks as
the units take. They send each other packets through the GPU's memory, which carry the number of their message. A
cooperative launch makes all blocks run at the same time; a large batch takes several launches. The equations and the
backward are those of attn_rnn_cluster.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.precision import allows_tf32
from seqloom.kernels import tuning
from seqloom.kernels.cuda.attn_rnn import scan
from seqloom.kernels.cuda.attn_rnn.backward import DividedChunk, count_steps
from seqloom.kernels.cuda.attn_rnn.setting import TYPES, AttnRNNSetting
from seqloom.kernels.cuda.runtime.groups import GridCode, count_groups

WARPS = 8
PACKETS = {2: 640, 4: 1312}  # of 16 bytes, to a row, by bytes of a number: GROUP of grid_post.cuh


def why_not(cell: Cell, job: ScanJob) -> str | None:
    """Return why this cell or job cannot run here; None if it can."""
    reason = scan.why_not(cell, job, TYPES, largest=tuning.GRID_LARGEST_HIDDEN)
    return reason or scan.why_not_code(TIER, cell, job)


def why_not_auto(_: Cell, job: ScanJob) -> str | None:
    """Return why another kernel is faster for this job; None if none is."""
    most = tuning.GRID_MOST_ROWS
    return f"attn_rnn_graph is faster above {most} rows" if len(job.x) > most else None


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    """Run the cell over the job's sequences."""
    return scan.run(TIER, cell, job)


def find_code(setting: AttnRNNSetting, name: str, B: int, device: torch.device) -> GridCode:
    """Return the kernel that suits a batch of B: 16 rows to a group if groups of 8 do not all run at once."""
    room = count_groups(-(-setting.hidden // tuning.GRID_UNITS[setting.dtype.itemsize]), device)
    return make_code(setting, name, 8 if 8 * room >= B else 16, allows_tf32())


@cache
def make_code(setting: AttnRNNSetting, name: str, rows: int, tf32: bool = False) -> GridCode:
    """Return the kernel attn_rnn_cluster_<name> on a grid: eight warps, each with a part of every sum."""
    size = setting.dtype.itemsize
    units = tuning.GRID_UNITS[size]
    blocks, tiles = -(-setting.hidden // units), units // 16
    rounds = 1 if blocks <= tuning.GRID_ONE_ROUND_BLOCKS else 2
    whole_weights, more_tiles = tuning.GRID_WEIGHTS_IN_SHARED[rounds, size, rows]
    sizes = {"GRID": 1, "ROWS": rows, "CLUSTER": blocks, "EACH": tiles, "SPLIT": WARPS, "TALL": tiles, "ROUNDS": rounds}
    sizes |= {"WEIGHTS_IN_SHARED": whole_weights, "TILES_IN_SHARED": more_tiles, "LANES": 16}
    sizes |= {"TF32": int(tf32 and setting.dtype == torch.float32)}
    weights = 256 * size * WARPS * (whole_weights * tiles * 16 * rounds // size + more_tiles)
    shared = 2 * 4 * WARPS * rows * (units + 4) + weights
    named = f"attn_rnn_cluster_{name}", f"attn_rnn/cluster_{name}.cu", (*setting.macros, *sizes.items())
    least = 8 if name == "forward" and blocks > tuning.GRID_FILL_BLOCKS else 1
    return GridCode(*named, 32 * WARPS, shared, rows, blocks, PACKETS[size], least)


class _GridChunk(DividedChunk):
    find_code = staticmethod(find_code)


TIER = scan.Tier(find_code, _GridChunk, count_steps)
