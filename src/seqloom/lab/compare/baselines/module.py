"""What every baseline is made of: arrays and settings, so that it is saved and loaded without pickle.

module = fit(task).model                                   a `BaselineModule`
arrays, settings = module.arrays(), module.settings()      tensors by name, and JSON
BaselineModule.by_name[name].build(arrays, settings)       the same module again
wrap(task, module)                                         with the loss and predictions of the task's kind
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.lab.data.task import START, Batch, Task
from seqloom.lab.files.sealed import JSON
from seqloom.lab.kinds.classify import ForClassify
from seqloom.lab.kinds.for_task import ForTask, Prediction
from seqloom.lab.kinds.forecast import ForForecast, order_features
from seqloom.lab.kinds.generate import ForGenerate
from seqloom.lab.kinds.multilabel import ForMultilabel
from seqloom.lab.kinds.regress import ForRegress
from seqloom.lab.kinds.tag import ForTag
from seqloom.lab.kinds.transcribe import ForTranscribe
from seqloom.lab.kinds.translate import ForTranslate


class BaselineModule(nn.Module):
    """A fitted baseline without trainable weights.

    A subclass is found by its class name when a baseline is loaded. If its constructor takes all buffers and the
    attributes listed in `fields` as keyword arguments, it can be saved; otherwise override `arrays`, `settings` and
    `build`.

    Attributes:
        size: How many numbers were fitted, for the table.
    """

    by_name: ClassVar[dict[str, type[BaselineModule]]] = {}
    fields: ClassVar[tuple[str, ...]] = ()  # attributes that are settings: numbers, texts, lists
    crf = None
    reads_letters = False  # whether a tagger needs the letters of each word
    reads_attributes = False  # whether the input includes the attributes of the row

    def __init__(self, size: int = 0) -> None:
        super().__init__()
        self.size = size
        self.empty = nn.Parameter(torch.zeros(0), requires_grad=False)  # holds the device

    def __init_subclass__(cls, **options: Any) -> None:  # noqa: ANN401
        super().__init_subclass__(**options)
        BaselineModule.by_name[cls.__name__] = cls

    def arrays(self) -> dict[str, Tensor]:
        """Return everything that was fitted, of any dtype that safetensors can store."""
        return dict(self.named_buffers())

    def settings(self) -> dict[str, JSON]:
        """Return what else is needed to build the baseline again, as JSON."""
        return {name: getattr(self, name) for name in self.fields}

    @classmethod
    def build(cls, arrays: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """Build a baseline from what `arrays` and `settings` returned."""
        options: dict[str, Any] = {**arrays, **settings}
        return cls(**options)


class WithoutState(ForGenerate):
    """A language model that has no state."""

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Tensor, None]:
        return self.model(batch.x), None


class WithoutSource(ForTranslate):
    """A translation model that reads only the target so far."""

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Tensor, None]:
        assert batch.y is not None
        return self.model(shift_target(batch.y)), None

    def predict(self, batch: Batch) -> Prediction:
        """Decode greedily, with the limits of a translation."""
        limits = 2 * batch.lengths + 20
        tokens = [torch.full((len(batch), 1), START, device=batch.x.device)]
        for _ in range(int(limits.max())):
            tokens.append(self.model(tokens[-1]).argmax(-1))
        return Prediction(torch.cat(tokens[1:], 1), limits)


class WithoutLoss(ForTranscribe):
    """A text for each recording, without probabilities; `model(x, lengths)` returns ids (B, S)."""

    def row_losses(self, scores: object, batch: Batch) -> Tensor:
        return torch.full((len(batch),), torch.nan)

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:  # type: ignore[override]
        return Prediction(scores, torch.full((len(batch),), scores.shape[1]))


def wrap(task: Task, module: BaselineModule) -> ForTask:
    """Return the module with the loss and the predictions of the task's kind."""
    if task.kind == "forecast":
        return ForForecast(module, order_features(task))
    kinds: dict[str, type[ForTask]] = {
        "classify": ForClassify,
        "multilabel": ForMultilabel,
        "regress": ForRegress,
        "tag": ForTag,
        "generate": WithoutState,
        "translate": WithoutSource,
        "transcribe": WithoutLoss,
    }
    model = kinds[task.kind](module)
    model.attributed = module.reads_attributes and bool(task.input.attributes)
    return model


def shift_target(y: Tensor) -> Tensor:
    """Return what a decoder reads: START, then each token but the last."""
    return torch.cat([torch.full_like(y[:, :1], START), y[:, :-1]], 1)
