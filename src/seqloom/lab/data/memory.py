"""A task of examples in memory: nothing is written or cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from seqloom.lab.data.coders.labels import LabelCoder
from seqloom.lab.data.coders.letters import LettersCoder, are_words
from seqloom.lab.data.coders.series import SeriesCoder, ValuesCoder
from seqloom.lab.data.coders.text import TextCoder, guess_unit
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.pipeline.encoding import Encoding, InputCoder
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
        self._x, self._y = (Ragged.from_lengths(*coder.encode(frame)) for coder in (encoding.x, encoding.y))
        self._spans = None
        self._letters = Ragged.from_lengths(*encoding.letters.encode(frame)) if encoding.letters else None
        self._x.lengths = np.minimum(self._x.lengths, reading.limit)
        if is_tagged:
            self._y.lengths = np.minimum(self._y.lengths, reading.limit)
        if self._letters is not None:
            self._letters.lengths = np.minimum(self._letters.lengths, reading.limit)
        self._attributes = None
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
    if column.dtype == pl.List(pl.String):
        return TextCoder(X, "tokens", options.vocabulary, options.min_count, bool(options.lowercase))
    if column.dtype.is_nested():
        return SeriesCoder([X])
    unit: str = guess_unit(column) if options.unit == "auto" else options.unit
    lower = unit == "words" if options.lowercase is None else options.lowercase
    if unit in ("bpe", "unigram"):
        from seqloom.lab.data.coders.subwords import SubwordCoder

        return SubwordCoder(X, unit, options.vocabulary, lower)
    return TextCoder(X, unit, options.vocabulary, options.min_count if unit == "words" else 1, lower)
