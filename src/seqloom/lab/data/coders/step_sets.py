"""Any number of labels for each step, such as the pitches of a piano roll: as inputs and as targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.label_sets import LabelSetCoder
from seqloom.lab.data.task import Features, Labels

Array = np.ndarray[Any, Any]


class StepSetCoder(LabelSetCoder):
    """Encode a list of lists of labels: 0 or 1 of each label at every step.

    A target has one more value at each step: the number of labels that do not occur in training.

    Args:
        column: The column.
        names: The labels.
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

    def state(self) -> dict[str, Any]:
        common = {"column": self.column, "names": list(self.names), "merge": self.merge}
        return {"coder": "step sets", "is_input": self.is_input, "shifted": self.shifted} | common


def are_shifted(inputs: pl.Series, targets: pl.Series) -> bool:
    """Return whether each target is the input one step later, in all of some rows."""
    pairs = [(x[1:], y[:-1]) for x, y in zip(inputs.to_list(), targets.to_list(), strict=True) if x and y]
    return any(x for x, _ in pairs) and all(x == y for x, y in pairs)
