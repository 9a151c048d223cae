"""AttnRNN with many units and rows on a large NVIDIA GPU, in tiles of 32 or 64 rows.

A group of blocks anywhere on the GPU runs all time steps of its rows, as on a grid; but the weights stay in global
memory, and a block loads chunks of both operands of a product to shared memory. So a group has as many rows as a tile
of a large GEMM, and a block waits for the others four times per step. Float32 products use the fp16 hi/lo split. On
Hopper, warp groups multiply large tiles (wgmma), and two blocks share the same units: each loads half of both operands,
and they exchange partial sums. The equations and the backward pass are those of attn_rnn_cluster.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.core.job import ScanJob
from seqloom.core.memory import empty
from seqloom.core.precision import allows_tf32
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.attn_rnn import scan
from seqloom.kernels.cuda.attn_rnn.backward import DividedChunk, count_steps
from seqloom.kernels.cuda.attn_rnn.setting import AttnRNNSetting
from seqloom.kernels.cuda.products import exact
from seqloom.kernels.cuda.runtime.groups import GridCode, count_groups, has_wgmma
from seqloom.kernels.cuda.runtime.launch import CudaCode

THREADS, CONSTANTS = 256, 5  # as in tiles.cuh


@dataclass(frozen=True)
class TilesCode(GridCode):
    """A kernel with tiles, which reads weights that were packed for it."""

    pack_code: CudaCode | None = None  # the kernel that packs them
    hidden: int = 0
    number: int = 2  # bytes per value
    uses_hi_lo: bool = False

    def start(self, arguments: ctypes.Structure, B: int, device: torch.device) -> None:
        assert self.pack_code is not None
        filled: Any = type(arguments)()
        ctypes.memmove(ctypes.addressof(filled), ctypes.addressof(arguments), ctypes.sizeof(arguments))
        H, is_transposed = self.hidden, self.name.endswith("reverse")
        packed = empty(4 * self.number * H * H, dtype=torch.uint8, device=device)
        places = {"q": filled.w.q, "o": filled.w.o, "g": filled.w.g, "to": packed, "is_transposed": int(is_transposed)}
        if self.uses_hi_lo:
            hi_lo, units = split_weights(filled, H, is_transposed, device)
            places |= {"q": hi_lo, "o": hi_lo[2 * H * H :], "g": hi_lo[4 * H * H :]}
            filled.units = units.data_ptr()
        self.pack_code.launch(self.pack_code.pack(places), len(packed) // (16 * THREADS), device)
        filled.packed = packed.data_ptr()
        super().start(filled, B, device)


def split_weights(arguments: Any, H: int, is_transposed: bool, device: torch.device) -> tuple[Tensor, Tensor]:  # noqa: ANN401  # a struct has any field
    """Return the fp16 hi/lo split of the weights q, o and g, and the inverse scale of every 32 of their rows.

    Args:
        arguments: The kernel's arguments, with the addresses of the weights.
        H: Units.
        is_transposed: Whether the weights are transposed: g is (2 H, H), not (H, 2 H).
        device: Where they are.
    """
    tall, wide = (2 * H, H) if is_transposed else (H, 2 * H)
    hi_lo = empty(8 * H * H, dtype=torch.float16, device=device)
    units = empty(4 * H // exact.ROWS, dtype=torch.float32, device=device)
    code, at, unit = exact.find_split_code(), 0, 0
    for address, rows, columns in ((arguments.w.q, H, H), (arguments.w.o, H, H), (arguments.w.g, tall, wide)):
        numbers = {"rows": rows, "inner": rows, "columns": columns, "outer_stride": 0, "inner_stride": columns}
        places = {"from_": address, "to": hi_lo[at:], "unit": units[unit:]}
        code.launch(code.pack(places | numbers), rows // exact.ROWS, device)
        at, unit = at + 2 * rows * columns, unit + rows // exact.ROWS
    return hi_lo, units


class Division(NamedTuple):
    """How blocks divide a batch and a layer."""

    rows: int  # rows per group
    units: int  # units per block, or per pair of blocks that share them
    # Whether to use wgmma; each of two blocks then computes half of each sum and finishes half of the rows.
    wgmma: bool = False

    @property
    def pair(self) -> int:
        """Number of blocks that share the same units."""
        return 2 if self.wgmma else 1


def find_code(setting: AttnRNNSetting, name: str, B: int, device: torch.device) -> TilesCode:
    """Return the kernel for a batch of B rows."""
    return make_code(setting, name, choose_division(setting, B, device), allows_tf32())


def list_divisions(setting: AttnRNNSetting, wgmma: bool) -> list[Division]:
    """Return the divisions that suit a setting.

    Args:
        setting: What the kernel is compiled for.
        wgmma: Whether the GPU has wgmma.
    """
    H, head = setting.hidden, setting.hidden // setting.heads
    by_units = heuristics.TILES_HOPPER_DIVISIONS[setting.dtype.itemsize]
    hopper = next((ways for largest, ways in by_units if largest >= H), ())
    ways = hopper if wgmma else heuristics.TILES_DIVISIONS
    return [
        way
        for way in (Division(*way) for way in ways)
        if H % (64 * way.pair) == 0
        and head % way.units == 0
        and H // way.units % max(4, THREADS * way.pair // way.rows) == 0
    ]


def choose_division(setting: AttnRNNSetting, B: int, device: torch.device) -> Division:
    """Return the first division whose groups all run at once, or the one that takes the most rows at once."""
    ways = list_divisions(setting, has_wgmma(device))
    room = {way: way.rows * count_groups(setting.hidden // way.units * way.pair, device) for way in ways}
    return next((way for way in ways if room[way] >= B), max(ways, key=lambda way: room[way]))


@dataclass(frozen=True)
class _Plan:
    """Layout of a block's shared memory."""

    rows: int  # rows in a chunk of a message
    columns: int  # rows in a chunk of the widest weight; all three weights have twice as many
    length: int  # bytes of a full row
    parts: int  # bytes of partial sums, which overlay the message's stages
    room: int  # bytes of shared memory

    def divide(self, planes: int) -> tuple[int, int, int, int]:
        """Return the bytes of a row in a chunk, the stages of messages and of weights, and the resident chunks."""
        chunk = heuristics.TILES_CHUNK if self.length % heuristics.TILES_CHUNK == 0 else 128
        stage, of_weights, pieces = self.rows * chunk, self.columns * chunk, chunk // 128
        stages = max(heuristics.TILES_STAGES[planes] // pieces, self.parts // stage)
        room = self.room - max(stages * stage, self.parts)
        rest = room - heuristics.TILES_WEIGHT_STAGES[planes] // pieces * of_weights
        resident = min(self.length // chunk, max(0, rest) // (2 * of_weights))
        return chunk, stages, min(heuristics.TILES_MOST_STAGES, room // of_weights - 2 * resident), resident

    def divide_for_wgmma(self, behind: int) -> tuple[int, int, int, int]:
        """Return the result of `divide` for wgmma.

        Args:
            behind: Chunks that asynchronous products still read while the next ones are loaded.
        """
        if self.length % 256 == 0:
            rest = self.room - 2 * self.columns * self.length
            stages = min(2 * self.length // 256, rest // (256 * self.rows))
            if rest >= self.parts and stages > 1 + behind:  # all weights stay resident
                return 256, stages, 0, self.length // 256
            ahead = self._count_ahead(256, behind)
            if ahead > 1:
                return 256, ahead + behind, ahead + behind, self._count_resident(256, ahead + behind)
        stages = self._count_ahead(128, 1) + 1
        return 128, stages, stages, self._count_resident(128, stages)

    def _count_ahead(self, chunk: int, behind: int) -> int:
        stage, of_weights = self.rows * chunk, self.columns * chunk
        ahead = max(3, heuristics.TILES_AHEAD // (stage + of_weights))
        while ahead > 1 and max(stage * (ahead + behind), self.parts) + of_weights * (ahead + behind) > self.room:
            ahead -= 1
        return ahead

    def _count_resident(self, chunk: int, stages: int) -> int:
        stage, of_weights = self.rows * chunk, self.columns * chunk
        rest = self.room - max(stages * stage, self.parts) - stages * of_weights
        return min(self.length // chunk, max(0, rest) // (2 * of_weights))


@cache
def make_code(setting: AttnRNNSetting, name: str, way: Division, tf32: bool = False) -> TilesCode:
    """Return the kernel attn_rnn_tiles_<name>."""
    H, size = setting.hidden, setting.dtype.itemsize
    rows, units, wgmma = way
    pair = way.pair
    tf32 = tf32 and setting.dtype == torch.float32
    uses_hi_lo = setting.dtype == torch.float32 and not tf32
    planes, number, blocks, wide = 2 if uses_hi_lo else 1, 2 if uses_hi_lo else size, H // units, 2 * units
    divided = 4 if not wgmma else 2 if units < 64 else 1
    parts = -(-4 * divided * rows // pair * (wide + 8) // 1024) * 1024
    fixed = 4 * CONSTANTS * units + (4 * rows * blocks // pair if uses_hi_lo else 0) + (1024 if wgmma else 0)
    fixed += (pair - 1) * parts
    plan = _Plan(rows * planes, wide * planes, H * number // pair, parts, heuristics.SHARED_BYTES - fixed - 128)
    division = plan.divide_for_wgmma(1 if uses_hi_lo else 2) if wgmma else plan.divide(planes)
    chunk, stages, weight_stages, resident = division
    bulk = wgmma and chunk == 128  # one thread loads chunks (cp.async.bulk) if wider chunks do not fit
    fixed += 128 if bulk else 0
    lines = (weight_stages + 2 * resident) * wide * planes
    shared = fixed + max(stages * rows * planes * chunk, parts) + lines * chunk
    group = 128 + 3 * rows * H * number * planes + 36 * rows * blocks
    sizes = {"GRID": 1, "ROWS": rows, "CLUSTER": blocks, "UNITS": units, "CHUNK": chunk, "STAGES": stages}
    sizes |= {"WEIGHT_STAGES": weight_stages, "RESIDENT": resident, "TF32": int(tf32)}
    sizes |= {"WGMMA": int(wgmma), "BULK": int(bulk)}
    macros = (*setting.macros, *sizes.items())
    named = f"attn_rnn_tiles_{name}", f"attn_rnn/tiles_{name}.cu", macros
    pack_code = CudaCode("attn_rnn_tiles_pack", "attn_rnn/tiles_pack.cu", macros, THREADS, 0)
    packets, of_number = -(-group // (16 * rows)), number * planes
    own: dict[str, Any] = {"pack_code": pack_code, "hidden": H, "number": of_number, "uses_hi_lo": uses_hi_lo}
    own |= {"paired": pair > 1, "generation": "a" if wgmma else ""}
    return TilesCode(*named, THREADS, shared, rows, blocks * pair, packets, **own)


def _why_no_room(kernel: scan.AttnRNNKernel, setting: AttnRNNSetting, job: ScanJob) -> str | None:
    """Return why the kernels of a setting do not fit the job's GPU; None if they do."""
    if not list_divisions(setting, has_wgmma(job.x.device)):
        units = setting.heads * (setting.real_head or setting.hidden // setting.heads)
        return f"it cannot divide {units} units in {setting.heads} heads"
    return scan.why_not_code(kernel, setting, job)


KERNEL = scan.AttnRNNKernel(
    "tiles",
    find_code,
    DividedChunk,
    count_steps,
    largest=dict.fromkeys((2, 4), heuristics.TILES_LARGEST_HIDDEN),
    why_no_room=_why_no_room,
    takes_strides=True,
)
