"""Kernels whose blocks all run at the same time, anywhere on a GPU, and send each other packets through its memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from seqloom.kernels.cuda.runtime import launch
from seqloom.kernels.cuda.runtime.launch import Code, record


@dataclass(frozen=True)
class GridCode(Code):
    """A kernel whose blocks all run at the same time."""

    cluster: int  # blocks of a group
    rows: int  # of the batch that a group carries
    packets: int  # to a row
    least: int = 1  # rows of a group, where there are several

    def start(self, arguments: ctypes.Structure, B: int, device: torch.device) -> None:
        """With all groups that the GPU has room for and that have enough to do, in turns: fewer rows, less to send."""
        room = groups(self.cluster, device)
        for begin in range(0, B, self.rows * room):
            each = min(self.rows, max(self.least, -(-(B - begin) // room)))
            count = min(room, -(-(B - begin) // each))
            packets = torch.zeros(count * self.rows * self.packets, 4, dtype=torch.int32, device=device)
            told = _exchanged(type(arguments))(arguments, packets.data_ptr(), begin, each)
            self.launch(told, self.cluster * count, device)

    def why_not(self, device: torch.device) -> str | None:
        """Why it cannot run there: too few multiprocessors, too little memory, or no way to build it."""
        return _why_not(self, torch.cuda.current_device() if device.index is None else device.index)

    def _launch(self, kernel: ctypes.c_void_p, arguments: ctypes.Structure, blocks: int) -> None:
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice()))
        launch._ask(
            "cuLaunchCooperativeKernel", kernel, blocks, 1, 1, self.threads, 1, 1, self.shared, stream, parameters
        )


def groups(blocks: int, device: torch.device) -> int:
    """How many of so many blocks run at the same time, a block to a multiprocessor."""
    return max(1, launch.multiprocessors(device) // blocks)


@cache
def _exchanged(kind: type[ctypes.Structure]) -> type[ctypes.Structure]:
    return record("Exchanged", [("given", kind), "packets", ("begin", ctypes.c_int), ("each", ctypes.c_int)])


@cache
def _why_not(code: GridCode, index: int) -> str | None:
    gpu: Any = torch.cuda.get_device_properties(index)  # torch types fewer of them than it has
    if gpu.multi_processor_count < code.cluster:
        return f"it needs a GPU of {code.cluster} multiprocessors, {gpu.name} has {gpu.multi_processor_count}"
    if gpu.shared_memory_per_block_optin < code.shared:
        room = gpu.shared_memory_per_block_optin >> 10
        return f"it needs {code.shared >> 10} KB of shared memory to a block, {gpu.name} has {room}"
    try:
        with torch.cuda.device(index):
            kernel, count = code._loaded.setdefault(index, launch._load(code, index)), ctypes.c_int()
            told = ctypes.byref(count), kernel, code.threads, ctypes.c_size_t(code.shared)
            launch._ask("cuOccupancyMaxActiveBlocksPerMultiprocessor", *told)
    except RuntimeError as error:
        return f"it cannot be built or loaded: {error}"
    return None if count.value else f"{gpu.name} has no room for a block"
