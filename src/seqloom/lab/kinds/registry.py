"""The kinds of task, by name."""

from __future__ import annotations

from seqloom.lab.data.task import Task
from seqloom.lab.kinds.classify import ClassifyKind
from seqloom.lab.kinds.forecast import ForecastKind
from seqloom.lab.kinds.generate import GenerateKind
from seqloom.lab.kinds.kind import Kind
from seqloom.lab.kinds.multilabel import MultilabelKind
from seqloom.lab.kinds.pairs import PairsKind
from seqloom.lab.kinds.regress import RegressKind
from seqloom.lab.kinds.tag import TagKind
from seqloom.lab.kinds.transcribe import TranscribeKind
from seqloom.lab.kinds.translate import TranslateKind

_ALL: tuple[Kind, ...] = (
    ClassifyKind(),
    MultilabelKind(),
    RegressKind(),
    TagKind(),
    GenerateKind(),
    TranslateKind(),
    ForecastKind(),
    TranscribeKind(),
    PairsKind(),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}


def kind_of(task: Task) -> Kind:
    """Return the kind of a task."""
    return KINDS[task.kind]
