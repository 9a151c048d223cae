"""Names as numbers: one per row or token, or any number of them per row or step; misspelt names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import numpy as np
import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.coder import Coder
from seqloom.lab.data.task import UNSEEN, Classes, Features, Labels, Tags

Array = np.ndarray[Any, Any]
SEPARATORS = ("|", ";", ",")
SHORTEST = 4  # letters of a name; shorter ones often differ in one letter
LEAST_RATIO = 20  # how much more frequent the correct name must be


class LabelCoder(Coder, key="labels"):
    """Assign ids to class names in alphabetical order, or in numerical order if the names are numbers.

    With `merge`, names of classes that differ only by case or blanks are one class; it has the most frequent spelling.
    Single letters keep their case, and so do tags of tokens.
    """

    def __init__(self, column: str, per_token: bool = False, names: Sequence[str] = (), merge: bool = True) -> None:
        self.column, self.per_token, self.merge = column, per_token, merge
        self.spellings: dict[str, list[str]] = {}  # name -> all spellings in training, if there are several
        self._set_names(names)

    def _set_names(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._ids = {self._normalise(name): i for i, name in enumerate(self.names)}
        if len(self._ids) < len(self.names):  # written before names were merged
            self.merge = False
            self._ids = {name: i for i, name in enumerate(self.names)}

    def _normalise(self, name: str) -> str:
        if self.per_token or not self.merge:
            return name
        clean = " ".join(name.split())
        return clean.casefold() if len(clean) > 1 else clean

    @property
    def space(self) -> Classes | Tags:
        return Tags(self.names) if self.per_token else Classes(self.names)

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:
        counts: Counter[str] = Counter()
        for frame in frames:
            counts.update(dict(self._read_names(frame).drop_nulls().alias("name").value_counts().iter_rows()))
        by_key: dict[str, list[str]] = {}
        for name in sorted(counts, key=lambda name: (-counts[name], name)):
            by_key.setdefault(self._normalise(name), []).append(name)
        merged = self.merge and not self.per_token
        spellings = {" ".join(some[0].split()) if merged else some[0]: some for some in by_key.values()}
        self.spellings = {name: some for name, some in spellings.items() if len(some) > 1}
        self._set_names(sorted(spellings, key=_sort_key))

    def _read_names(self, frame: pl.DataFrame) -> pl.Series:
        column = frame[self.column]
        column = column.explode(empty_as_null=False) if self.per_token else column
        if column.dtype.is_float() and (column.drop_nulls() == column.drop_nulls().round()).all():
            column = column.cast(pl.Int64, strict=False)  # 1.0 and 1 are the same class
        if column.dtype == pl.Boolean:
            return column.replace_strict({True: "True", False: "False"}, default=None, return_dtype=pl.String)
        return column.cast(pl.String)

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        names = self._read_names(frame)
        known = {name: self._ids.get(self._normalise(name), UNSEEN) for name in names.drop_nulls().unique()}
        ids = names.replace_strict(known, default=UNSEEN, return_dtype=pl.Int64)
        if not self.per_token:
            return ids.to_numpy(), np.ones(len(frame), dtype=np.int64)
        return ids.to_numpy(), frame[self.column].list.len().fill_null(0).to_numpy().astype(np.int64)

    def decode(self, ids: int | Sequence[int]) -> str | list[str]:
        if self.per_token:
            return [self.names[k] for k in cast(Sequence[int], ids)]
        return self.names[int(cast(int, ids))]


def _sort_key(name: str) -> tuple[int, float, str]:
    try:
        return (0, float(name), name)
    except ValueError:
        return (1, 0.0, name)


class LabelSetCoder(LabelCoder, key="label sets"):
    """Encode the labels of a row as 0 or 1 for each name, and the number of labels that training lacks.

    Names are merged as in `LabelCoder`. A text is split at the most frequent of | ; and comma in training, after
    removing the brackets and quotes with which pandas writes lists.
    """

    def __init__(self, column: str, names: Sequence[str] = (), merge: bool = True, separator: str = "") -> None:
        super().__init__(column, names=names, merge=merge)
        self.separator = separator

    @property
    def space(self) -> Labels:  # type: ignore[override]
        return Labels(self.names)

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:
        targets = [frame.select(self.column) for frame in frames]  # read twice
        self.separator = find_separator([frame[self.column] for frame in targets])
        super().fit(targets)

    def _read_names(self, frame: pl.DataFrame) -> pl.Series:
        return self._read_lists(frame).explode(empty_as_null=False, keep_nulls=False)

    def _read_lists(self, frame: pl.DataFrame) -> pl.Series:
        """Return the names of each row as a list without gaps."""
        column = frame[self.column]
        if column.dtype.is_nested():
            inner = column.explode(empty_as_null=False, keep_nulls=False)
            if inner.dtype.is_float() and (inner.drop_nulls() == inner.drop_nulls().round()).all():
                column = column.cast(pl.List(pl.Int64), strict=False)  # 1.0 and 1 are the same label
            names = column.cast(pl.List(pl.String))
        else:
            texts = column.cast(pl.String).str.strip_chars().str.strip_prefix("[").str.strip_suffix("]")
            names = texts.str.split(self.separator) if self.separator else texts.reshape((-1, 1)).arr.to_list()
            names = names.list.eval(pl.element().str.strip_chars(" \t'\""))
        return names.fill_null([]).list.eval(pl.element().filter(pl.element().str.strip_chars() != ""))

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        lists = self._read_lists(frame)
        row = np.repeat(np.arange(len(frame)), lists.list.len().to_numpy())
        names = lists.explode(empty_as_null=False, keep_nulls=False)
        known = {name: self._ids.get(self._normalise(name), UNSEEN) for name in names.unique()}
        ids = np.array([known[name] for name in names], dtype=np.int64)
        values = np.zeros((len(frame), len(self.names) + 1), dtype=np.int16)
        values[row[ids >= 0], ids[ids >= 0]] = 1
        np.add.at(values[:, -1], row[ids < 0], 1)
        return values, np.ones(len(frame), dtype=np.int64)

    def decode(self, row: Sequence[float]) -> list[str]:  # type: ignore[override]
        return [name for name, is_there in zip(self.names, row, strict=False) if is_there > 0]


def find_separator(columns: Sequence[pl.Series]) -> str:
    """Return the separator that most texts contain; "" if none does, or if the columns hold lists."""
    texts = [column.cast(pl.String) for column in columns if not column.dtype.is_nested()]
    counts = {s: sum(int(text.str.contains(s, literal=True).sum()) for text in texts) for s in SEPARATORS}
    most = max(counts.values())
    return next((separator for separator, count in counts.items() if count == most), "") if most else ""


class StepSetCoder(LabelSetCoder, key="step sets"):
    """Encode a list of lists of labels: 0 or 1 of each label at every step.

    A target has one more value at each step: the number of labels that do not occur in training.

    Args:
        merge: Whether labels that differ only by case or blanks are one.
        is_input: Whether to encode inputs.
        shifted: Whether the target is the next step of the input, so that a model must not look ahead.
    """

    def __init__(
        self,
        column: str,
        names: Sequence[str] = (),
        merge: bool = True,
        is_input: bool = False,
        shifted: bool = False,
    ) -> None:
        super().__init__(column, names, merge)
        self.is_input, self.shifted = is_input, shifted

    @property
    def space(self) -> Labels | Features:  # type: ignore[override]
        return Features(self.names) if self.is_input else Labels(self.names, per_step=True, shifted=self.shifted)

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:
        super().fit(self._list_steps(frame) for frame in frames)
        if set(self.names) <= {"0", "1"}:
            raise UserError(
                f"column {self.column!r} holds {' and '.join(self.names) or 'nothing'} at every step; list the labels "
                "that are there, such as [[60, 64], [67]]"
            )

    def _list_steps(self, frame: pl.DataFrame) -> pl.DataFrame:
        return pl.DataFrame({self.column: frame[self.column].explode(empty_as_null=False, keep_nulls=False)})

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        values = super().encode(self._list_steps(frame))[0]
        lengths = frame[self.column].list.len().fill_null(0).to_numpy().astype(np.int64)
        return values[:, :-1].astype(np.float32) if self.is_input else values, lengths

    def decode(self, row: Sequence[Sequence[float]]) -> list[list[str]]:  # type: ignore[override]
        decode = super().decode
        return [decode(step) for step in row]


def are_shifted(inputs: pl.Series, targets: pl.Series) -> bool:
    """Return whether each target is the input one step later, in all of some rows."""
    pairs = [(x[1:], y[:-1]) for x, y in zip(inputs.to_list(), targets.to_list(), strict=True) if x and y]
    return any(x for x, _ in pairs) and all(x == y for x, y in pairs)


def find_typos(rows: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return pairs of a rare class and a frequent one whose names differ by one letter.

    Args:
        rows: The number of rows of each class.

    Example:
        >>> find_typos({"negative": 120, "negativr": 2, "positive": 130})
        [('negativr', 'negative')]
    """
    frequent = sorted((name for name, n in rows.items() if n >= LEAST_RATIO), key=rows.__getitem__, reverse=True)
    pairs = []
    for name, n in rows.items():
        likely = (other for other in frequent if 0 < n * LEAST_RATIO <= rows[other] and is_edited(name, other))
        pairs += [(name, other) for other in islice(likely, 1)]
    return pairs


def is_edited(name: str, other: str) -> bool:
    """Return whether one letter was left out, added or replaced, or two neighbours swapped; digits are no typos."""
    if min(len(name), len(other)) < SHORTEST or abs(len(name) - len(other)) > 1 or name == other:
        return False
    at = next((i for i in range(min(len(name), len(other))) if name[i] != other[i]), min(len(name), len(other)))
    a, b = name[at:], other[at:]
    if any(letter.isdigit() for letter in a[:1] + b[:1]):
        return False
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])
