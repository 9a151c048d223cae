"""Look into a model in a notebook, without a server: the page of one input as the output of a cell."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.errors import InputError, UserTypeError
from seqloom.lab.data.task import Batch
from seqloom.lab.explore.explanation import Request, explain
from seqloom.lab.explore.saved_page import build_page, record_explanation
from seqloom.lab.explore.subject import MAX_STEPS, LabelledInput, ModelOutputs, Subject, open_subject
from seqloom.lab.files.scratch import write_text
from seqloom.lab.kinds.classify import ClassifyKind
from seqloom.lab.kinds.regress import RegressKind
from seqloom.lab.training.run import Run

HEIGHT = 900  # pixels of the page in a notebook


WITH_CLASSES, WITH_VALUES = ClassifyKind(), RegressKind()  # kinds as which the outputs of a module are treated


class ModuleSubject(Subject):
    """Any module that contains layers of seqloom, without a task: its outputs are numbered, or have the given names."""

    def __init__(self, model: nn.Module, classes: Sequence[str], has_ids: bool, name: str) -> None:
        self.name, self.run, self.lock = name, None, threading.RLock()
        self.network, self.classes, self.has_tokens = model, tuple(classes), has_ids
        self._takes_lengths = "lengths" in inspect.signature(model.forward).parameters
        has_classes = any(getattr(model, name, None) is not None for name in ("classes", "tags"))
        self.kind = WITH_CLASSES if has_classes else WITH_VALUES
        self.is_per_step, self.features = False, ()

    def compute_outputs(self, batch: Batch, wanted: Tensor | None = None) -> ModelOutputs:
        lengths: dict[str, Any] = {"lengths": batch.lengths} if self._takes_lengths else {}
        result = self.network(batch.x, **lengths)
        y = result[0] if isinstance(result, tuple) else result
        if not isinstance(y, Tensor) or y.ndim not in (2, 3):
            got = f"a tensor of shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
            raise InputError(f"explore needs a model whose output is (B, K) or (B, T, K), got {got}")
        self.is_per_step = y.ndim == 3
        self.features = () if self.has_tokens else tuple(f"x{i}" for i in range(batch.x.shape[2]))
        values = y.float() if self.kind.has_values else y.float().softmax(-1)
        labels = self.classes if len(self.classes) == y.shape[-1] else tuple(map(str, range(y.shape[-1])))
        steps = tuple(map(str, range(y.shape[1]))) if y.ndim == 3 else ()
        best = "" if y.ndim == 3 or self.kind.has_values else labels[int(values[0].argmax())]
        return ModelOutputs(values, labels, steps, best)


class Explorer:
    """The page of one input. A notebook shows it; `save` writes it as one file.

    Attributes:
        document: What the page shows, as data: findings, prediction, contributions.
        arrays: States, gates and attention by name.
    """

    def __init__(self, subject: Subject, example: LabelledInput) -> None:
        explanation = explain(subject, example, Request())
        self.document, self.arrays = explanation.document, explanation.arrays
        self._page = build_page(record_explanation(subject, explanation), f"seqloom explore: {subject.name}")

    def save(self, path: Path | str) -> None:
        """Write the page as one HTML file that needs no server."""
        write_text(Path(path), self._page)

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{HEIGHT}px;border:0"
        return f'<iframe title="seqloom explore" style="{style}" srcdoc="{escape(self._page, quote=True)}"></iframe>'

    def __repr__(self) -> str:
        findings = self.document["findings"]
        return f"Explorer({findings[0]['text'] if findings else self.document['name']})"


def explore(
    model: nn.Module | Run, x: object, *, steps: Sequence[str] | None = None, classes: Sequence[str] = ()
) -> Explorer:
    """Look into a model: what one input does to its states, gates, attention and output.

    The result is a page that a notebook shows. It needs neither a server nor a network, and `save` writes it to a file.

    Args:
        model: A trained run, or any module that contains layers of seqloom; its output is (B, K) or (B, T, K), possibly
            the first element of a tuple. A `Classify` or `Tag` shows probabilities, others show their outputs.
        x: For a run, an input in the form of its data, such as a text. For a module, a tensor of one input: features
            (T, D) or (1, T, D), or ids (T,) or (1, T).
        steps: Names of the T steps, such as words; numbers by default.
        classes: Names of the K outputs; numbers by default.

    Returns:
        The page, with the same content as data in `document` and `arrays`.

    Raises:
        UserError: If the input is empty or has another shape.

    Example:
        >>> model = seqloom.Classify(seqloom.GRU(8, 16, batch_first=True), classes=2)
        >>> page = seqloom.explore(model, torch.randn(5, 8), classes=["no", "yes"])
        >>> sorted(page.arrays)
        ['input', 'layer.l0/effect', 'layer.l0/h', 'layer.l0/n', 'layer.l0/r', 'layer.l0/z']
    """
    if isinstance(model, Run):
        subject = open_subject(model)
        return Explorer(subject, subject.read(x))
    if not isinstance(model, nn.Module):
        raise UserTypeError(f"explore takes a run or a module, got a {type(model).__name__}")
    if not isinstance(x, Tensor):
        raise UserTypeError(f"explore takes a tensor as the input of a module, got a {type(x).__name__}")
    has_ids = not x.is_floating_point()
    wanted = 1 if has_ids else 2
    x = x.unsqueeze(0) if x.ndim == wanted else x
    if x.ndim != wanted + 1 or len(x) != 1 or not x.shape[1]:
        form = "ids (T,) or (1, T)" if has_ids else "features (T, D) or (1, T, D)"
        raise InputError(f"explore takes one input, {form} with at least one step; got shape {tuple(x.shape)}")
    n = min(x.shape[1], MAX_STEPS)
    if steps is not None and len(steps) < n:
        raise InputError(f"steps must name all {n} steps, got {len(steps)}")
    notes = (f"The input has {x.shape[1]:,} steps; the first {n:,} are explained.",) if n < x.shape[1] else ()
    names = tuple(map(str, range(n) if steps is None else steps[:n]))
    batch = Batch(x.detach(), torch.tensor([x.shape[1]]), torch.tensor([0])).cut(n)
    was_training = model.training
    model.eval()
    try:
        module = ModuleSubject(model, classes, has_ids, type(model).__name__)
        with torch.no_grad():
            module.compute_outputs(batch)  # finds out whether every step has an output
        return Explorer(module, LabelledInput(batch, names, notes=notes))
    finally:
        model.train(was_training)
