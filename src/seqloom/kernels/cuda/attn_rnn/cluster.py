"""AttnRNN on NVIDIA GPUs from Hopper on: a cluster of blocks runs all time steps of some rows of the batch.

The blocks divide the units. They hold their weights in registers, and what does not fit there in shared memory, and
send their parts of the state to each other's shared memory. The state is kept in float32. The forward pass saves only
the outputs. The backward pass processes chunks of time, the last one first: batched GEMMs recompute the intermediates
of a chunk, clusters run its backward steps, and batched GEMMs compute the gradients of the weights. Products of float32
have the precision that torch's flags allow: TF32 (19 bits) or full. No host synchronisation; deterministic (no
atomics).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from seqloom.core.precision import allows_tf32
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.attn_rnn import grid, scan
from seqloom.kernels.cuda.attn_rnn.backward import DividedChunk, count_steps
from seqloom.kernels.cuda.attn_rnn.setting import AttnRNNSetting
from seqloom.kernels.cuda.runtime import launch
from seqloom.kernels.cuda.runtime.groups import ClusterCode


@dataclass(frozen=True)
class ClusterDivision:
    """How the units are divided among blocks and warps."""

    rows: int  # rows of the batch per cluster
    cluster: int  # blocks per cluster
    each: int  # tiles of 16 units per block
    split: int  # split-K slices: warps per tile of units
    deep: int  # K tiles per warp
    in_shared: int  # how many of the four weights are in shared memory; the others are in registers

    @property
    def warps(self) -> int:
        return self.each * self.split

    @property
    def units(self) -> int:
        return 16 * self.each

    def count_registers(self, size: int) -> int:
        """Return the number of registers per thread that weights of this size in bytes occupy."""
        return (4 - self.in_shared) * self.deep * 2 * size

    def splits_weights(self, size: int) -> bool:
        """Return whether weights are split into tf32 in every step: KEEP_SPLIT of product.cuh is false."""
        many = 2 * self.count_registers(size) * self.warps > 8 * 128
        return size == 4 and (many or self.warps > 8 or self.in_shared > 0)

    def fits(self, head: int, size: int) -> bool:
        registers = heuristics.CLUSTER_REGISTERS[size][self.warps]
        return self.count_registers(size) <= registers and self.shared_bytes(head, size) <= heuristics.SHARED_BYTES

    def shared_bytes(self, head: int, size: int) -> int:
        """Return the bytes of shared memory in cluster.cuh: sums, buffers, a stage and weights."""
        U, D, R, wide = self.units, head, self.rows, self.split * self.deep
        pieces = U // D if U % D == 0 else 1 if D % U == 0 else (U + D - 2) // D + 1
        crossed = U % D != 0 and self.cluster > 1
        buffers = 3 * R * (64 * (wide | 1) if size == 4 else 32 * wide + 16)
        sums = 16 * R * pieces * (self.cluster if crossed else 1) + 8 * R * self.cluster
        weights = self.in_shared * self.warps * self.deep * 2 * size * 128
        return buffers + 4 * self.split * R * (U + 4) + R * size * U + sums + 4 * R + weights


def list_feasible(hidden: int, head: int, size: int, rows: int) -> list[ClusterDivision]:
    """Return the division with the fewest weights in shared memory, for each cluster size that can hold all."""
    tiles, ways = hidden // 16, []
    for cluster in heuristics.CLUSTER_SIZES:
        splits = ((n, s) for n, s in heuristics.CLUSTER_SPLITS[rows].items() if n * cluster >= tiles)
        each, split = min(splits, default=(0, 0))
        counts = range(heuristics.CLUSTER_WEIGHTS_IN_SHARED + 1 if each else 0)
        candidates = (ClusterDivision(rows, cluster, each, split, -(-tiles // split), k) for k in counts)
        ways += next(([way] for way in candidates if way.fits(head, size)), [])
    return ways


@cache
def list_divisions(hidden: int, head: int, size: int, tf32: bool = False) -> tuple[ClusterDivision, ...]:
    """Return the fastest division first, then those for larger batches."""
    eight, sixteen = (list_feasible(hidden, head, size, rows) for rows in (8, 16))
    ways = [min(eight, key=lambda d: (d.in_shared, not tf32 and d.splits_weights(size), d.cluster), default=None)]
    ways += [min(eight, key=lambda d: (d.in_shared, d.cluster), default=None)]
    ways += [
        min(sixteen, key=order, default=None) for order in (lambda d: (d.in_shared, d.cluster), lambda d: d.cluster)
    ]
    return tuple(dict.fromkeys(d for d in ways if d is not None))


@cache
def choose_division(setting: AttnRNNSetting, B: int, multiprocessors: int, tf32: bool = False) -> ClusterDivision:
    """Return the first division whose clusters all run at once, or the one that takes the most rows at once."""
    ways = list_divisions(setting.hidden, setting.hidden // setting.heads, setting.dtype.itemsize, tf32)
    room = {way: way.rows * max(1, int(heuristics.CLUSTER_FILL * multiprocessors / way.cluster)) for way in ways}
    return next((way for way in ways if room[way] >= B), max(ways, key=lambda way: room[way]))


@cache
def make_code(setting: AttnRNNSetting, name: str, way: ClusterDivision, tf32: bool) -> ClusterCode:
    """Return the kernel attn_rnn_cluster_<name>, forward or reverse."""
    sizes = {"GRID": 0, "ROWS": way.rows, "CLUSTER": way.cluster, "EACH": way.each, "SPLIT": way.split}
    sizes |= {"TALL": 1, "WEIGHTS_IN_SHARED": way.in_shared, "TILES_IN_SHARED": 0, "LANES": 32}
    sizes |= {"TF32": int(tf32 and setting.dtype == torch.float32)}
    shared = way.shared_bytes(setting.hidden // setting.heads, setting.dtype.itemsize)
    named = f"attn_rnn_cluster_{name}", f"attn_rnn/cluster_{name}.cu", (*setting.macros, *sizes.items())
    return ClusterCode(*named, 32 * way.warps, shared, way.rows, way.cluster)


def find_code(setting: AttnRNNSetting, name: str, B: int, device: torch.device) -> ClusterCode:
    """Return the kernel for B rows, in tf32 if torch's current flags allow it."""
    tf32 = allows_tf32()
    return make_code(setting, name, choose_division(setting, B, launch.multiprocessors(device), tf32), tf32)


KERNEL = scan.AttnRNNKernel(
    "cluster",
    find_code,
    DividedChunk,
    count_steps,
    largest=heuristics.CLUSTER_LARGEST_HIDDEN,
    others=(grid.KERNEL,),
    why_no_room=scan.why_not_code,
)
