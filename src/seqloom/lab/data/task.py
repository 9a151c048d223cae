"""The contract of a task: what a trainer may require of data, whatever their source.

A task is data that have been read, split and encoded. It has

    name, kind         its name; one of `kinds.forms.KINDS`
    input, target      what the model reads and predicts: `Tokens`, `Features`, `Classes`, `Labels`, `Tags`, `Values`;
                       the `size` of each is the number of rows of an embedding, or the width of a head
    splits             "train", "valid", "test" (and further ones from the data) -> `Split`
    notes, columns     remarks on the data for the user; the columns of the file and their uses

and yields `Batch`es. The kind determines x and y:

    kind        x                         y                                   the model's head
    classify    ids (B, T) or (B, T, D)   class (B,)                          target.size logits
    multilabel  ids (B, T) or (B, T, D)   0 or 1 of each label (B, K + 1)     target.size logits
                                          or, of each step, (B, T, K + 1)     target.size logits a step
    regress     ids (B, T) or (B, T, D)   values (B, K)                       target.size numbers
    tag         ids (B, T) or (B, T, D)   tag of every step (B, T)            target.size logits a step
    generate    ids (B, T)                the next id of every step (B, T)    target.size logits a step
    translate   ids (B, T)                ids (B, S), the last one is END     target.size logits a step
    forecast    values (B, T, D)          the values that follow (B, S, K)    target.size numbers a step
    transcribe  values (B, T, D)          ids (B, S), no END                  target.size logits, PAD is the blank

Ids are int64, values are float32. Padding is at the end: PAD in x and in target sequences, 0 in values, IGNORE in y
of tasks with a target for each input step. Steps and rows with y < 0 have no loss. Metrics skip IGNORE and count
UNSEEN, a class or tag that does not occur in training, as wrong; "train" never contains UNSEEN. The last number in y
of "multilabel" counts the labels that do not occur in training. A missing target value is NaN; leave it out of losses
and metrics. Values in x and y are scaled with statistics of the training split; `decode` returns the units of the
file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias, TypeGuard, cast

import numpy as np
import polars as pl
import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.files import sealed
from seqloom.lab.kinds.forms import Kind
from seqloom.lab.kinds.forms import Target as TargetForm

PAD, UNKNOWN, START, END = range(4)  # the first ids of every vocabulary
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
IGNORE, UNSEEN = -100, -1  # IGNORE is torch's default ignore_index
ENDLESS_CLASSES = 10_000  # rows of an endless split whose classes are counted
RECORD_FILE, RECORD_FORMAT = "task.json", 5  # format 4: merged labels, attributes, sets of labels; 5: tables on a grid


@dataclass(frozen=True)
class Tokens:
    """Ids from a vocabulary of `size`, including the four special ids; batches have letters if `alphabet` is not 0."""

    as_target: ClassVar[TargetForm] = "text"
    per_step: ClassVar[bool] = False

    size: int
    unit: str  # words, characters, bytes, bpe, unigram, tokens
    alphabet: int = 0  # number of letter ids, 0 (past the end of a word) included
    attributes: tuple[str, ...] = ()  # features of the whole row that are read at every step


@dataclass(frozen=True)
class Named:
    """Inputs or targets with one name each."""

    names: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Features(Named):
    """A vector at every step. A feature named "missing:f" is 1 where f is missing.

    A missing f is 0; in a forecast it is an earlier value, if there is one.
    """

    known: tuple[str, ...] = ()  # for a forecast: features whose future is known and part of batches
    flags: tuple[str, ...] = ()  # features that are 1 for one value of a categorical column and 0 for the others
    attributes: tuple[str, ...] = ()  # features of the whole row that are read at every step


@dataclass(frozen=True)
class Classes(Named):
    """One name for a whole sequence."""

    as_target: ClassVar[TargetForm] = "class"
    plural: ClassVar[str] = "classes"
    per_step: ClassVar[bool] = False


@dataclass(frozen=True)
class Labels(Named):
    """Any number of names for a whole sequence, or for every step.

    Labels of steps are `shifted` if they are those of the next input step: a model must not look ahead.
    """

    as_target: ClassVar[TargetForm] = "labels"
    plural: ClassVar[str] = "labels"

    per_step: bool = False
    shifted: bool = False


@dataclass(frozen=True)
class Tags(Named):
    """One name for every step. Steps with a tag in `unscored` have a loss, but metrics skip them."""

    as_target: ClassVar[TargetForm] = "tags"
    plural: ClassVar[str] = "tags"
    per_step: ClassVar[bool] = True

    unscored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Values(Named):
    """Real numbers: for a whole sequence (steps = 1), or for each of the `steps` that follow."""

    as_target: ClassVar[TargetForm] = "numbers"
    per_step: ClassVar[bool] = False

    steps: int = 1


class Frame(Protocol):
    """A DataFrame of polars or pandas."""

    @property
    def columns(self) -> Iterable[Any]: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    def __iter__(self) -> Iterator[Any]: ...


Files: TypeAlias = str | Path | Sequence[str | Path]  # a file or folder, or two files whose lines belong together
DataSource: TypeAlias = Files | Frame | Mapping[str, Files | Frame]  # a mapping: by split
Input = Tokens | Features
Target = Classes | Labels | Tags | Values | Tokens


@dataclass(frozen=True)
class Split:
    """The number of examples and a hash that identifies them.

    The size is None if the split is endless. For one long text it is the number of steps.
    """

    size: int | None
    hash: str


@dataclass(frozen=True)
class Column:
    """One column of a file: its role, why it has that role, and its use in the task.

    Roles: text, tokens, tags (a label per token), series, audio, number, label, category (repeated names, too many
    for classes), time, times (a time stamp per step), rate (of a recording), split, id, constant, other.
    """

    name: str
    role: str
    distinct: int
    missing: int
    example: str
    is_whole: bool = False  # holds whole numbers: a label or constant that could also be a number
    is_string: bool = False
    use: str = ""  # input, target, group, time or split; "" if the task does not use the column

    @property
    def is_numeric(self) -> bool:
        return self.role == "number" or self.is_whole


@dataclass(frozen=True)
class Note:
    """One line for the user. A warning may change what they do; a plain note only informs."""

    text: str
    warning: bool = False


class Notes(list[Note]):
    """Notes from reading the data. Repeated notes are dropped."""

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
    """Some examples, padded at the end. The table at the top of this file defines x and y."""

    x: Tensor  # (B, T) ids or (B, T, D) values
    lengths: Tensor  # (B,) steps of each example without padding
    rows: Tensor  # (B,) positions of the examples in the split, to restore their order
    y: Tensor | None = None  # the targets; None for new inputs
    y_lengths: Tensor | None = None  # (B,) lengths of target sequences
    # (B, T) time since the previous step, in typical intervals; None if time stamps are regular.
    timespans: Tensor | None = None
    # (B, T, C) letter ids of each word, 0 past its end; None if the task's input has no alphabet.
    letters: Tensor | None = None
    # (B, S, F) the known features of the steps to forecast; None if the task's input has none.
    future: Tensor | None = None
    series: Tensor | None = None  # (B,) the index of the series that a window of a table belongs to; None otherwise
    # (B, A) numbers and names of each row, read at every step; None if the task's input has none.
    attributes: Tensor | None = None
    # Whether row b continues row b of the previous batch (one long text read in pieces), so that the state may be
    # carried over. False for the first batch of an epoch.
    carry: bool = False

    def __len__(self) -> int:
        return len(self.x)

    @property
    def steps(self) -> int:
        """The number of input steps without padding."""
        return int(self.lengths.sum())

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """Return the batch with all tensors on a device."""
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def shard(self, k: int, n: int) -> Batch:
        """Return every n-th example, starting with the k-th: the share of process k of n."""
        return self._map_tensors(lambda tensor: tensor[k::n])

    def select(self, rows: Tensor) -> Batch:
        """Return some examples, given by their indices in the batch or a mask (B,)."""
        return self._map_tensors(lambda tensor: tensor[rows])

    def cut(self, steps: int) -> Batch:
        """Return the first steps of the inputs, without targets."""
        stepwise = {name: getattr(self, name) for name in ("x", "timespans", "letters")}
        changes: dict[str, Any] = {name: t[:, :steps] for name, t in stepwise.items() if t is not None}
        return replace(self, **changes, lengths=self.lengths.clamp(max=steps), y=None)

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> Batch:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        changed: dict[str, Any] = {name: change(v) for name, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **changed)


@dataclass(frozen=True)
class Pass:
    """One pass over a split; the fields are arguments of `Task.batches`."""

    split: str
    batch: int | None
    tokens: int | None
    seed: int
    epoch: int


@dataclass(eq=False)
class Task(ABC):
    """Data, split and encoded; see the top of this file."""

    name: str
    kind: Kind
    input: Input
    target: Target
    splits: Mapping[str, Split] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)
    columns: Sequence[Column] = ()
    encoding: Any = field(default=None, init=False, repr=False)  # a `pipeline.encoding.Encoding` of data from files
    group: str | None = field(default=None, init=False, repr=False)  # column whose rows form one series
    units: Any = field(default=None, init=False, repr=False)  # (series, K) of a table: see WindowsTask
    lookback: int = field(default=0, init=False, repr=False)  # steps of a window or a piece; 0 for separate rows
    steps = 1  # steps of an example, if all have the same number
    overlap = 1  # number of consecutive held-out examples that share steps of one series

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
        """Yield the batches of one epoch; the order depends on the arguments alone.

        "train" is shuffled in every epoch, with examples of similar length together; other splits have one fixed
        order. Every example occurs once. An endless split never ends; its batch number `skip` + i depends only on
        (seed, epoch).

        Args:
            batch: Examples per batch. Give either `batch` or `tokens`.
            tokens: Maximum number of steps per batch, including padding; a batch has at least one example.
            seed: Seed of the order, or of the examples themselves in an endless split.
            skip: Number of batches to skip at the start without building them, to resume within an epoch.
        """
        self.check(split, batch, tokens)
        return self.iterate(Pass(split, batch, tokens, seed, epoch), skip)

    def count(
        self, split: str, *, batch: int | None = None, tokens: int | None = None, seed: int = 0, epoch: int = 0
    ) -> int | None:
        """Count the batches that `batches` yields without building them; None for an endless split."""
        self.check(split, batch, tokens)
        return self.count_batches(Pass(split, batch, tokens, seed, epoch))

    def iterate(self, one: Pass, skip: int) -> Iterator[Batch]:
        """Yield the batches of a pass, as `batches` does."""
        raise NotImplementedError

    def count_batches(self, one: Pass) -> int | None:
        """Count the batches of a pass; by default those of examples of `steps` steps."""
        size = self.splits[one.split].size
        return None if size is None else -(-size // self.choose_batch_size(one))

    @abstractmethod
    def encode(self, rows: Sequence[Any]) -> Batch:
        """Encode new inputs, in this order and without y.

        Args:
            rows: Each row is the input itself or a dict of columns.
        """

    @abstractmethod
    def decode(self, predictions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Any]:
        """Translate predictions to the names and units of the data, one Python value per row.

        Args:
            predictions: classify (B,) ids, multilabel (B, K) 0 or 1, tag (B, T) ids, regress (B, K) and forecast
                (B, S, K) values; generate, translate and transcribe (B, S) ids.
            lengths: (B,) steps of each row to decode; all by default.

        Returns:
            Names (classify), lists of names (multilabel, tag) or of numbers (regress, forecast), or texts up to END.
        """

    @abstractmethod
    def save(self, folder: Path | str) -> None:
        """Write everything that `encode` and `decode` need as JSON, for `seqloom.lab.data.registry.load_task`."""

    def open_file(self, path: DataSource) -> Task:
        """Open another file with this task's encoding; its rows are the split "test"."""
        raise UserError(f"task {self.name!r} generates its data and cannot read files")

    def read_rows(self, path: DataSource, chunk: int = 1024) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows of a file for `encode`, `chunk` at a time; the target columns may be absent."""
        raise UserError(f"task {self.name!r} generates its data and cannot read files")

    def read_classes(self, split: str) -> np.ndarray[Any, Any]:
        """Return the class of every row of a split as an array (N,); at most 10,000 of an endless one."""
        parts: list[Any] = []
        for batch in self.batches(split, batch=256):
            assert batch.y is not None
            parts.append(batch.y.numpy())
            if self.splits[split].size is None and sum(map(len, parts)) >= ENDLESS_CLASSES:
                break
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def check(self, split: str, batch: int | None, tokens: int | None) -> None:
        """Raise an error for arguments that `batches` cannot serve."""
        if split not in self.splits:
            raise UserError(f"task {self.name!r} has no split {split!r}; it has {', '.join(self.splits) or 'none'}")
        if (batch is None) == (tokens is None):
            raise UserError(f"give one of batch and tokens, got batch={batch}, tokens={tokens}")
        if (batch if batch is not None else tokens or 0) < 1:
            raise UserError(f"batch and tokens must be at least 1, got batch={batch}, tokens={tokens}")

    def choose_batch_size(self, one: Pass) -> int:
        """Return the number of examples of `steps` steps in a batch."""
        return one.batch or max(1, (one.tokens or 1) // self.steps)


def list_rows(predictions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Any]:
    """Return predictions (B, ...) as Python values, each row up to its length."""
    rows = predictions.detach().cpu().tolist()
    if lengths is None:
        return rows
    return [row[:end] for row, end in zip(rows, torch.as_tensor(lengths).tolist(), strict=True)]


def write_record(folder: Path | str, record: Mapping[str, Any]) -> None:
    """Write a task's record to task.json in a folder, which is created if necessary."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORD_FILE).write_bytes(sealed.dumps({"format": RECORD_FORMAT, **record}))


def read_record(folder: Path | str) -> dict[str, Any]:
    """Read and verify a record that `write_record` wrote."""
    path = Path(folder) / RECORD_FILE
    if not path.is_file():
        raise UserError(f"{folder}: holds no {RECORD_FILE}, so it is not a saved task")
    return sealed.loads(path.read_bytes(), path, RECORD_FORMAT)


def is_frame(data: object) -> TypeGuard[Frame]:
    """Return whether this is a DataFrame of polars or pandas."""
    return type(data).__name__ == "DataFrame"


def make_frame(rows: Sequence[Mapping[str, Any]], like: object = None) -> Frame:
    """Return rows as a DataFrame; a key that a row lacks is null there.

    Args:
        like: A DataFrame whose library to use. Default: pandas if it is installed, otherwise polars.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    if not isinstance(like, pl.DataFrame):
        try:
            import pandas
        except ImportError:
            pass
        else:
            return cast(Frame, pandas.DataFrame(columns))
    return pl.DataFrame(columns, strict=False)


def flatten_results(results: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Turn predictions into rows, with the probability of each class in a separate column, `probability_CLASS`."""
    rows = []
    for result in results:
        row = dict(result)
        by_class = row.pop("probabilities", None)
        rows.append(row | {f"probability_{name}": value for name, value in (by_class or {}).items()})
    return rows
