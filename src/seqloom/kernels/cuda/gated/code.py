"""The two kernels that run gated cells on a GPU: their sizes, and how units are divided among blocks and warps.

The units of a row lie on one block or a cluster, or (`GatedSetting.grid`) on a group of blocks anywhere on the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from seqloom.core.cell import Cell
from seqloom.core.job import ScanJob
from seqloom.core.precision import autocast_dtype
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.runtime import launch, nvrtc
from seqloom.kernels.cuda.runtime.groups import ClusterCode, GridCode, count_groups, has_clusters
from seqloom.kernels.fused import why_not_fused

TYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}  # FORMAT of the CUDA source
GRID_WARPS, GRID_SOURCES = 8, 32  # per block of a grid: warps, and sources from which they receive at a time
TILE = 512  # bytes per weight tile on a grid


@dataclass(frozen=True)
class GatedKind:
    """A cell: its equations, in the file gated/<text>.cuh or generated (`unit`), and its sizes."""

    text: str
    gates: int
    states: int
    norm: bool = False  # layer normalisation of the gates' products
    memory: bool = False  # layer normalisation of the memory
    inputs: int = 0  # planes of x; 0: as many as gates
    vectors: int = 0  # elementwise weight vectors
    output: int = 0  # index of the output state
    unit: str | None = None  # the source of a compiled cell; `text` is then a name for messages
    summed: int = 0  # number of leading gates that depend only on the sum of x and U h + b

    @property
    def planes(self) -> int:
        """Planes of x."""
        return self.inputs or self.gates

    @property
    def spread(self) -> int:
        """Count the numbers that one step of a row saves for the backward pass of its normalisations."""
        return self.gates * self.norm + 2 * self.memory


@dataclass(frozen=True)
class GatedSetting:
    """The cell and the options of a job, as macros of the CUDA text."""

    kind: GatedKind
    hidden: int
    dtype: torch.dtype
    mask: bool
    keep: bool
    reset: bool
    grid: bool = False  # units are divided over blocks anywhere on the GPU, not over a cluster
    tf32: bool = False  # float32 products use TF32 (19 bits)
    kept: bool = False  # the forward pass saves what the backward pass would otherwise recompute

    @property
    def size(self) -> int:
        """Bytes of a number."""
        return self.dtype.itemsize

    @property
    def macros(self) -> tuple[tuple[str, int | str], ...]:
        flags = {"NORM": self.kind.norm, "MEMORY": self.kind.memory}
        flags |= {"MASK": self.mask, "KEEP": self.keep, "RESET": self.reset, "GRID": self.grid, "TF32": self.tf32}
        sizes: dict[str, int | str] = {} if self.kind.unit is not None else {"CELL": self.kind.text}
        sizes |= {"HIDDEN": self.hidden, "FORMAT": TYPES[self.dtype]}
        if self.kind.unit is not None:
            sizes |= {"INPUTS": self.kind.planes, "VECTORS": self.kind.vectors, "OUTPUT": self.kind.output}
        return (*sizes.items(), *((name, int(flag)) for name, flag in flags.items()))

    def count_summed(self, back: bool) -> int:
        """Return the macro SUMMED: for how many gates the forward pass can save the sum of input and product.

        A backward pass is compiled with or without these sums. A forward pass can always save them; each call decides
        whether it does.
        """
        return self.kind.summed if self.kept or not back else 0

    def list_kept(self, back: bool) -> dict[str, int]:
        """Return the macros that define what is saved; a forward pass can always save products."""
        return {"SUMMED": self.count_summed(back)} | ({"KEPT": int(self.kept)} if back and self.kind.norm else {})

    def generate(self, source: str) -> str | None:
        """Return the source of a kernel with the equations of a compiled cell; None if the file has them."""
        return None if self.kind.unit is None else self.kind.unit + nvrtc.read_source(source)


@dataclass(frozen=True)
class GatedDivision:
    """How the units are divided among blocks and warps, and where a warp's tiles of weights lie."""

    rows: int  # rows of the batch
    cluster: int  # blocks per cluster
    each: int  # tiles of 16 units per block
    split: int  # split-K slices: warps per tile of units
    deep: int  # K tiles per warp
    in_shared: int = 0  # tiles in shared memory, not in registers
    from_cache: int = 0  # weight tiles that are read from the cache in every step
    size: int = 2  # bytes per element
    few: int = 0  # rows that are used even if there is room for more; 0: all

    @property
    def taken(self) -> int:
        """Rows of the batch per block or cluster."""
        return self.few or self.rows

    @property
    def warps(self) -> int:
        return self.each * self.split

    @property
    def tile_bytes(self) -> int:
        return 256 * self.size

    def shared_bytes(self, kind: GatedKind, back: bool) -> int:
        """Return the bytes of shared memory in cluster.cuh: buffers, sums, a stage, barriers, words, weights."""
        R, U, values, products = self.rows, 16 * self.each, *((kind.gates, 1) if back else (1, kind.gates))
        spans, span = -(-U // 64), min(U, 64)
        wide = self.split * self.deep
        buffers = 2 * values * R * (64 * (wide | 1) if self.size == 4 else 32 * wide + 16)
        parts, stage = products * 4 * self.split * R * (U + 4), R * spans * self.size * values * span
        sums = (32 * kind.norm + 16 * kind.memory) * self.cluster * spans * R
        weights = self.in_shared * self.warps * self.tile_bytes
        return buffers + parts + stage + sums + 48 + self._handed_bytes(kind, back, spans) + weights

    def helps(self, kind: GatedKind, back: bool) -> bool:
        """Return whether half of the warps have no row and help the others."""
        few = 2 * self.taken <= self.rows and self.cluster <= heuristics.GATED_HELPED_BLOCKS[back]
        return kind.norm and self.size == 2 and few

    def _handed_bytes(self, kind: GatedKind, back: bool, spans: int) -> int:
        """Return the bytes that warps hand to each other if half of them help the others."""
        if not self.helps(kind, back):
            return 0
        gates, states, memory = kind.gates, kind.states, kind.memory
        there = 7 * gates + 2 * states + 10 + 3 * memory if back else 2 * gates + states + 4
        return 256 * self.taken * spans * (there // 4 * 4 + ((2 * gates + 2 * memory + 5) // 4 * 4 if back else 4))


def place_weights(way: GatedDivision, kind: GatedKind, back: bool) -> GatedDivision | None:
    """Place weights in registers first, then in shared memory, then in the cache; None if not even the buffers fit."""
    every, free = kind.gates * way.deep, heuristics.SHARED_BYTES - way.shared_bytes(kind, back)
    room = free // (way.tile_bytes * way.warps)
    if room < 0:
        return None
    # the backward pass and normalised cells hold more values, and a block of 16 warps has few registers per thread
    more = back * (1 + kind.norm) + (way.warps > 12) * (kind.memory + back * kind.norm)
    registers = max(0, heuristics.GATED_REGISTERS[way.size][way.warps] - 16 * more)
    tiles, underway = registers // (2 * way.size), 2 * heuristics.GATED_TILES_UNDERWAY // way.size // way.warps
    rest = every - min(every, tiles)
    if rest > room:
        rest = every - min(every, max(0, tiles - underway))
    in_shared = max(0, min(rest, room))
    return replace(way, in_shared=in_shared, from_cache=rest - in_shared)


def list_feasible(kind: GatedKind, hidden: int, rows: int, back: bool, size: int) -> list[GatedDivision]:
    """Return a division for each size of a cluster that has room for all units."""
    tiles, ways = hidden // 16, []
    for cluster in heuristics.CLUSTER_SIZES:
        splits = ((n, s) for n, s in heuristics.GATED_SPLITS[rows].items() if n * cluster >= tiles)
        each, split = min(splits, default=(0, 0))
        if each:
            way = GatedDivision(rows, cluster, each, split, -(-tiles // split), size=size)
            ways.append(place_weights(way, kind, back))
    return [way for way in ways if way is not None]


@cache
def list_divisions(kind: GatedKind, hidden: int, back: bool, size: int = 2) -> tuple[GatedDivision, ...]:
    """Return the fastest division first, then those for larger batches."""

    def cost(way: GatedDivision) -> tuple[int, int, int]:
        """Return a sort key of divisions: weights read from the cache, then those in shared memory, then messages.

        A block of 16 warps has few registers for each: two blocks of eight are faster if there are three gates, four in
        a normalised cell, or if its weights do not fit (LOG, layer normalisation, second look; the table of speed).
        """
        crowded = size == 2 and way.warps > 12 and way.cluster == 1
        if crowded and (kind.gates > 2 + kind.norm or (kind.norm and way.in_shared)):
            return way.from_cache * way.warps, way.warps, way.cluster
        few = way.cluster == 1 or 4 * way.in_shared <= kind.gates * way.deep
        return way.from_cache * way.warps, 0 if few else way.in_shared * way.warps, way.cluster

    eight, sixteen = (list_feasible(kind, hidden, rows, back, size) for rows in (8, 16))
    ways = [min(eight, key=cost, default=None), min(sixteen, key=cost, default=None)]
    ways += [min((way for way in sixteen if not way.from_cache), key=lambda way: way.cluster, default=None)]
    return tuple(dict.fromkeys(way for way in ways if way is not None))


@cache
def choose_division(
    kind: GatedKind, hidden: int, back: bool, B: int, multiprocessors: int, size: int = 2
) -> GatedDivision:
    """Return the first division whose clusters all run at once, or the one that takes the most rows at once.

    A division uses fewer rows than possible if half of the GPU is enough, since two directions run at the same time.
    """
    ways = list_divisions(kind, hidden, back, size)
    fewest = heuristics.GATED_FEWEST_ROWS if ways[0].cluster == 1 and size == 2 else ()
    for rows in (*fewest, *heuristics.GATED_FEW_ROWS):
        if 2 * ways[0].cluster * -(-B // rows) <= multiprocessors:
            few = place_weights(replace(ways[0], few=rows, in_shared=0, from_cache=0), kind, back)
            if few is not None:
                return few
    room = {way: way.taken * _count_clusters(way, multiprocessors) for way in ways}
    return next((way for way in ways if room[way] >= B), max(ways, key=lambda way: room[way]))


def _count_clusters(way: GatedDivision, multiprocessors: int) -> int:
    return multiprocessors if way.cluster == 1 else max(1, int(heuristics.CLUSTER_FILL * multiprocessors / way.cluster))


@dataclass(frozen=True)
class GatedCode(ClusterCode):
    """A kernel whose rows run on one block, which any GPU can do, or on a cluster."""

    def why_not(self, device: torch.device) -> str | None:
        return super().why_not(device) if self.blocks > 1 else launch.why_not(device)


@cache
def make_code(setting: GatedSetting, name: str, way: GatedDivision) -> GatedCode:
    """Return the kernel gated_<name>, forward or reverse, on one block or a cluster."""
    back = name == "reverse"
    sizes = {"ROWS": way.rows, "CLUSTER": way.cluster, "EACH": way.each, "SPLIT": way.split}
    sizes |= {"IN_SHARED": way.in_shared, "FROM_CACHE": way.from_cache, **setting.list_kept(back)}
    sizes |= {"TAKEN": way.few} if way.few else {}
    sizes |= {"HELPS": 1} if way.helps(setting.kind, back) else {}
    source = f"gated/{name}.cu"
    named = f"gated_{name}", source, (*setting.macros, *sizes.items())
    numbers = 32 * way.warps, way.shared_bytes(setting.kind, back), way.taken, way.cluster
    return GatedCode(*named, *numbers, text=setting.generate(source))


@dataclass(frozen=True)
class GridDivision:
    """How the units are divided among blocks of a grid, and where a warp's tiles of weights lie."""

    blocks: int  # blocks per group
    units: int  # units per block
    in_shared: int  # weight tiles per warp in shared memory
    fits: bool  # no register spills
    parts: int  # bytes of split-K slices, and of sums over units on a cluster
    packets: int  # packets per row


@cache
def place_grid(setting: GatedSetting, name: str, rows: int, units: int, clustered: bool = False) -> GridDivision:
    """Return how a grid with `units` units in each block holds its weights: in registers first, then in shared memory.

    On a cluster (`clustered`), shared memory also holds sums over units.
    """
    kind, back = setting.kind, name == "reverse"
    blocks = -(-setting.hidden // units)
    sources = -(-setting.hidden * setting.size // 64)
    rounds, halves = -(-sources // GRID_SOURCES), 2 if units == 32 and 2 * sources <= GRID_SOURCES else 1
    products, values = (1, kind.gates) if back else (kind.gates, 1)
    near = 16 * rows * (2 * kind.norm + kind.memory) * blocks + 32 if clustered else 0
    parts = products * 4 * GRID_WARPS // halves * rows * (units + 4) + near
    tiles, room = kind.gates * units // 2 * rounds // halves, (heuristics.SHARED_BYTES - parts) // (TILE * GRID_WARPS)
    registers = heuristics.GATED_GRID_REGISTERS[setting.size][name, rows] - 5 * back * kind.memory
    registers -= heuristics.GATED_NORM_REGISTERS[name, rows] * kind.norm
    if halves > 1 and rows == 16 and kind.gates < 4 and not kind.norm:
        registers = max(registers, heuristics.GATED_HALVED_REGISTERS)
    rest = max(0, tiles - registers)
    most = heuristics.GATED_GRID_REGISTERS_TF32 if setting.tf32 else registers
    sums = 0 if near else (2 * kind.norm + kind.memory) * blocks
    packets = 2 * values * 6 * GRID_SOURCES * rounds // halves + sums
    return GridDivision(blocks, units, min(rest, room), tiles - room <= most, parts, packets)


@cache
def make_grid_code(setting: GatedSetting, name: str, rows: int, units: int, clustered: bool = False) -> GridCode:
    """Return the kernel gated_<name> on a grid: eight warps, each with a split-K slice of every sum."""
    way = place_grid(setting, name, rows, units, clustered)
    sizes = {"ROWS": rows, "CLUSTER": way.blocks, "TALL": units // 16, "IN_SHARED": way.in_shared}
    sizes |= {"CLUSTERED": int(clustered), **setting.list_kept(name == "reverse")}
    source = f"gated/{name}.cu"
    named = f"gated_{name}", source, (*setting.macros, *sizes.items())
    numbers = 32 * GRID_WARPS, way.parts + way.in_shared * GRID_WARPS * TILE, rows, way.blocks, way.packets
    return GridCode(*named, *numbers, clustered=clustered, text=setting.generate(source))


def choose_grid(setting: GatedSetting, name: str, B: int, device: torch.device) -> tuple[int, int]:
    """Return the rows of a group and the units of a block: the first of these whose groups all run at once."""
    ways = [(rows, units) for rows in (8, 16) for units in heuristics.GATED_GRID_UNITS[setting.size]]
    ways = [(rows, units) for rows, units in ways if place_grid(setting, name, rows, units).fits or units == ways[0][1]]
    room = {way: way[0] * count_groups(-(-setting.hidden // way[1]), device) for way in ways}
    return next((way for way in ways if room[way] >= B), max(ways, key=lambda way: (room[way], way)))


def is_clustered(setting: GatedSetting, rows: int, units: int, B: int, device: torch.device) -> bool:
    """Return whether groups of a grid are clusters: if a normalised cell's are small enough and all run at once."""
    blocks = -(-setting.hidden // units)
    if not setting.kind.norm or blocks > heuristics.CLUSTER_SIZES[-1] or rows * count_groups(blocks, device, True) < B:
        return False
    return device.type != "cuda" or has_clusters(device)


def find_code(setting: GatedSetting, name: str, B: int, device: torch.device) -> GridCode | GatedCode:
    """Return the kernel for a batch of B rows."""
    if setting.grid:
        chosen = choose_grid(setting, name, B, device)
        return make_grid_code(setting, name, *chosen, is_clustered(setting, *chosen, B, device))
    back, many = name == "reverse", launch.multiprocessors(device)
    way = choose_division(setting.kind, setting.hidden, back, B, many, setting.size)
    if way.cluster > 1 and device.type == "cuda" and not has_clusters(device):
        alone = list_feasible(setting.kind, setting.hidden, 8, back, setting.size)
        way = next((w for w in alone if w.cluster == 1), way)
    return make_code(setting, name, way)


def choose_kept(setting: GatedSetting, B: int, device: torch.device) -> GatedSetting:
    """Return the setting of a prepared call, or of any call of a normalised cell, with the products that it saves.

    For a single block, saving costs more than recomputing (64 units: 0.05 us per step, the product 0.01 us); several
    blocks save while they wait for each other.
    """
    norm = setting.kind.norm
    kept = find_code(setting, "forward", B, device).blocks > 1 if norm else setting.kind.summed > 0
    return replace(setting, kept=kept)


def arrange_weights(setting: GatedSetting, w: Tensor) -> Tensor:
    """Return weights (gates, H, H) in the kernel's layout: rows on a grid, otherwise tiles in the order of lanes.

    A lane has eight values of a 16 x 16 tile: operand A of mma.m16n8k16, or in float32 of two mma.m16n8k8 with permuted
    columns: the lanes of a row have four columns each.
    """
    if setting.grid:
        return w.contiguous()
    gates, n = w.shape[0], w.shape[1] // 16
    if setting.size == 4:
        return w.view(gates, n, 2, 8, n, 4, 4).permute(0, 1, 4, 3, 5, 6, 2).contiguous()
    return w.view(gates, n, 2, 8, n, 2, 4, 2).permute(0, 1, 4, 3, 6, 5, 2, 7).contiguous()


def why_not_job(
    cell: Cell, job: ScanJob, multiple: int = heuristics.HIDDEN_MULTIPLE, takes_float32: bool = False
) -> str | None:
    """Return why no gated kernel can run this job for a cell of this size and multiple; None if one may."""
    dtype, H = autocast_dtype("cuda") or job.x.dtype, cell.hidden_size
    if not job.x.is_cuda:
        return "it is for CUDA tensors"
    if dtype not in TYPES or (dtype == torch.float32 and not takes_float32):
        types = "bfloat16, float16 or float32" if takes_float32 else "bfloat16 or float16"
        return f"it computes in {types}, not {str(dtype).removeprefix('torch.')}"
    largest = heuristics.GATED_LARGEST_HIDDEN
    if H % multiple or largest < H:
        return f"it takes hidden sizes {multiple}, {2 * multiple}, .. {largest}, not {H}"
    if any(t is not None and t.requires_grad for t in (job.mask, *job.keep)):
        return "it gives dropout masks no gradient"
    if job.x.shape[0] == 0 or job.x.shape[1] == 0:
        return "the batch is empty"
    return why_not_fused() or launch.why_not(job.x.device)


def why_not_setting(setting: GatedSetting, job: ScanJob) -> str | None:
    """Return why the kernels of a setting cannot run on the job's GPU; None if they can."""
    device, kind, hidden = job.x.device, setting.kind, setting.hidden
    if not setting.grid and not all(list_divisions(kind, hidden, back, setting.size) for back in (False, True)):
        return f"a cluster has no room for {hidden} units in {str(setting.dtype).removeprefix('torch.')}"
    codes = (find_code(setting, name, len(job.x), device) for name in ("forward", "reverse"))
    return next((reason for code in codes if (reason := code.why_not(device)) is not None), None)
