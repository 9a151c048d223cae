"""The kernels that run AttnRNN on clusters of blocks: how the units are divided, sizes, launching."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch

from seqloom.kernels.cuda.attn_rnn.block_code import Setting
from seqloom.kernels.cuda.runtime import launch
from seqloom.kernels.cuda.runtime.launch import Code

HOPPER = (9, 0)  # the first generation with clusters
SIZES = (1, 2, 4, 8, 16)  # of clusters
FULL = 0.9  # share of a GPU that clusters fill: not every multiprocessor finds neighbours
SPLITS = {8: {1: 8, 2: 4, 3: 4, 4: 2}, 16: {1: 16, 2: 8, 4: 4}}  # rows, tiles of units to a block: warps to a tile
REGISTERS = {
    2: {8: 128, 12: 96, 16: 64},
    4: {8: 128, 12: 96, 16: 48},
}  # a thread's for weights: bytes of a number, warps
SHARED = 227 << 10  # bytes of a block
MOST_KEPT = 2  # weights in shared memory
LARGEST = {2: 768, 4: 512}  # hidden size, for bytes of a number
LARGE_CLUSTERS, CLUSTER_DIMENSION = 14, 4  # of CUfunction_attribute and CUlaunchAttributeID


@dataclass(frozen=True)
class Division:
    """How the units are divided among blocks and warps."""

    rows: int  # of the batch
    cluster: int  # blocks
    each: int  # tiles of 16 units to a block
    split: int  # warps that share the sum of one tile's product
    deep: int  # tiles of the sum to a warp
    kept: int  # of the four weights in shared memory, not in registers

    @property
    def warps(self) -> int:
        return self.each * self.split

    @property
    def units(self) -> int:
        return 16 * self.each

    def registers(self, size: int) -> int:
        """A thread's, for weights of numbers of so many bytes."""
        return (4 - self.kept) * self.deep * 2 * size

    def splits(self, size: int) -> bool:
        """Whether weights are taken apart anew in every step: KEEP_SPLIT of attn_rnn_cluster_product.cuh is false."""
        return size == 4 and (2 * self.registers(size) * self.warps > 8 * 128 or self.warps > 8 or self.kept > 0)

    def fits(self, head: int, size: int) -> bool:
        return self.registers(size) <= REGISTERS[size][self.warps] and self.shared(head, size) <= SHARED

    def shared(self, head: int, size: int) -> int:
        """Bytes, as in attn_rnn_cluster.cuh: parts of sums, buffers, a stage, sums over heads and rows, weights."""
        U, D, R, wide = self.units, head, self.rows, self.split * self.deep
        pieces = U // D if U % D == 0 else 1 if D % U == 0 else (U + D - 2) // D + 1
        crossed = U % D != 0 and self.cluster > 1
        buffers = 3 * R * (64 * (wide | 1) if size == 4 else 32 * wide + 16)
        sums = 16 * R * pieces * (self.cluster if crossed else 1) + 8 * R * self.cluster
        weights = self.kept * self.warps * self.deep * 2 * size * 128
        return buffers + 4 * self.split * R * (U + 4) + R * size * U + sums + 4 * R + weights


def feasible(hidden: int, head: int, size: int, rows: int) -> list[Division]:
    """For each size of a cluster that holds the weights, the one with the fewest of them in shared memory."""
    tiles, found = hidden // 16, []
    for cluster in SIZES:
        fewest, split = min(((n, s) for n, s in SPLITS[rows].items() if n * cluster >= tiles), default=(0, 0))
        ways = [
            Division(rows, cluster, fewest, split, -(-tiles // max(1, split)), kept) for kept in range(MOST_KEPT + 1)
        ]
        found += next(([way] for way in ways if fewest and way.fits(head, size)), [])
    return found


@cache
def divisions(hidden: int, head: int, size: int, tf32: bool = False) -> tuple[Division, ...]:
    """The quickest one first, then those for larger batches."""
    eight, sixteen = (feasible(hidden, head, size, rows) for rows in (8, 16))
    found = [min(eight, key=lambda d: (d.kept, not tf32 and d.splits(size), d.cluster), default=None)]
    found += [min(eight, key=lambda d: (d.kept, d.cluster), default=None)]
    found += [min(sixteen, key=order, default=None) for order in (lambda d: (d.kept, d.cluster), lambda d: d.cluster)]
    return tuple(dict.fromkeys(d for d in found if d is not None))


@cache
def division(setting: Setting, B: int, multiprocessors: int, tf32: bool = False) -> Division:
    """The first whose clusters all run at the same time, or the one that takes the most rows at once."""
    ways = divisions(setting.hidden, setting.hidden // setting.heads, setting.dtype.itemsize, tf32)
    room = {way: way.rows * max(1, int(FULL * multiprocessors / way.cluster)) for way in ways}
    return next((way for way in ways if room[way] >= B), max(ways, key=lambda way: room[way]))


@dataclass(frozen=True)
class ClusterCode(Code):
    """A kernel whose blocks come in clusters."""

    cluster: int
    rows: int

    @property
    def attributes(self) -> tuple[tuple[int, int], ...]:
        return (*super().attributes, *([(LARGE_CLUSTERS, 1)] if self.cluster > 1 else []))

    def start(self, arguments: ctypes.Structure, B: int, device: torch.device) -> None:
        """With as many clusters as a batch of B takes."""
        self.launch(arguments, self.cluster * -(-B // self.rows), device)

    def why_not(self, device: torch.device) -> str | None:
        """Why it cannot run there: no room for one cluster, or no way to build it."""
        return _why_not(self, torch.cuda.current_device() if device.index is None else device.index)


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _Launch(ctypes.Structure):
    _fields_ = (
        *((f"{kind}_{axis}", ctypes.c_uint) for kind in ("grid", "block") for axis in "xyz"),
        *(("shared", ctypes.c_uint), ("stream", ctypes.c_void_p)),
        *(("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint)),
    )


@cache
def _why_not(code: ClusterCode, index: int) -> str | None:
    name = torch.cuda.get_device_name(index)
    if torch.cuda.get_device_capability(index) < HOPPER:
        return f"it needs a GPU that has clusters of blocks, of the Hopper generation or later, {name} is older"
    try:
        if _active(code, index) > 0:
            return None
    except RuntimeError as error:
        return f"it cannot be built or loaded: {error}"
    return f"{name} has no room for a cluster of {code.cluster} blocks"


def _active(code: ClusterCode, index: int) -> int:
    """Clusters that run at the same time."""
    with torch.cuda.device(index):
        kernel = code._loaded.setdefault(index, launch._load(code, index))
        size = _Attribute(CLUSTER_DIMENSION, 0, (ctypes.c_uint * 16)(code.cluster, 1, 1))
        how = _Launch(code.cluster, 1, 1, code.threads, 1, 1, code.shared, None, ctypes.pointer(size), 1)
        count = ctypes.c_int()
        launch._ask("cuOccupancyMaxActiveClusters", ctypes.byref(count), kernel, ctypes.byref(how))
    return count.value


@cache
def code(setting: Setting, name: str, way: Division, tf32: bool) -> ClusterCode:
    """attn_rnn_cluster_<name>, for this setting."""
    sizes = {"ROWS": way.rows, "CLUSTER": way.cluster, "EACH": way.each, "SPLIT": way.split, "KEPT": way.kept}
    sizes |= {"TALL": 1, "SPARE": 0, "LANES": 32, "TF32": int(tf32 and setting.dtype == torch.float32)}
    shared = way.shared(setting.hidden // setting.heads, setting.dtype.itemsize)
    told = f"attn_rnn_cluster_{name}", files("cluster", name), (*setting._macros, *sizes.items())
    return ClusterCode(*told, 32 * way.warps, shared, way.cluster, way.rows)


def files(tier: str, name: str) -> tuple[str, ...]:
    """The text, where blocks share the units through what <tier>.cuh says."""
    own = (*(["packets", "attn_rnn_grid_post"] if tier == "grid" else []), f"attn_rnn_{tier}", f"attn_rnn_{tier}_tiles")
    parts = (
        "device",
        "pairs",
        "attn_rnn_told",
        tier,
        "attn_rnn_cluster_units",
        *own,
        "attn_rnn_cluster_product",
        "attn_rnn_math",
    )
    return (*(f"{part}.cuh" for part in parts), f"attn_rnn_cluster_{name}.cu")


def code_for(setting: Setting, name: str, B: int, device: torch.device) -> ClusterCode:
    """The one that suits a batch of B, and torch's word on products of float32."""
    short = tf32()
    return code(setting, name, division(setting, B, launch.multiprocessors(device), short), short)


def tf32() -> bool:
    return torch.backends.cuda.matmul.fp32_precision == "tf32"
