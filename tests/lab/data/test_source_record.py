"""The record from which a run opens its data again."""

import polars as pl
import pytest

from seqloom.core.errors import UserError
from seqloom.lab.data.registry import open_data, reopen

ROWS = "text,label\n" + "".join(f"word{n} here,{'ab'[n % 2]}\n" for n in range(20))


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text(ROWS)
    return tmp_path / "rows.csv"


def test_the_name_of_a_task_is_recorded_as_it_is():
    assert open_data("adding", {"steps": 5})[1] == {"data": "adding", "options": {"steps": 5}}


def test_a_file_is_recorded_with_its_whole_path(file):
    assert open_data("rows.csv", {})[1] == {"data": str(file), "options": {}}


def test_files_of_splits_are_recorded_each(file):
    assert open_data({"train": "rows.csv", "test": file}, {})[1]["data"] == {"train": str(file), "test": str(file)}


def test_a_pair_of_files_is_recorded_as_a_list(tmp_path):
    sides = [tmp_path / f"rows.{side}" for side in ("de", "en")]
    for side in sides:
        side.write_text("\n".join(f"row {n}" for n in range(20)))
    source = open_data(",".join(map(str, sides)), {})[1]
    assert source["data"] == list(map(str, sides))
    assert reopen(source).kind == "translate"


def test_data_in_memory_are_not_recorded(file):
    frame = pl.read_csv(file)
    assert open_data(frame, {})[1] is None
    assert open_data({"train": frame, "test": frame[:8]}, {})[1] is None


def test_files_and_frames_cannot_be_mixed(file):
    with pytest.raises(UserError, match="or frames for all splits, got a DataFrame"):
        open_data({"train": "rows.csv", "test": pl.read_csv(file)}, {})


def test_options_for_a_task_that_is_open_already_are_refused():
    task = open_data("adding", {"steps": 5})[0]
    assert open_data(task, {}) == (task, None)
    with pytest.raises(UserError, match="steps would have no effect"):
        open_data(task, {"steps": 7})
