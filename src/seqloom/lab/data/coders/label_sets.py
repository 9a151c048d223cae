"""Any number of labels for a row: lists of names, or names in one text such as "action|comedy"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from seqloom.lab.data.coders.labels import LabelCoder
from seqloom.lab.data.task import UNSEEN, Labels

Array = np.ndarray[Any, Any]
SEPARATORS = ("|", ";", ",")


class LabelSetCoder(LabelCoder):
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

    def state(self) -> dict[str, Any]:
        common = {"column": self.column, "names": list(self.names), "merge": self.merge}
        return {"coder": "label sets", "separator": self.separator} | common


def find_separator(columns: Sequence[pl.Series]) -> str:
    """Return the separator that most texts contain; "" if none does, or if the columns hold lists."""
    texts = [column.cast(pl.String) for column in columns if not column.dtype.is_nested()]
    counts = {s: sum(int(text.str.contains(s, literal=True).sum()) for text in texts) for s in SEPARATORS}
    most = max(counts.values())
    return next((separator for separator, count in counts.items() if count == most), "") if most else ""
