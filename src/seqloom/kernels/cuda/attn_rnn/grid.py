"""AttnRNN on a large NVIDIA GPU: a group of blocks anywhere on it runs all time steps of some rows of the batch.

A block has 32 units (16 or 32 in float32) and keeps their weights in its registers and shared memory; a group has as
many blocks as the units require. Blocks exchange packets, each with the sequence number of its message, through global
memory. A cooperative launch makes all blocks run at the same time; a large batch takes several launches. The equations
and the backward pass are those of attn_rnn_cluster.
"""

from __future__ import annotations

from functools import cache

import torch

from seqloom.core.precision import allows_tf32
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.attn_rnn import scan
from seqloom.kernels.cuda.attn_rnn.backward import DividedChunk, count_steps
from seqloom.kernels.cuda.attn_rnn.setting import AttnRNNSetting
from seqloom.kernels.cuda.runtime.groups import GridCode, count_groups

WARPS = 8
PACKETS = {2: 640, 4: 1312}  # packets of 16 bytes per row, by bytes per element: GROUP of grid_post.cuh


def find_code(setting: AttnRNNSetting, name: str, B: int, device: torch.device) -> GridCode:
    """Return the kernel for a batch of B rows."""
    return make_code(setting, name, *choose_division(setting, B, device), allows_tf32())


def choose_division(setting: AttnRNNSetting, B: int, device: torch.device) -> tuple[int, int]:
    """Return the rows of a group and the units of a block: the first choice whose groups all run at once."""
    size = setting.dtype.itemsize
    ways = [(rows, units) for rows in (8, 16) for units in heuristics.GRID_UNITS[size]]
    known = heuristics.GRID_WEIGHTS_IN_SHARED
    ways = [(rows, units) for rows, units in ways if (count_rounds(setting), size, units, rows) in known]
    room = {way: way[0] * count_groups(-(-setting.hidden // way[1]), device) for way in ways}
    return next((way for way in ways if room[way] >= B), max(ways, key=lambda way: room[way]))


def count_rounds(setting: AttnRNNSetting) -> int:
    """Return the number of rounds in which a warp receives from its sources of 64 bytes of a row each."""
    return 1 if setting.hidden * setting.dtype.itemsize <= 64 * heuristics.GRID_ONE_ROUND_SOURCES else 2


@cache
def make_code(setting: AttnRNNSetting, name: str, rows: int, units: int, tf32: bool = False) -> GridCode:
    """Return the kernel attn_rnn_cluster_<name> on a grid: eight warps, each with a split-K slice of every sum."""
    size, rounds = setting.dtype.itemsize, count_rounds(setting)
    blocks, tiles = -(-setting.hidden // units), units // 16
    tf32 = tf32 and setting.dtype == torch.float32
    whole_weights, more_tiles = heuristics.GRID_WEIGHTS_IN_SHARED[rounds, size, units, rows]
    if tf32:
        whole_weights, more_tiles = heuristics.GRID_WEIGHTS_IN_SHARED_TF32.get(
            (rounds, units, rows, name), (whole_weights, more_tiles)
        )
    sizes = {"GRID": 1, "ROWS": rows, "CLUSTER": blocks, "EACH": tiles, "SPLIT": WARPS, "TALL": tiles, "ROUNDS": rounds}
    sizes |= {"WEIGHTS_IN_SHARED": whole_weights, "TILES_IN_SHARED": more_tiles, "LANES": 16}
    sizes |= {"TF32": int(tf32)}
    weights = 256 * size * WARPS * (whole_weights * tiles * 16 * rounds // size + more_tiles)
    shared = 2 * 4 * WARPS * rows * (units + 4) + weights
    named = f"attn_rnn_cluster_{name}", f"attn_rnn/cluster_{name}.cu", (*setting.macros, *sizes.items())
    least = 8 if name == "forward" and blocks > heuristics.GRID_FILL_BLOCKS else 1
    return GridCode(*named, 32 * WARPS, shared, rows, blocks, PACKETS[size], least)


KERNEL = scan.AttnRNNKernel(
    "grid",
    find_code,
    DividedChunk,
    count_steps,
    largest=dict.fromkeys((2, 4), heuristics.GRID_LARGEST_HIDDEN),
    why_no_room=scan.why_not_code,
)
