"""Stored times of cells have known names and come from a record."""

from research.speed.torchrecurrent_cells import summarise_times
from seqloom.core.cell import Cell
from seqloom.lab.bench.cell_times import read_cell_times

RECORD = {
    "steps": 200,
    "batch": 2,
    "hidden": 8,
    "command": "python b.py",
    "date": "2026-11-17",
    "hardware": {"gpus": [{"name": "a GPU"}], "cpu": "x"},
    "rows": [
        {"cell": "gru", "dtype": "float32", "both_ms": 1.0},
        {"cell": "gru", "dtype": "bfloat16", "both_ms": 3.0},
        {"cell": "lem", "dtype": "float32", "failed": "reason"},
    ],
}


def test_stored_times_are_those_of_registered_cells():
    assert set(read_cell_times().us_per_step) <= set(Cell.registry)


def test_a_record_is_summarised_for_one_type():
    times = summarise_times(RECORD, "float32")
    assert times["us_per_step"] == {"gru": 5.0}
    assert times["about"] == "2 rows, 200 steps, 8 inputs and units, float32, a GPU"
    assert times["source"] == {"command": "python b.py", "date": "2026-11-17"}
