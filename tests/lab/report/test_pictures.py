"""Charts of latencies."""

import pytest

from seqloom.core.errors import UserError
from seqloom.lab.report import pictures


def test_a_chart_of_latencies_names_its_lines(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(pictures, "_save_figure", lambda figure, path: figures.append((figure, path)))
    levels = [{"per_second": r, "p50": 1.0 * r, "p90": 2.0 * r, "p99": 3.0 * r} for r in (1, 10)]
    pictures.plot_latency(levels, tmp_path / "a.svg")
    ((figure, path),) = figures
    axis = figure.axes[0]
    assert path == tmp_path / "a.svg"
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["p50", "p90", "p99"]
    assert [list(line.get_ydata()) for line in axis.lines] == [[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]
    assert axis.get_yscale() == "log" and axis.get_xlim()[0] == 0


def test_a_chart_of_nothing_is_refused(tmp_path):
    with pytest.raises(UserError, match="no latencies to plot"):
        pictures.plot_latency([], tmp_path / "a.svg")
