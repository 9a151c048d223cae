"""What people give a scikit-learn estimator as X, as a list of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from seqloom.core.errors import UserError

TEXT = "texts, lists of tokens, or arrays (T,) or (T, D)"


def sequences(estimator: Any, X: Any, *, reset: bool) -> list[Any]:
    """Texts, lists of tokens, or arrays (T, D).

    A table (N, T) is N series of T numbers and keeps its T, as everywhere in scikit-learn; an array
    (N, T, D) is N series of T steps. Series of different lengths come as a list of arrays.
    """
    if _is_table(X):
        _no_texts(X)
        table = validate_data(estimator, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan")
        series = list(table[:, :, None])
        _same_kind(estimator, _kind(series[0]), reset)
        return series
    rows = list(X)
    if not rows:
        raise UserError(f"X is empty; give at least one sequence: {TEXT}")
    found = [_row(row, number) for number, row in enumerate(rows)]
    kinds = {_kind(row) for row in found}
    if len(kinds) > 1:
        raise UserError(f"X mixes {' and '.join(sorted(kinds))}; give one kind: {TEXT}")
    _same_kind(estimator, kinds.pop(), reset)
    if reset and hasattr(estimator, "n_features_in_"):
        del estimator.n_features_in_  # a list has no columns to count
    return found


def _is_table(X: Any) -> bool:
    """Whether scikit-learn's own rules for X apply."""
    if isinstance(X, (list, tuple)):
        return False
    if not hasattr(X, "__array__") or not hasattr(X, "shape"):
        return True  # sparse matrices and things that are no data: scikit-learn says what is wrong with them
    array = np.asarray(X)
    if array.ndim == 3:
        return False
    return not (array.ndim == 1 and array.dtype.kind in "OUT" and _holds_sequences(array))


def _no_texts(X: Any) -> None:
    """A table is of numbers: texts come as one column."""
    array = np.asarray(X) if hasattr(X, "columns") else np.zeros(0)
    if array.ndim == 2 and array.size and isinstance(array.flat[0], str):
        names = list(map(str, X.columns))
        raise UserError(f"X is a frame of texts; give the column that holds the sequences, such as X[{names[0]!r}]")


def _holds_sequences(array: Any) -> bool:
    return bool(len(array)) and isinstance(array[0], (str, list, tuple, np.ndarray))


def _row(row: Any, number: int) -> Any:
    if isinstance(row, str):
        if not row.strip():
            raise UserError(f"X[{number}] is an empty text; leave it out")
        return row
    words = np.ndim(row) == 1 and len(row) and isinstance(next(iter(row)), str)  # a series or an array of them, too
    tokens = list(row) if isinstance(row, (list, tuple)) or words else row
    if not np.ndim(tokens) and not isinstance(tokens, list):
        raise UserError(f"X[{number}] is {row!r}, which is no sequence; give {TEXT}")
    if len(tokens) == 0:
        raise UserError(f"X[{number}] is empty; leave it out")
    if isinstance(tokens, list) and isinstance(tokens[0], str):
        return [str(token) for token in tokens]
    try:
        array = np.asarray(tokens, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"X[{number}] is neither words nor numbers (T,) or (T, D)") from None
    if array.ndim > 2:
        raise UserError(f"X[{number}] has the shape {array.shape}; give (T,) or (T, D)")
    if np.isinf(array).any():
        raise UserError(f"X[{number}] contains infinity; NaN is what is missing")
    return array[:, None] if array.ndim == 1 else array


def _kind(row: Any) -> str:
    if isinstance(row, str):
        return "texts"
    return "lists of tokens" if isinstance(row, list) else f"arrays of {row.shape[1]} features"


def _same_kind(estimator: Any, kind: str, reset: bool) -> None:
    """Remember what the rows are, or compare them with those of fit."""
    if reset:
        estimator.sequence_kind_ = kind
    elif kind != estimator.sequence_kind_:
        raise UserError(f"X holds {kind}, but fit was given {estimator.sequence_kind_}")
