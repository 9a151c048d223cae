"""A run's model as a module of tensors: what ONNX and torch.export write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.audio import AudioCoder
from seqloom.lab.data.coders.labels import StepSetCoder
from seqloom.lab.data.task import Batch, Features, Task, Tokens
from seqloom.lab.export.baselines import make_traceable
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.forms import describe_kind
from seqloom.lab.kinds.registry import KINDS, kind_of
from seqloom.lab.training.run import Run
from seqloom.layers.registry import BI_PREFIX

ONE_LENGTH = ("transformer_xl", "memory_transformer")  # torch.export would fix the length of the example
MOST_ROWS, MOST_STEPS = 65_535, 1_048_575  # the largest batch that the exported program accepts
EXAMPLE_ROWS, EXAMPLE_STEPS = 3, 7  # torch.export takes 0 and 1 as fixed


class ExportedModel(nn.Module):
    """The model of a run: inputs as tensors, and probabilities, scores of a CRF, or standardised values out.

    Args:
        model: The trained model.
        names: Names of the inputs; x and lengths first.
    """

    def __init__(self, model: ForTask, names: tuple[str, ...]) -> None:
        super().__init__()
        self.inner, self.names = model, names

    def forward(self, x: Tensor, lengths: Tensor, *more: Tensor) -> Tensor:
        """Return the output for ids (B, T) or features (B, T, D) with lengths (B,)."""
        batch = Batch(x, lengths, lengths, **dict(zip(self.names[2:], more, strict=True)))  # type: ignore[arg-type]
        return self.inner.compute_output(batch)


@dataclass(frozen=True, eq=False)
class ExportGraph:
    """A model to write, with an example of its inputs.

    Attributes:
        module: The model, in eval mode.
        inputs: Examples by name.
        shapes: The dimensions of each input that may change, as `torch.export` takes them.
        output: The name of the output.
    """

    module: ExportedModel
    inputs: dict[str, Tensor]
    shapes: tuple[dict[int, Any], ...]
    output: str


def check_exportable(run: Run) -> None:
    """Raise a UserError if a run cannot be exported; with what to do instead."""
    task, name = run.task, run.settings.model
    kind = kind_of(task)
    if not kind.decoder:
        names = [one.name for one in KINDS.values() if one.decoder]
        raise UserError(
            f"{run.folder} was trained to {describe_kind(task.kind)}, which needs a search for every step; "
            f"export writes {', '.join(names[:-1])} and {names[-1]} models, so use `seqloom {kind.command}`"
        )
    if task.encoding is None:
        raise UserError(f"{run.folder} was trained on generated data ({task.name}); export a run on a file of yours")
    if isinstance(task.encoding.x, AudioCoder):
        raise UserError(f"{run.folder} reads recordings, whose spectrum export does not write; use `seqloom predict`")
    if isinstance(task.encoding.x, StepSetCoder):
        raise UserError(f"{run.folder} reads a set of labels at every step; use `seqloom predict`")
    if task.input.attributes:
        listed = ", ".join(task.encoding.plan.attributes)
        raise UserError(
            f"{run.folder} reads columns beside its sequence ({listed}), which export does not write; "
            f"train with --input {','.join(task.encoding.plan.input)} alone, or use `seqloom predict`"
        )
    if kind.has_timespans(task):
        raise UserError(f"{run.folder} reads irregular time stamps, which export does not write; use `seqloom predict`")
    if name.removeprefix(BI_PREFIX) in ONE_LENGTH:
        raise UserError(f"{name} reads a sequence in segments and exports one length only; use `seqloom predict`")


def make_graph(model: ForTask, task: Task) -> ExportGraph:
    """Return the model of a task as a module of tensors, with example inputs.

    Args:
        model: The trained model, in eval mode.
        task: Its task; `check_exportable` has accepted it.
    """
    model = make_traceable(model)
    B, T, w = EXAMPLE_ROWS, EXAMPLE_STEPS, getattr(model, "segment", 0)
    rows, steps = Dim("rows", min=1, max=MOST_ROWS), Dim("steps", min=1, max=MOST_STEPS // (w or 1))
    lengths = torch.tensor([T, T - 3, 1]) * (w or 1)
    time = {0: rows, 1: w * steps if w else steps}
    inputs: dict[str, Tensor]
    if isinstance(task.input, Tokens):
        inputs = {"x": torch.randint(4, task.input.size, (B, T)) if task.input.size > 4 else torch.ones(B, T).long()}
    else:
        inputs = {"x": torch.randn(B, T * (w or 1), task.input.size)}
    inputs["lengths"], shapes = lengths, [time, {0: rows}]
    if isinstance(task.input, Tokens) and getattr(model.model, "reads_letters", False):
        inputs["letters"] = torch.randint(1, task.input.alphabet, (B, T, 5))
        shapes.append(time | {2: Dim("letters", min=1, max=255)})
    if isinstance(task.input, Features) and task.input.known:
        inputs["future"] = torch.randn(B, task.target.steps, len(task.input.known))  # type: ignore[union-attr]
        shapes.append({0: rows})
    return ExportGraph(ExportedModel(model, tuple(inputs)).eval(), inputs, tuple(shapes), model.output)
