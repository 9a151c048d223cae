"""The two kernels that run gated cells on a GPU: how units are divided among blocks and warps, sizes, launching."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch

from seqloom.kernels.cuda.attn_rnn.cluster_code import FULL, SHARED, SIZES, ClusterCode
from seqloom.kernels.cuda.runtime import launch

MULTIPLE = 16  # of which the hidden size is one
TYPES = {torch.bfloat16: 0, torch.float16: 1}
# rows, tiles of units to a block: warps to a tile
SPLITS = {8: {1: 8, 2: 4, 3: 4, 4: 2, 8: 2}, 16: {1: 16, 2: 8, 4: 4}}
REGISTERS = {8: 128, 12: 96, 16: 64}  # a thread's for weights, by warps
RING = 64  # tiles on their way from the cache to a block
LARGEST = 1024  # hidden size
PARTS = ("device.cuh", "pairs.cuh", "cluster.cuh", "gated_math.cuh")
SHARED_PARTS = ("gated.cuh", "gated_product.cuh", "gated_units.cuh")


@dataclass(frozen=True)
class Kind:
    """A cell: the name of its text, gated_<text>.cuh, and what that says."""

    text: str
    gates: int
    states: int
    norm: bool = False  # of the gates' products
    memory: bool = False  # of the memory


@dataclass(frozen=True)
class Setting:
    """What the kernels are compiled for."""

    kind: Kind
    hidden: int
    dtype: torch.dtype
    mask: bool
    keep: bool
    reset: bool
    grid: bool = False  # units are divided over blocks anywhere on the GPU, not over a cluster

    @property
    def macros(self) -> tuple[tuple[str, int], ...]:
        flags = {"NORM": self.kind.norm, "MEMORY": self.kind.memory}
        flags |= {"MASK": self.mask, "KEEP": self.keep, "RESET": self.reset}
        sizes = {"HIDDEN": self.hidden, "FORMAT": TYPES[self.dtype]}
        return tuple((sizes | {name: int(flag) for name, flag in flags.items()}).items())


@dataclass(frozen=True)
class Division:
    """How the units are divided among blocks and warps, and where a warp's tiles of weights lie."""

    rows: int  # of the batch
    cluster: int  # blocks
    each: int  # tiles of 16 units to a block
    split: int  # warps that share the sum of one tile's product
    deep: int  # tiles of the sum to a warp
    kept: int = 0  # tiles in shared memory, not in registers
    flown: int = 0  # tiles that come from the GPU's cache in every step

    @property
    def warps(self) -> int:
        return self.each * self.split

    def shared(self, kind: Kind, back: bool) -> int:
        """Bytes, as in gated.cuh: buffers, parts of sums, a stage, sums over rows, barriers, weights."""
        R, U, sent, made = self.rows, 16 * self.each, *((kind.gates, 1) if back else (1, kind.gates))
        spans, span = -(-U // 64), min(U, 64)
        buffers = 2 * sent * R * (32 * self.split * self.deep + 16)
        parts, stage = made * 4 * self.split * R * (U + 4), R * spans * 2 * sent * span
        sums = (32 * kind.norm + 16 * kind.memory) * self.cluster * spans * R
        return buffers + parts + stage + sums + 32 + self.kept * self.warps * 512


def filled(way: Division, kind: Kind, back: bool) -> Division | None:
    """Weights in registers first, then in shared memory, then in the cache; None where not even buffers fit."""
    every, room = kind.gates * way.deep, (SHARED - way.shared(kind, back)) // (512 * way.warps)
    if room < 0:
        return None
    registers = REGISTERS[way.warps] - 16 * back * (1 + kind.norm)  # the reverse has more else to hold
    rest = every - min(every, registers // 4)
    if rest > room:
        rest = every - min(every, registers // 4 - RING // way.warps)  # which are on their way here
    kept = max(0, min(rest, room))
    return replace(way, kept=kept, flown=rest - kept)


def feasible(kind: Kind, hidden: int, rows: int, back: bool) -> list[Division]:
    """One for each size of a cluster that can have all units."""
    tiles, found = hidden // 16, []
    for cluster in SIZES:
        each, split = min(((n, s) for n, s in SPLITS[rows].items() if n * cluster >= tiles), default=(0, 0))
        if each:
            found.append(filled(Division(rows, cluster, each, split, -(-tiles // split)), kind, back))
    return [way for way in found if way is not None]


@cache
def divisions(kind: Kind, hidden: int, back: bool) -> tuple[Division, ...]:
    """The quickest one first, then those for larger batches."""

    def slow(way: Division) -> tuple[int, int, int]:
        """Weights from the cache cost most, then those in shared memory if they are not few, then messages."""
        few = way.cluster == 1 or 4 * way.kept <= kind.gates * way.deep
        return way.flown * way.warps, 0 if few else way.kept * way.warps, way.cluster

    eight, sixteen = (feasible(kind, hidden, rows, back) for rows in (8, 16))
    found = [min(eight, key=slow, default=None), min(sixteen, key=slow, default=None)]
    found += [min((way for way in sixteen if not way.flown), key=lambda way: way.cluster, default=None)]
    return tuple(dict.fromkeys(way for way in found if way is not None))


@cache
def division(kind: Kind, hidden: int, back: bool, B: int, multiprocessors: int) -> Division:
    """The first whose clusters all run at the same time, or the one that takes the most rows at once."""
    ways = divisions(kind, hidden, back)
    room = {way: way.rows * _at_once(way, multiprocessors) for way in ways}
    return next((way for way in ways if room[way] >= B), max(ways, key=lambda way: room[way]))


def _at_once(way: Division, multiprocessors: int) -> int:
    return multiprocessors if way.cluster == 1 else max(1, int(FULL * multiprocessors / way.cluster))


@dataclass(frozen=True)
class GatedCode(ClusterCode):
    """A kernel whose rows run on one block, which every GPU can, or on a cluster."""

    def why_not(self, device: torch.device) -> str | None:
        return super().why_not(device) if self.cluster > 1 else launch.why_not(device)


@cache
def code(setting: Setting, name: str, way: Division) -> GatedCode:
    """gated_<name>, forward or reverse, for this setting."""
    back = name == "reverse"
    sizes = {"ROWS": way.rows, "CLUSTER": way.cluster, "EACH": way.each, "SPLIT": way.split}
    sizes |= {"KEPT": way.kept, "FLOWN": way.flown, "BACK": int(back)}
    macros = (*setting.macros, *sizes.items())
    files = (*PARTS, f"gated_{setting.kind.text}.cuh", *SHARED_PARTS, f"gated_{name}.cu")
    threads, shared = 32 * way.warps, way.shared(setting.kind, back)
    return GatedCode(f"gated_{name}", files, macros, threads, shared, way.cluster, way.rows)


def code_for(setting: Setting, name: str, B: int, device: torch.device) -> GatedCode:
    """The one that suits a batch of B."""
    back, many = name == "reverse", launch.multiprocessors(device)
    return code(setting, name, division(setting.kind, setting.hidden, back, B, many))
