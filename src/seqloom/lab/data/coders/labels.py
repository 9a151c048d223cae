"""Names as numbers: one per row, or one per token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import polars as pl

from seqloom.lab.data.task import UNSEEN, Classes, Tags

Array = np.ndarray[Any, Any]


class LabelCoder:
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

    def state(self) -> dict[str, Any]:
        common = {"column": self.column, "per_token": self.per_token, "names": list(self.names), "merge": self.merge}
        return {"coder": "labels"} | common


def _sort_key(name: str) -> tuple[int, float, str]:
    try:
        return (0, float(name), name)
    except ValueError:
        return (1, 0.0, name)
