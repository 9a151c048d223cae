"""A task of examples that are in memory already: nothing is written, nothing is cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from seqloom.lab.data.coders.labels import LabelCoder
from seqloom.lab.data.coders.series import SeriesCoder, ValuesCoder
from seqloom.lab.data.coders.text import TextCoder, likely_unit
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.pipeline.plan import Plan
from seqloom.lab.data.pipeline.ragged import Ragged
from seqloom.lab.data.pipeline.reading import Reading, reading
from seqloom.lab.data.pipeline.rows import RowsTask
from seqloom.lab.data.pipeline.saved import Saved
from seqloom.lab.data.task import Kind, Split

Array = np.ndarray[Any, Any]
X = "x"


class MemoryTask(RowsTask):
    """Sequences and their targets, split by row numbers; coders are fitted on "train".

    `x` are texts, lists of tokens, or arrays (T,) or (T, D). `y` are class numbers ("classify"), a
    list of tag numbers for every sequence ("tag"), or an array (N, K) ("regress").
    """

    def __init__(
        self, kind: Kind, x: Sequence[Any], y: Any, rows: Mapping[str, Array], options: Mapping[str, Any] | None = None
    ) -> None:
        chosen = reading(**(options or {}))
        targets = {f"y{k}": column for k, column in enumerate(np.asarray(y).T)} if kind == "regress" else {"y0": y}
        frame = pl.DataFrame({X: series(x), **{name: pl.Series(name, list(v)) for name, v in targets.items()}})
        saved = Saved("data", Plan(kind, (X,), tuple(targets)), chosen, _input(frame[X], chosen))
        saved.y = ValuesCoder(list(targets)) if kind == "regress" else LabelCoder("y0", per_token=kind == "tag")
        train = frame[rows["train"]]
        saved.x.fit([train])
        saved.y.fit([train])
        super().__init__(saved)
        self._x, self._y, self._spans = _ragged(saved.x, frame), _ragged(saved.y, frame), None
        self._x.lengths = np.minimum(self._x.lengths, chosen.limit)
        if kind == "tag":
            self._y.lengths = np.minimum(self._y.lengths, chosen.limit)
        self._index = dict(rows)
        data = frame.write_ipc(None).getvalue()
        self.splits = {name: Split(len(r), cache.digest(data, r.tobytes())) for name, r in rows.items()}
        saved.splits = {name: {"size": split.size, "hash": split.hash} for name, split in self.splits.items()}


def series(x: Sequence[Any]) -> pl.Series:
    """One column: strings, lists of strings, or lists of steps."""
    if isinstance(x[0], str):
        return pl.Series(X, list(x), dtype=pl.String)
    if isinstance(x[0], (list, tuple)) and any(isinstance(token, str) for row in x for token in row[:1]):
        return pl.Series(X, [list(row) for row in x], dtype=pl.List(pl.String))
    arrays = [np.asarray(row, dtype=np.float64) for row in x]
    steps = [row[:, None] if row.ndim == 1 else row for row in arrays]
    return pl.Series(X, [row.tolist() for row in steps], dtype=pl.List(pl.List(pl.Float64)))


def _input(column: pl.Series, options: Reading) -> Any:
    if column.dtype == pl.List(pl.String):
        return TextCoder(X, "tokens", options.vocabulary, options.min_count, bool(options.lowercase))
    if column.dtype.is_nested():
        return SeriesCoder([X])
    unit: str = likely_unit(column) if options.unit == "auto" else options.unit
    lower = unit == "words" if options.lowercase is None else options.lowercase
    if unit in ("bpe", "unigram"):
        from seqloom.lab.data.coders.subwords import SubwordCoder

        return SubwordCoder(X, unit, options.vocabulary, lower)
    return TextCoder(X, unit, options.vocabulary, options.min_count if unit == "words" else 1, lower)


def _ragged(coder: Any, frame: pl.DataFrame) -> Ragged:
    values, lengths = coder.encode(frame)
    return Ragged(values, np.concatenate([[0], np.cumsum(lengths)]))
