"""The tables and inputs of a benchmark."""

import pytest
import torch

from seqloom.core.errors import UserError
from seqloom.lab.bench.race import Timing, _data, tabulate
from seqloom.lab.bench.settings import BenchSettings, check_plot

ROW = Timing("gru", "aten", "oneDNN", "cpu", "float32", 8, 2, 5, 1, "forward")
OWN = Timing(
    "gru", "cpu_fused", "", "cpu", "bfloat16", 8, 2, 5, 1, "forward+backward", us_per_step=2.0, saved_bytes=10**6
)


def test_a_kernel_of_torch_is_listed_with_its_library():
    assert [row["kernel"] for row in tabulate(BenchSettings(), [ROW, OWN])] == ["aten (oneDNN)", "cpu_fused"]


def test_a_setting_with_one_value_has_no_column():
    assert "dtype" not in tabulate(BenchSettings(dtype=("float32",)), [ROW])[0]
    several = tabulate(BenchSettings(dtype=("float32", "bfloat16")), [ROW, OWN])
    assert [row["dtype"] for row in several] == ["float32", "bfloat16"]


def test_reasons_have_a_column_if_a_row_has_one():
    assert "reason" not in tabulate(BenchSettings(), [ROW])[0]
    slow = Timing("gru", "aten", "", "cpu", "float32", 8, 2, 5, 1, "forward", reason="too slow")
    assert [row["reason"] for row in tabulate(BenchSettings(), [ROW, slow])] == ["", "too slow"]


def test_times_and_memory_are_in_the_units_of_their_columns():
    row = tabulate(BenchSettings(), [OWN])[0]
    assert (row["us/step"], row["saved MB"], row["pass"]) == (2.0, 1.0, "+backward")
    assert "peak MB" not in row and "graph us/step" not in row


@pytest.mark.parametrize(("name", "dtype"), [("tf32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_the_input_has_the_type_that_is_timed(name, dtype):
    blank = Timing("gru", "aten", "", "cpu", name, 8, 3, 5, 1, "forward")
    x, dy, lengths = _data(BenchSettings(device="cpu", ragged=True), blank)
    assert x.dtype == dy.dtype == dtype
    assert x.shape == dy.shape == (3, 5, 8) and x.requires_grad
    assert lengths.tolist() == [5, 3, 1]


@pytest.mark.parametrize("name", ["chart.svg", "chart.png", "chart.pdf"])
def test_a_chart_can_have_the_usual_forms(tmp_path, name):
    assert check_plot(tmp_path / name) == tmp_path / name


def test_a_chart_of_another_form_or_in_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"must end in .svg, .png or .pdf, got 'chart.txt'"):
        check_plot(tmp_path / "chart.txt")
    with pytest.raises(UserError, match="missing"):
        check_plot(tmp_path / "missing" / "chart.svg")
    assert check_plot(None) is None
