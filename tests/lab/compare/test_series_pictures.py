"""Series of a report: one of each class, and the worst ones."""

import numpy as np
import polars as pl
import pytest

from seqloom.lab.compare.error_analysis import analyse_errors
from seqloom.lab.compare.row_scores import score_rows
from seqloom.lab.data.registry import open_task
from seqloom.lab.kinds.baselines.counts import fit_majority
from seqloom.lab.kinds.pages.series_pictures import DRAWN_FEATURES, DRAWN_POINTS, draw_classes
from seqloom.lab.report.page import Gallery, Grid, Table


def make_waves(features=1, steps=30, rows=120):
    """Return slow and fast waves around 50."""
    random = np.random.default_rng(0)
    fast = random.random(rows) < 0.5
    t = np.arange(steps)[None, :, None]
    values = 50 + np.sin(t * np.where(fast, 1.3, 0.4)[:, None, None] + random.random((rows, 1, features)))
    series = values.tolist() if features > 1 else values[..., 0].tolist()
    return pl.DataFrame({"wave": series, "label": np.where(fast, "fast", "slow").tolist()})


@pytest.fixture(scope="module")
def task():
    return open_task(make_waves())


def test_each_class_is_drawn_in_the_units_of_the_data(task):
    gallery = draw_classes(task, 16)
    assert [chart.title for chart in gallery.pictures] == ["fast", "slow"]
    for chart in gallery.pictures:
        (curve,) = chart.curves
        assert len(curve.x) == len(curve.y) == 30 and 49 <= min(curve.y) < max(curve.y) <= 51


def test_columns_of_different_scales_are_drawn_in_standard_deviations():
    frame = make_waves(2, 30, 40)
    waves = [[[a, 1000 * b] for a, b in wave] for wave in frame["wave"].to_list()]
    chart = draw_classes(open_task(frame.with_columns(wave=pl.Series(waves))), 16).pictures[0]
    assert chart.y_label == "standard deviations"
    assert all(1 < max(curve.y) - min(curve.y) < 5 for curve in chart.curves)
    assert draw_classes(open_task(frame), 16).pictures[0].y_label == ""


def test_the_worst_rows_of_a_classifier_of_series_are_drawn(task):
    model = fit_majority(task)
    blocks = analyse_errors(model, task, score_rows(model, task, "test", 16), 16)
    *_, gallery, table = blocks
    assert isinstance(gallery, Gallery) and isinstance(table, Table) and len(gallery.pictures) == 6
    first = table.rows[0]
    assert gallery.pictures[0].title == f"row {first['row']}: true {first['true']}, predicted {first['predicted']}"


def test_a_long_series_is_drawn_at_some_steps():
    (curve,) = draw_classes(open_task(make_waves(1, 900, 40)), 16).pictures[0].curves
    assert len(curve.x) == DRAWN_POINTS and curve.x[-1] == 899


@pytest.mark.parametrize(("features", "steps", "shape"), [(7, 90, (7, 64)), (40, 30, (30, 32))])
def test_many_features_are_drawn_as_shades(features, steps, shape):
    grid = draw_classes(open_task(make_waves(features, steps, 40)), 16).pictures[0]
    assert features > DRAWN_FEATURES and isinstance(grid, Grid)
    assert (len(grid.rows), len(grid.columns)) == shape == (len(grid.values), len(grid.values[0]))
    assert 49 <= np.min(grid.values) < np.max(grid.values) <= 51


def test_texts_are_not_drawn():
    rows = {"text": [f"word{i} day{i % 7}" for i in range(80)], "label": ["a", "b"] * 40}
    assert draw_classes(open_task(pl.DataFrame(rows)), 16) is None
