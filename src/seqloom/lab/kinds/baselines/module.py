"""Base class of baselines: arrays and settings, so that they are saved and loaded without pickle.

module = fit(task).model                                   a `BaselineModule`
arrays, settings = module.arrays(), module.settings()      tensors by name, and JSON
BaselineModule.by_name[name].build(arrays, settings)       the same module again
wrap(task, module)                                         with the loss and predictions of the task's kind
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.lab.data.task import Batch, Task
from seqloom.lab.files.sealed import JSON
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.registry import kind_of
from seqloom.models.decoding.crf import CRF

ENDLESS_BATCHES = 16  # batches of an endless split that a baseline is fitted to


def iterate_split(task: Task, split: str, batch: int = 256) -> Iterator[Batch]:
    """Iterate over a split once, or over ENDLESS_BATCHES batches of an endless one."""
    batches = task.batches(split, batch=batch)
    return islice(batches, ENDLESS_BATCHES) if task.splits[split].size is None else batches


class BaselineModule(nn.Module):
    """A fitted baseline without trainable weights.

    A subclass is found by its class name when a baseline is loaded. Its constructor takes all buffers and the
    attributes listed in `fields` as keyword arguments, so that it can be saved; otherwise override `arrays`,
    `settings` and `build`.

    Args:
        **values: Tensors, which become buffers, and the attributes in `fields`.
    """

    by_name: ClassVar[dict[str, type[BaselineModule]]] = {}
    fields: ClassVar[tuple[str, ...]] = ()  # attributes that are settings: numbers, texts, lists
    fitted: ClassVar[tuple[str, ...]] = ()  # buffers whose numbers of values add up to `size`, for the table
    reads_letters = False  # whether a tagger needs the letters of each word
    reads_attributes = False  # whether the input includes the attributes of the row

    def __init__(self, **values: Any) -> None:  # noqa: ANN401  # tensors and settings
        super().__init__()
        hints = [hint for kind in type(self).__mro__ for hint in vars(kind).get("__annotations__", {}).items()]
        expected = {*self.fields, *(name for name, hint in hints if str(hint).startswith("Tensor"))}
        if values.keys() != expected:  # they may come from a file
            raise UserError(f"a {type(self).__name__} needs {', '.join(sorted(expected))}, got {', '.join(values)}")
        for name, value in values.items():
            if name in self.fields:
                setattr(self, name, value)
            else:
                self.register_buffer(name, value)
        self.size = sum(values[name].numel() for name in self.fitted if values[name] is not None)
        self.crf: CRF | None = None
        self.empty = nn.Parameter(torch.zeros(0), requires_grad=False)  # holds the device

    def __init_subclass__(cls, **options: Any) -> None:  # noqa: ANN401
        super().__init_subclass__(**options)
        BaselineModule.by_name[cls.__name__] = cls

    def arrays(self) -> dict[str, Tensor]:
        """Return everything that was fitted, of any dtype that safetensors can store."""
        return dict(self.named_buffers())

    def settings(self) -> dict[str, JSON]:
        """Return everything else that is needed to rebuild the baseline, as JSON."""
        return {name: getattr(self, name) for name in self.fields}

    @classmethod
    def build(cls, arrays: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """Build a baseline from what `arrays` and `settings` returned."""
        options: dict[str, Any] = {**arrays, **settings}
        return cls(**options)


def wrap(task: Task, module: BaselineModule) -> ForTask:
    """Return the module with the loss and the predictions of the task's kind."""
    model = kind_of(task).wrap_baseline(task, module)
    model.attributed = module.reads_attributes and bool(task.input.attributes)
    return model
