"""Kernels whose blocks cooperate: on a cluster (Hopper and later), or in groups anywhere on a GPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from seqloom.kernels import heuristics
from seqloom.kernels.cuda.runtime import launch
from seqloom.kernels.cuda.runtime.launch import CudaCode

HOPPER = (9, 0)  # the first generation with clusters
LARGE_CLUSTERS = 14  # a CUfunction_attribute
COOPERATIVE, CLUSTER_DIMENSION = 2, 4  # a CUlaunchAttributeID


@dataclass(frozen=True)
class ClusterCode(CudaCode):
    """A kernel whose blocks come in clusters."""

    @property
    def attributes(self) -> tuple[tuple[int, int], ...]:
        return (*super().attributes, *([(LARGE_CLUSTERS, 1)] if self.blocks > 1 else []))

    def why_not(self, device: torch.device) -> str | None:
        """Return why the kernel cannot run on this device: no room for one cluster, or no way to build it."""
        return _why_not_cluster(self, _find_index(device))


@dataclass(frozen=True)
class GridCode(CudaCode):
    """A kernel whose blocks all run at the same time and exchange packets through the GPU's memory."""

    packets: int = 0  # packets per row
    least: int = 1  # rows of a group, if there are several groups
    clustered: bool = False  # whether a group is a cluster, too
    paired: bool = False  # whether two consecutive blocks are a cluster, as declared in the source

    @property
    def attributes(self) -> tuple[tuple[int, int], ...]:
        return (*super().attributes, *([(LARGE_CLUSTERS, 1)] if self.clustered else []))

    def start(self, arguments: ctypes.Structure, B: int, device: torch.device) -> None:
        """Launch as many groups as fit on the GPU; repeat for a large batch."""
        room = count_groups(self.blocks, device, self.clustered)
        for begin in range(0, B, self.rows * room):
            # Fewer rows per group reduce communication.
            group_rows = min(self.rows, max(self.least, -(-(B - begin) // room)))
            count = min(room, -(-(B - begin) // group_rows))
            packets = torch.zeros(count * self.rows * self.packets, 4, dtype=torch.int32, device=device)
            extended: Any = launch.read_struct("runtime/packet.cuh", "GroupArguments", type(arguments))()
            ctypes.memmove(ctypes.addressof(extended), ctypes.addressof(arguments), ctypes.sizeof(arguments))
            extended.packets, extended.begin, extended.group_rows = packets.data_ptr(), begin, group_rows
            self.launch(extended, self.blocks * count, device)

    def why_not(self, device: torch.device) -> str | None:
        """Return why the kernel cannot run on this device: too few multiprocessors, too little memory, no compiler."""
        index = _find_index(device)
        return _why_not_cluster(self, index) if self.clustered else _why_not_grid(self, index)

    def _launch(self, kernel: ctypes.c_void_p, arguments: ctypes.Structure, blocks: int, index: int) -> None:
        if self.clustered:  # the blocks of a cluster run at the same time; clusters do not wait for each other
            super()._launch(kernel, arguments, blocks, index)
            return
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(index))
        if self.paired:
            together = _Attribute(COOPERATIVE, 0, (ctypes.c_uint * 16)(1))
            config = _Launch(blocks, 1, 1, self.threads, 1, 1, self.shared, stream, ctypes.pointer(together), 1)
            launch._call("cuLaunchKernelEx", ctypes.byref(config), kernel, parameters, None)
            return
        sizes = (blocks, 1, 1, self.threads, 1, 1, self.shared)
        launch._call("cuLaunchCooperativeKernel", kernel, *sizes, stream, parameters)


@cache
def has_clusters(device: torch.device) -> bool:
    """Return whether blocks of this device can write into each other's shared memory."""
    return torch.cuda.get_device_capability(device) >= HOPPER


@cache
def has_wgmma(device: torch.device) -> bool:
    """Return whether the GPU has wgmma (products by a group of four warps), which only Hopper has."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == HOPPER


def count_groups(blocks: int, device: torch.device, clustered: bool = False) -> int:
    """Return how many groups of `blocks` blocks run at the same time, one block on each multiprocessor."""
    fill = heuristics.CLUSTER_FILL if clustered else 1
    return max(1, int(fill * launch.multiprocessors(device) / blocks))


def _find_index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _Launch(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((f"{kind}_{axis}", ctypes.c_uint) for kind in ("grid", "block") for axis in "xyz"),
        *(("shared", ctypes.c_uint), ("stream", ctypes.c_void_p)),
        *(("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint)),
    )


@cache
def _why_not_cluster(code: ClusterCode | GridCode, index: int) -> str | None:
    name = torch.cuda.get_device_name(index)
    if torch.cuda.get_device_capability(index) < HOPPER:
        return f"it needs a GPU that has clusters of blocks, of the Hopper generation or later, {name} is older"
    try:
        if _count_clusters(code, index) > 0:
            return None
    except RuntimeError as error:
        return f"it cannot be built or loaded: {error}"
    return f"{name} has no room for a cluster of {code.blocks} blocks"


def _count_clusters(code: ClusterCode | GridCode, index: int) -> int:
    """Return how many clusters run at the same time."""
    with torch.cuda.device(index):
        kernel = code._loaded.setdefault(index, launch._load(code, index))
        size = _Attribute(CLUSTER_DIMENSION, 0, (ctypes.c_uint * 16)(code.blocks, 1, 1))
        config = _Launch(code.blocks, 1, 1, code.threads, 1, 1, code.shared, None, ctypes.pointer(size), 1)
        count = ctypes.c_int()
        launch._call("cuOccupancyMaxActiveClusters", ctypes.byref(count), kernel, ctypes.byref(config))
    return count.value


@cache
def _why_not_grid(code: GridCode, index: int) -> str | None:
    gpu: Any = torch.cuda.get_device_properties(index)  # torch's type stubs lack some of its fields
    if gpu.multi_processor_count < code.blocks:
        return f"it needs a GPU of {code.blocks} multiprocessors, {gpu.name} has {gpu.multi_processor_count}"
    if gpu.shared_memory_per_block_optin < code.shared:
        room = gpu.shared_memory_per_block_optin >> 10
        return f"it needs {code.shared >> 10} KB of shared memory to a block, {gpu.name} has {room}"
    try:
        with torch.cuda.device(index):
            kernel, count = code._loaded.setdefault(index, launch._load(code, index)), ctypes.c_int()
            sizes = kernel, code.threads, ctypes.c_size_t(code.shared)
            launch._call("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(count), *sizes)
    except RuntimeError as error:
        return f"it cannot be built or loaded: {error}"
    return None if count.value else f"{gpu.name} has no room for a block"
