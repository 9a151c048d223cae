"""Which columns a row of a run must have."""

import polars as pl

from seqloom.lab.data.registry import open_task
from seqloom.lab.serve.row_format import RowFormat


def test_times_and_names_of_series_may_be_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path))
    n = 60
    table = pl.DataFrame(
        {
            "who": [i // 5 for i in range(n)],
            "time": [[0.0, 1.0, 1.5, 4.0, 5.0][i % 5] for i in range(n)],
            "v": [float(i) for i in range(n)],
            "label": ["ab"[i // 5 % 2] for i in range(n)],
        }
    )
    assert RowFormat(open_task(table, group="who"), 9, 9).columns == ["v"]
