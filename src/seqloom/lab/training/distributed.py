"""Several processes that train one model together, under torchrun: gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist


@dataclass(frozen=True)
class ProcessGroup:
    """Which process this is, of how many; alone, everything here does nothing."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def broadcast(self, value: Any) -> Any:
        """What the first process has."""
        box = [value]
        if self.count > 1:
            dist.broadcast_object_list(box, 0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """What each process has, for the first one; the others learn nothing."""
        if self.count == 1:
            return [value]
        box: list[Any] | None = [None] * self.count if self.is_first else None
        dist.gather_object(value, box)
        return box or []

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model, its gradients averaged over the processes after each backward pass."""
        if self.count == 1:
            return model
        ids = [device.index] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=ids, find_unused_parameters=True)


def local_device(device: torch.device) -> torch.device:
    """Under torchrun each process takes the GPU of its number."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


@contextmanager
def join_processes(device: torch.device) -> Iterator[ProcessGroup]:
    """This process among those that torchrun started, or alone."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield ProcessGroup()
        return
    mine = not dist.is_initialized()
    if mine:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield ProcessGroup(dist.get_rank(), dist.get_world_size())
        if mine:
            dist.barrier(device_ids=None if device.index is None else [device.index])  # nobody leaves before the others
    finally:
        if mine:
            dist.destroy_process_group()
