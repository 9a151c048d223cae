"""Data-parallel training in several processes under torchrun: gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

T = TypeVar("T")


@dataclass(frozen=True)
class ProcessGroup:
    """The rank of this process and the number of processes; with one process every method is trivial."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over all processes; changes `tensor` in place."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def broadcast(self, value: T) -> T:
        """Return the value of the first process."""
        box = [value]
        if self.count > 1:
            dist.broadcast_object_list(box, 0)
        return box[0]

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes in the first process, [] in the others."""
        if self.count == 1:
            return [value]
        box: list[Any] | None = [None] * self.count if self.is_first else None
        dist.gather_object(value, box)
        return box or []

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Wrap the model so that each backward pass averages gradients over the processes."""
        if self.count == 1:
            return model
        ids = [device.index] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=ids, find_unused_parameters=True)


def local_device(device: torch.device) -> torch.device:
    """Return the GPU of this process under torchrun; other devices unchanged."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


@contextmanager
def join_processes(device: torch.device) -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started, if any."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield ProcessGroup()
        return
    started_here = not dist.is_initialized()
    if started_here:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield ProcessGroup(dist.get_rank(), dist.get_world_size())
        if started_here:
            # so that all processes leave together
            dist.barrier(device_ids=None if device.index is None else [device.index])
    finally:
        if started_here:
            dist.destroy_process_group()
