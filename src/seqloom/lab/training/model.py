"""Build the model for a task: the kind of task decides the topology, the settings decide the layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seqloom.lab.data.task import Task
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.kinds.settings import TrainSettings


def build(task: Task, settings: TrainSettings) -> ForTask:
    """Build the model of a task over the layer named in the settings, with random weights."""
    kind = kind_of(task)
    model = kind.build(task, settings)
    model.timed, model.attributed = kind.has_timespans(task), bool(task.input.attributes)
    return model


def build_without_memory(task: Task, settings: TrainSettings) -> ForTask:
    """Build the model on the meta device, which has shapes but no values."""
    with torch.device("meta"), _WithoutInitialisation():
        return build(task, settings)


class _WithoutInitialisation(TorchFunctionMode):
    """Skip torch.nn.init, whose random numbers on the meta device import torch's compiler (two seconds)."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == nn.init.__name__:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        if func in (Tensor.normal_, Tensor.uniform_):
            return args[0]
        return func(*args, **kwargs)
