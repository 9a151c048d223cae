"""All rows, encoded and on disk, a piece at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from seqloom.lab.data.coders.series import SeriesCoder
from seqloom.lab.data.pipeline.ragged import Writer
from seqloom.lab.data.pipeline.saved import Saved
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.task import END

Array = np.ndarray[Any, Any]


def written(source: Source, names: list[str], writers: dict[str, tuple[Any, Writer]], saved: Saved) -> None:
    """Encode, cut at the limit, append; then say what was cut and what had gaps."""
    long: list[Array] = []
    gaps: list[Array] = []
    for start, frame in source.chunks(names):
        for name, (coder, writer) in writers.items():
            values, lengths = coder.encode(frame)
            if name == "x":
                long.append(start + np.flatnonzero(lengths > saved.options.limit))
                if isinstance(coder, SeriesCoder):
                    gaps.append(start + _with_gaps(*coder.raw(frame)))
            writer.add(*cut(values, lengths, saved.options.limit, getattr(coder, "end", False)))
    for _, writer in writers.values():
        writer.close()
    _tell(
        source,
        np.concatenate(long),
        f"longer than {saved.options.limit} steps and were cut; limit=... keeps more",
        saved,
    )
    if gaps:
        _tell(source, np.concatenate(gaps), "with missing values, which read 0 and are marked", saved)


def _tell(source: Source, rows: Array, what: str, saved: Saved) -> None:
    if len(rows):
        saved.notes.warn(f"{len(rows)} of {source.rows} sequences are {what} (first: {source.place(int(rows[0]))})")


def _with_gaps(values: Array, lengths: Array) -> Array:
    of_row = np.repeat(np.arange(len(lengths)), lengths)
    return np.unique(of_row[~np.isfinite(values).all(1)])


def cut(values: Array, lengths: Array, limit: int, end: bool) -> tuple[Array, Array]:
    """The first `limit` steps of every row; a row that ends in END still does."""
    if not (lengths > limit).any():
        return values, lengths
    starts = np.cumsum(lengths) - lengths
    within = np.arange(len(values)) - np.repeat(starts, lengths)
    kept, short = values[within < limit].copy(), np.minimum(lengths, limit)
    if end:
        kept[np.cumsum(short)[lengths > limit] - 1] = END
    return kept, short
