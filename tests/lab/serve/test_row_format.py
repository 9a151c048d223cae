"""Which columns a row of a run must have."""

import polars as pl

from seqloom.lab.data.registry import open_task
from seqloom.lab.serve.row_format import RowFormat
from seqloom.lab.serve.stepper import LayerStepper


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


def test_the_steps_of_a_stream_of_a_built_in_task_are_a_row():
    task = open_task("adding", steps=5, valid=8, test=8)
    encoder = LayerStepper.__new__(LayerStepper)
    encoder.task = task
    batch = encoder._encode([[{"input": [0.5, 1.0]}, {"input": [0.25, 0.0]}], [{"input": [0.5, 1.0]}]])
    assert batch.x[0].tolist() == [[0.5, 1.0], [0.25, 0.0]]
    assert batch.lengths.tolist() == [2, 1]
