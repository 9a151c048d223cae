"""A model to look into: how its inputs are read, and the names of its outputs."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from pydantic_core import from_json
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.text import JoinedTextCoder, TextCoder
from seqloom.lab.data.task import END, SPECIALS, START, UNKNOWN, Batch, Features, Task, Tokens
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.kind import Kind
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.kinds.results import get_values
from seqloom.lab.training.run import Run

MAX_STEPS = 5_000  # steps that are looked into; a trace of 50,000 steps would not fit a page


@dataclass(frozen=True, eq=False)
class LabelledInput:
    """One input: a batch of one row, and a label for each step."""

    batch: Batch
    steps: tuple[str, ...]
    unknown: tuple[bool, ...] = ()  # whether a word is not in the vocabulary
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class ModelOutputs:
    """A model's output for a batch: probabilities or values."""

    values: Tensor  # (B, K) for a whole sequence, or (B, S, K) for each step of an output
    labels: tuple[str, ...]  # the names of the K outputs
    steps: tuple[str, ...] = ()  # the names of the S output steps; empty if there is one output for a whole sequence
    text: str = ""  # the prediction of the first row in words
    wanted: Tensor | None = None  # (1, S) the tokens of a translation


@dataclass(eq=False)
class Subject:
    """A model with the task that it was trained for."""

    name: str  # the name that the page shows
    model: ForTask  # the model in eval mode
    task: Task  # the task without its data
    run: Run | None = None  # the run on disk, or None
    lock: threading.RLock = field(default_factory=threading.RLock)  # a recording changes the model while it runs
    kind: Kind = field(init=False)
    network: nn.Module = field(init=False)  # the model without its loss
    has_tokens: bool = field(init=False)
    features: tuple[str, ...] = field(init=False)  # the names of the input's features; empty for tokens
    is_per_step: bool = field(init=False)  # whether each input step has its own output

    def __post_init__(self) -> None:
        self.kind, self.network = kind_of(self.task), self.model.model
        self.has_tokens = isinstance(self.task.input, Tokens)
        self.features = self.task.input.names if isinstance(self.task.input, Features) else ()
        self.is_per_step = self.kind.is_per_step(self.task)

    @property
    def deletes(self) -> bool:
        """Whether occlusion deletes a step; steps with their own output, and features, are replaced instead."""
        return self.has_tokens and not self.is_per_step

    def read(self, text: object) -> LabelledInput:
        """Read an input that a user typed: a text, JSON for numbers and objects, or a Python value.

        Raises:
            UserError: If it is empty or does not fit the task.
        """
        row = self._parse(text) if isinstance(text, str) else text
        with warnings.catch_warnings(record=True) as messages:  # such as an input that is cut as in training
            warnings.simplefilter("always", UserWarning)
            batch = self.task.encode([row])
        example = self.label(batch, row)
        notes = (f"{str(one.message)[:1].upper()}{str(one.message)[1:]}." for one in messages)
        return replace(example, notes=(*notes, *example.notes))

    def _parse(self, text: str) -> Any:  # noqa: ANN401  # whatever `Task.encode` takes
        stripped = text.strip()
        if not stripped:
            raise UserError("the input is empty; type a text, or choose an example")
        if stripped.startswith("{") or isinstance(self.task.input, Features):
            try:
                return from_json(stripped)
            except ValueError:
                expected = "a list of numbers" if isinstance(self.task.input, Features) else "an object of columns"
                raise UserError(f"the input {_shorten(stripped)!r} is not JSON; give {expected}") from None
        return stripped.split() if isinstance(self.task.input, Tokens) and self.task.input.unit == "tokens" else text

    def label(self, batch: Batch, row: object = None) -> LabelledInput:
        """Name the steps of a batch of one row; `row`: the input before encoding, if known."""
        n = int(batch.lengths[0])
        if n == 0:
            raise UserError("the input has no steps that the model reads; type a longer one")
        notes: tuple[str, ...] = ()
        if n > MAX_STEPS:
            notes = (f"The input has {n:,} steps; the first {MAX_STEPS:,} are shown and explained.",)
            n = MAX_STEPS
        batch = batch.cut(n)
        if not self.has_tokens or batch.x.ndim > 2:
            return LabelledInput(batch, tuple(map(str, range(n))), notes=notes)
        ids = batch.x[0].tolist()
        labels = self._name_tokens(ids, row)
        unknown = tuple(i == UNKNOWN for i in ids)
        if any(unknown):
            words = ", ".join(f"'{w}'" for w, u in zip(labels, unknown, strict=True) if u)
            notes = (*notes, f"Not in the vocabulary, read as unknown: {_shorten(words, 200)}.")
        return LabelledInput(batch, tuple(labels), unknown, notes)

    def _name_tokens(self, ids: list[int], row: object) -> list[str]:
        coder = None if self.task.encoding is None else self.task.encoding.x
        coder = coder.inner if isinstance(coder, JoinedTextCoder) else coder
        if coder is None:
            return [SPECIALS[i] if i < len(SPECIALS) else str(i - len(SPECIALS)) for i in ids]
        names = [_name_token(coder, i) for i in ids]
        if isinstance(row, dict) and self.task.encoding is not None:
            row = row.get(self.task.encoding.plan.input[0])
        if isinstance(coder, TextCoder) and coder.unit != "bytes" and isinstance(row, (str, list)):
            pieces = coder.split_text(row)
            offset = int(ids[:1] == [START])
            for at, i in enumerate(ids):
                if i == UNKNOWN and 0 <= at - offset < len(pieces):
                    names[at] = pieces[at - offset]
        return names

    def compute_outputs(self, batch: Batch, wanted: Tensor | None = None) -> ModelOutputs:
        """Run the model, with gradients if they are enabled.

        Args:
            batch: Inputs.
            wanted: (1, S) tokens of a translation to score; by default the model's own.
        """
        if self.kind.writes:
            return self._translate(batch, wanted)
        scores = self.model.scores(batch)[0]
        if self.kind.aligns_text:
            log_p, lengths = scores
            first = batch.shard(0, len(batch))
            with torch.no_grad():
                choice = self.model.choose((log_p[:1], lengths[:1]), first)
            text = str(self.task.decode(choice.values, choice.lengths)[0])
            steps = tuple(map(str, range(log_p.shape[1])))
            return ModelOutputs(log_p.exp(), ("(blank)", *self._name_outputs(log_p.shape[-1])[1:]), steps, text)
        with torch.no_grad():
            text = self._describe(batch, scores)
        if self.kind.has_values:
            return self._scale_values(scores, text)
        p = self.model.finish(scores)
        steps = tuple(map(str, range(p.shape[1]))) if p.ndim == 3 else ()
        return ModelOutputs(p, self._name_outputs(p.shape[-1]), steps, text)

    def _scale_values(self, scores: Tensor, text: str) -> ModelOutputs:
        """Return values in the units of the data; decoding is affine in each value."""
        y = scores.float()
        low, high = (torch.tensor(self.task.decode(torch.full_like(y[:1], v))).to(y) for v in (0.0, 1.0))
        y = low.view_as(y[:1]) + y * (high - low).view_as(y[:1])
        steps = tuple(f"+{s + 1}" for s in range(y.shape[1])) if y.ndim == 3 else ()
        return ModelOutputs(y, get_values(self.task).names, steps, text)

    def _translate(self, batch: Batch, wanted: Tensor | None) -> ModelOutputs:
        if wanted is None:
            with torch.no_grad():
                wanted = self.model.predict(batch.shard(0, len(batch))).values
            wanted = _drop_after_end(wanted)
        y = wanted.expand(len(batch), -1)
        p = self.model.scores(replace(batch, y=y))[0].float().softmax(-1)
        coder: Any = self.task.encoding.y if self.task.encoding is not None else None
        steps = tuple(_name_token(coder, i) for i in wanted[0].tolist())
        return ModelOutputs(p, self._name_outputs(p.shape[-1]), steps, str(self.task.decode(wanted)[0]), wanted)

    def _describe(self, batch: Batch, scores: Any) -> str:  # noqa: ANN401  # what `scores` of the model returned
        first = batch.shard(0, len(batch))
        prediction = self.model.choose(scores[:1], first)
        value = self.task.decode(prediction.values, prediction.lengths)[0]
        if isinstance(value, float):
            return f"{value:.4g}"
        if not isinstance(value, list):
            return str(value)
        if value and isinstance(value[0], list):
            return ""  # forecasts and sets of labels are drawn
        return ", ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in value)

    @cache  # noqa: B019  # a subject lives as long as the page
    def _name_outputs(self, count: int) -> tuple[str, ...]:
        target = self.task.target
        if names := getattr(target, "names", ()):
            return tuple(names)
        coder: Any = None
        if self.task.encoding is not None:
            coder = self.task.encoding.y or self.task.encoding.x
        if coder is None:
            return tuple(map(str, range(count)))
        return tuple(_name_token(coder, i) for i in range(count))


def _name_token(coder: Any, token: int) -> str:  # noqa: ANN401  # a coder of tokens
    if token < len(SPECIALS):
        return SPECIALS[token]
    return coder.decode([token]) or "�"


def _drop_after_end(tokens: Tensor) -> Tensor:
    """Return tokens (1, S) up to and including the first END."""
    ends = (tokens[0] == END).nonzero()
    return tokens[:, : int(ends[0]) + 1] if len(ends) else tokens


def _shorten(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def repeat_batch(batch: Batch, count: int) -> Batch:
    """Repeat a batch of one row `count` times."""
    return batch.select(torch.zeros(count, dtype=torch.long))


def open_subject(run: Run) -> Subject:
    """Load the model of a run.

    Raises:
        UserError: If the run has no weights yet, or its model is not trusted.
    """
    with torch.random.fork_rng(devices=[]):  # building the model draws random weights
        return Subject(run.name, run.model(), run.task, run)
