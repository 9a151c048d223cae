"""Numbers that mark missing values are named."""

import polars as pl
import pytest

from seqloom.lab.data.registry import open_task


def list_warnings(values, tmp_path, name="level"):
    """Open a table with a column of numbers, and return the warnings about marks."""
    frame = pl.DataFrame({name: values, "other": [float(i % 7) for i in range(len(values))]})
    frame.write_parquet(tmp_path / "a.parquet")
    task = open_task(tmp_path / "a.parquet", target=name, kind="forecast", lookback=8, horizon=2)
    return [warning for warning in task.notes.warnings if "marks missing values" in warning]


@pytest.mark.parametrize("mark", [-999.0, 9999])
def test_a_repeated_number_far_from_all_others_is_named(mark, tmp_path):
    values = [mark if i in (20, 50, 51) else type(mark)(20 + i % 13) for i in range(120)]
    (warning,) = list_warnings(values, tmp_path)
    assert warning.startswith(f"column 'level' has {mark:g} in 3 rows, far from its other values (20 to 32)")


@pytest.mark.parametrize(
    "values",
    [
        [-999.0 if i == 20 else 20.0 + i % 13 for i in range(120)],  # once
        [-999.0 if i % 40 == 7 else 100.0 * (i % 30) for i in range(120)],  # not far
        [999 if i % 9 == 0 else 1000 for i in range(120)],
        [999 if i % 9 == 0 else 100 + i * 7 % 500 for i in range(120)],  # a price, perhaps
        [20.0 + i % 13 for i in range(120)],
        [float("nan") if i == 5 else 20.0 + i % 13 for i in range(120)],
    ],
)
def test_other_numbers_are_no_marks(values, tmp_path):
    assert not list_warnings(values, tmp_path)
