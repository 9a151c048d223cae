"""The two kernels that run gated cells on groups of blocks anywhere on a GPU: sizes, and where weights lie."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from seqloom.kernels.cuda.attn_rnn.cluster_code import SHARED
from seqloom.kernels.cuda.gated import code as _gated_code
from seqloom.kernels.cuda.gated.code import GatedCode, Setting
from seqloom.kernels.cuda.runtime.grid import GridCode, groups

UNITS, WARPS = 32, 8  # of a block
TILE = 512  # bytes of a tile of weights
REGISTERS = {("forward", 8): 24, ("forward", 16): 20, ("reverse", 8): 16, ("reverse", 16): 16}  # a warp's tiles, rows
PARTS = ("device.cuh", "pairs.cuh", "grid.cuh", "packets.cuh", "gated_math.cuh")
SHARED_PARTS = ("gated_grid.cuh", "gated_grid_product.cuh", "gated_units.cuh")


def code_for(setting: Setting, name: str, B: int, device: torch.device) -> GridCode | GatedCode:
    """The one that suits a batch of B: on clusters, or on a grid with 16 rows to a group where 8 do not run at once."""
    if not setting.grid:
        return _gated_code.code_for(setting, name, B, device)
    room = groups(-(-setting.hidden // UNITS), device)
    return code(setting, name, 8 if 8 * room >= B else 16)


@cache
def code(setting: Setting, name: str, rows: int) -> GridCode:
    """gated_<name>, forward or reverse, on a grid: eight warps, with a part of each sum."""
    kind, blocks, back = setting.kind, -(-setting.hidden // UNITS), name == "reverse"
    made, sent = (1, kind.gates) if back else (kind.gates, 1)
    parts = made * 4 * WARPS * rows * (UNITS + 4)
    kept = min(kind.gates * 16 - REGISTERS[name, rows], (SHARED - parts) // (TILE * WARPS))
    packets = 2 * sent * 6 * 32 + (3 * kind.norm + kind.memory) * blocks
    macros = (*setting.macros, ("ROWS", rows), ("CLUSTER", blocks), ("KEPT", kept), ("BACK", int(back)))
    files = (*PARTS, f"gated_{kind.text}.cuh", *SHARED_PARTS, f"gated_{name}.cu")
    return GridCode(f"gated_{name}", files, macros, 32 * WARPS, parts + kept * WARPS * TILE, blocks, rows, packets)


def as_taken(setting: Setting, w: Tensor) -> Tensor:
    """Weights (gates, H, H) as the kernel reads them: tiles for lanes of a cluster, rows for those of a grid."""
    return w.contiguous() if setting.grid else tiles(w)


def tiles(w: Tensor) -> Tensor:
    """(gates, H, H) as lanes take tiles of 16 x 16 of it: 16 bytes each, the A of mma.m16n8k16."""
    gates, n = w.shape[0], w.shape[1] // 16
    return w.view(gates, n, 2, 8, n, 2, 4, 2).permute(0, 1, 4, 3, 6, 5, 2, 7).contiguous()
