"""A task of examples in memory: nothing is written or cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from seqloom.lab.data.coders.labels import LabelCoder
from seqloom.lab.data.coders.letters import LettersCoder, are_words
from seqloom.lab.data.coders.series import SeriesCoder, ValuesCoder
from seqloom.lab.data.coders.text import guess_unit
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.pipeline.encoding import Encoding, InputCoder, choose_text_coder
from seqloom.lab.data.pipeline.ragged import Ragged
from seqloom.lab.data.pipeline.reading import Reading, make_reading
from seqloom.lab.data.pipeline.rows import RowsTask
from seqloom.lab.data.pipeline.task_plan import TaskPlan
from seqloom.lab.data.task import Split
from seqloom.lab.kinds.forms import FORMS, Kind

Array = np.ndarray[Any, Any]
X = "x"


class MemoryTask(RowsTask):
    """Sequences and their targets, split by row numbers; coders are fitted on "train".

    Args:
        kind: "classify", "tag" or "regress".
        x: Texts, lists of tokens, or arrays (T,) or (T, D).
        y: Class numbers ("classify"), a list of tag numbers for every sequence ("tag"), or an array (N, K) ("regress").
        rows: Split -> row numbers.
        options: Fields of `Reading`.
    """

    def __init__(
        self,
        kind: Kind,
        x: Sequence[Any],
        y: Sequence[Any] | Array,
        rows: Mapping[str, Array],
        options: Mapping[str, Any] | None = None,
    ) -> None:
        reading = make_reading(**(options or {}))
        target = FORMS[kind].target
        targets = {f"y{k}": column for k, column in enumerate(np.asarray(y).T)} if target == "numbers" else {"y0": y}
        frame = pl.DataFrame({X: _make_column(x), **{name: pl.Series(name, list(v)) for name, v in targets.items()}})
        encoding = Encoding("data", TaskPlan(kind, (X,), tuple(targets)), reading, _make_coder(frame[X], reading))
        is_tagged = target == "tags"
        encoding.y = ValuesCoder(list(targets)) if target == "numbers" else LabelCoder("y0", per_token=is_tagged)
        train = frame[rows["train"]]
        encoding.x.fit([train])
        encoding.y.fit([train])
        if is_tagged and frame[X].dtype == pl.List(pl.String) and are_words(frame[X]):
            encoding.letters = LettersCoder(X)
            encoding.letters.fit([train])
        super().__init__(encoding)
        self._data = {name: Ragged.from_lengths(*coder.encode(frame)) for name, coder in encoding.coders.items()}
        for column in self._data.values():
            column.lengths = np.minimum(column.lengths, reading.limit)
        self._index = dict(rows)
        data = frame.write_ipc(None).getvalue()
        self.splits = encoding.splits = {
            name: Split(len(r), cache.digest(data, r.tobytes())) for name, r in rows.items()
        }


def _make_column(x: Sequence[Any]) -> pl.Series:
    """Create one column of strings, lists of strings, or lists of steps."""
    if isinstance(x[0], str):
        return pl.Series(X, list(x), dtype=pl.String)
    if isinstance(x[0], (list, tuple)) and any(isinstance(token, str) for row in x for token in row[:1]):
        return pl.Series(X, [list(row) for row in x], dtype=pl.List(pl.String))
    arrays = [np.asarray(row, dtype=np.float64) for row in x]
    steps = [row[:, None] if row.ndim == 1 else row for row in arrays]
    return pl.Series(X, [row.tolist() for row in steps], dtype=pl.List(pl.List(pl.Float64)))


def _make_coder(column: pl.Series, options: Reading) -> InputCoder:
    if column.dtype.is_nested() and column.dtype != pl.List(pl.String):
        return SeriesCoder([X])
    unit = guess_unit(column) if options.unit == "auto" and column.dtype == pl.String else options.unit
    return choose_text_coder(column, X, options, unit, lowers=True)
