"""Several texts of a row as one sequence, with END between them and one vocabulary for all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from pydantic import validate_call

from seqloom.lab.data.coders.subwords import SubwordCoder
from seqloom.lab.data.coders.text import TextCoder
from seqloom.lab.data.task import END, Tokens

Array = np.ndarray[Any, Any]
INNER: dict[str, Any] = {"text": TextCoder, "subwords": SubwordCoder}


class JoinedTextCoder:
    """Encode the texts of several columns in sequence, with END between them.

    Args:
        columns: The columns, in the order in which their texts are read.
        inner: The coder of one text, or its `state()`.
    """

    def __init__(self, columns: Sequence[str], inner: Mapping[str, Any]) -> None:
        self.columns = tuple(columns)
        arguments = dict(inner)
        self.inner: Any = object.__new__(INNER[arguments.pop("coder")])
        validate_call(type(self.inner).__init__)(self.inner, **arguments)  # checks the types of values from a file

    @classmethod
    def wrap(cls, columns: Sequence[str], inner: TextCoder | SubwordCoder) -> JoinedTextCoder:
        """Make a coder of several columns from one that is not fitted yet."""
        coder = object.__new__(cls)
        coder.columns, coder.inner = tuple(columns), inner
        return coder

    @property
    def unit(self) -> str:
        """The unit of the inner coder."""
        return str(self.inner.unit)

    @property
    def space(self) -> Tokens:
        space: Tokens = self.inner.space
        return space

    def _select(self, frame: pl.DataFrame, column: str) -> pl.DataFrame:
        return frame.select(pl.col(column).alias(self.inner.column))

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:
        def iterate() -> Iterator[pl.DataFrame]:
            for frame in frames:
                yield from (self._select(frame, column) for column in self.columns)

        self.inner.fit(iterate())

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        parts = [self.inner.encode(self._select(frame, column)) for column in self.columns]
        sizes = np.stack([lengths for _, lengths in parts], 1)  # (N, columns)
        sizes[:, :-1] += 1  # the separators
        ids = np.full(int(sizes.sum()), END, dtype=np.int32)
        starts = np.concatenate([[0], np.cumsum(sizes.ravel())[:-1]]).reshape(sizes.shape)
        for k, (values, lengths) in enumerate(parts):
            first = np.repeat(starts[:, k] - (np.cumsum(lengths) - lengths), lengths)
            ids[first + np.arange(len(values))] = values
        lengths = sizes.sum(1)
        return ids, np.where(lengths < len(self.columns), 0, lengths)  # only separators: nothing to read

    def decode(self, ids: Sequence[int]) -> str:
        cuts = [-1, *(i for i, k in enumerate(ids) if k == END), len(ids)]
        return " | ".join(str(self.inner.decode(ids[a + 1 : b])) for a, b in pairwise(cuts))

    def state(self) -> dict[str, Any]:
        return {"coder": "joined", "columns": list(self.columns), "inner": self.inner.state()}
