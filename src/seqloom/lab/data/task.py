"""The contract of a task: what a trainer may ask of data, wherever the data came from.

A task is data that has been read, split and encoded. It knows

    name, kind         what it is called; which of KINDS it is
    input, target      what goes in and what comes out, as `Tokens`, `Features`, `Classes`, `Tags`
                       or `Values`; each has a `size`: rows of an embedding, width of a head
    splits             "train", "valid", "test" (and others that were given) -> `Split`
    notes, table       what a person should know about the data; its columns and their uses

and walks over itself in `Batch`es. What x and y are follows from the kind:

    kind        x                         y                                   the model's head
    classify    ids (B, T) or (B, T, D)   class (B,)                          target.size logits
    regress     ids (B, T) or (B, T, D)   values (B, K)                       target.size numbers
    tag         ids (B, T) or (B, T, D)   tag of every step (B, T)            target.size logits a step
    generate    ids (B, T)                the next id of every step (B, T)    target.size logits a step
    translate   ids (B, T)                ids (B, S), the last one is END     target.size logits a step
    forecast    values (B, T, D)          the values that follow (B, S, K)    target.size numbers a step
    transcribe  values (B, T, D)          ids (B, S), no END                  target.size logits, PAD is the blank

Ids are long, values are float32. Padding is at the end: PAD in x and in target sequences, 0 in
values, IGNORE in y of "tag" and "generate". A y below 0 has no loss: IGNORE is not asked for and no
metric counts it; UNSEEN is a class or tag that training lacks (never in "train") and every metric
counts it as wrong. A target value that is missing is NaN: leave it out of loss and metric. Values in
x and y are scaled by what was fitted on the training split; `decode` gives the file's units back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from seqloom.core.errors import UserError

Kind = Literal["classify", "regress", "tag", "generate", "translate", "forecast", "transcribe"]
KINDS: tuple[str, ...] = get_args(Kind)
PAD, UNKNOWN, START, END = range(4)  # the first ids of every vocabulary
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
IGNORE, UNSEEN = -100, -1  # the first is torch's own ignore_index


@dataclass(frozen=True)
class Tokens:
    """Ids from a vocabulary of `size`, the four special ones included."""

    size: int
    unit: str  # words, characters, bytes, bpe, unigram, tokens


@dataclass(frozen=True)
class Features:
    """A vector at every step. A feature named "missing:f" is 1 where f is missing and reads 0."""

    names: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Classes:
    """One name for a whole sequence."""

    names: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Tags:
    """One name for every step. Steps whose y is `unscored` have a loss, but no part in a metric."""

    names: tuple[str, ...]
    unscored: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Values:
    """Real numbers: for a whole sequence (steps = 1), or for each of the `steps` that follow."""

    names: tuple[str, ...]
    steps: int = 1

    @property
    def size(self) -> int:
        return len(self.names)


Input = Tokens | Features
Target = Classes | Tags | Values | Tokens


@dataclass(frozen=True)
class Split:
    """How many examples (None: endless; of one long text: its steps) and a hash of exactly which ones."""

    size: int | None
    hash: str


@dataclass(frozen=True)
class Note:
    """One line for a person. A warning may change what one does; a plain note only informs."""

    text: str
    warning: bool = False


class Notes(list[Note]):
    """The one place where reading data says something. Nothing is said twice."""

    def say(self, text: str, warning: bool = False) -> None:
        note = Note(text, warning)
        if note not in self:
            self.append(note)

    def warn(self, text: str) -> None:
        self.say(text, warning=True)

    @property
    def warnings(self) -> list[str]:
        return [note.text for note in self if note.warning]


@dataclass(frozen=True, eq=False)
class Batch:
    """Some examples, padded at the end. The table above says what x and y are.

    rows        (B,) which examples of the split these are, so that results can be put back in order
    timespans   (B, T) time since the step before, 1 being usual; only where time stamps are irregular
    carry       row b goes on where row b of the batch before ended (one long text read in
                pieces): the state may be carried over. False for the first batch of an epoch.
    """

    x: Tensor
    lengths: Tensor
    rows: Tensor
    y: Tensor | None = None
    y_lengths: Tensor | None = None
    timespans: Tensor | None = None
    carry: bool = False

    def __len__(self) -> int:
        return len(self.x)

    @property
    def steps(self) -> int:
        """Real steps of the input, padding not counted."""
        return int(self.lengths.sum())

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same batch there."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def part(self, k: int, n: int) -> Batch:
        """Every n-th example from the k-th on: what process k of n trains on."""
        return self._each(lambda tensor: tensor[k::n])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        changed: dict[str, Any] = {name: change(v) for name, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **changed)


@dataclass(eq=False)
class Task(ABC):
    """Data, split and encoded; see the head of this file."""

    name: str
    kind: Kind
    input: Input
    target: Target
    splits: Mapping[str, Split] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)
    table: str = ""
    overlap = 1  # neighbours of a held-out split that share steps of one series

    @abstractmethod
    def batches(
        self,
        split: str,
        *,
        batch: int | None = None,
        tokens: int | None = None,
        seed: int = 0,
        epoch: int = 0,
        skip: int = 0,
    ) -> Iterator[Batch]:
        """One epoch, in an order that (split, batch, tokens, seed, epoch) decide and nothing else.

        Give `batch` (examples in each) or `tokens` (at most so many steps in each, padding
        included, but at least one example). "train" is shuffled anew every epoch, examples of
        like length together; other splits come in one fixed order. Every example comes once.
        `skip` leaves out the first batches without building them, to go on in the middle. An
        endless split goes on for ever; its batch number `skip` + i depends on (seed, epoch) alone.
        """

    @abstractmethod
    def count(
        self, split: str, *, batch: int | None = None, tokens: int | None = None, seed: int = 0, epoch: int = 0
    ) -> int | None:
        """How many batches `batches` gives, without building one; None for an endless split."""

    @abstractmethod
    def encode(self, rows: Sequence[Any]) -> Batch:
        """New inputs, in this order and without y. A row is the input itself or a dict of columns."""

    @abstractmethod
    def decode(self, predictions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Any]:
        """What the model chose, one Python value a row, in the words and units of the data.

        classify (B,) ids -> names; tag (B, T) ids and lengths -> lists of names; regress (B, K)
        and forecast (B, S, K) -> lists of numbers; generate, translate, transcribe (B, S) ids
        -> texts up to END or the length.
        """

    @abstractmethod
    def save(self, folder: Path | str) -> None:
        """What `encode` and `decode` need, as JSON; `seqloom.lab.data.registry.load_task` reads it."""

    def over(self, path: Any) -> Task:
        """Another file under this task's encoding, its rows in the split "test"."""
        raise UserError(f"task {self.name!r} makes its own data and reads no files")

    def read(self, path: Any, chunk: int = 1024) -> Iterator[list[dict[str, Any]]]:
        """Rows of a file for `encode`, some at a time; the target may be absent."""
        raise UserError(f"task {self.name!r} makes its own data and reads no files")

    def check(self, split: str, batch: int | None, tokens: int | None) -> None:
        """Refuse what `batches` cannot give."""
        if split not in self.splits:
            raise UserError(f"task {self.name!r} has no split {split!r}; it has {', '.join(self.splits) or 'none'}")
        if (batch is None) == (tokens is None):
            raise UserError(f"give one of batch and tokens, got batch={batch}, tokens={tokens}")
        if (batch if batch is not None else tokens or 0) < 1:
            raise UserError(f"batch and tokens must be at least 1, got batch={batch}, tokens={tokens}")
