"""Four shops with gaps and promotions: dates, intervals and pictures of the report."""

from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

from seqloom.lab.compare.error_analysis import analyse_errors
from seqloom.lab.compare.row_scores import score_rows
from seqloom.lab.data.registry import open_task
from seqloom.lab.kinds.baselines.naive import fit_ridge
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.report import write_report
from seqloom.lab.report.page import Chart, Gallery, Page, Table
from seqloom.lab.stats.metrics import compute_scores

SHOPS = {"Nord": 120.0, "Ost": 60.0, "Sued": 200.0, "West": 90.0}
DAYS = 500


def shops():
    """Return the sales of four shops that open on different days, with promotions, and gaps of one to six days."""
    random = np.random.default_rng(1)
    week = np.array([0, -0.05, -0.05, 0, 0.1, 0.35, -0.4])
    rows = []
    for number, (name, level) in enumerate(SHOPS.items()):
        promo = random.random(DAYS) < 0.15
        for i in range(DAYS):
            sales = level * (1 + week[i % 7] + 0.4 * promo[i] + 0.06 * random.normal())
            is_gap = random.random() < 0.02 or (name == "Sued" and 300 <= i < 306)
            if not is_gap or i == DAYS - 1:
                rows.append((name, str(date(2024, 1, 1) + timedelta(20 * number + i)), sales, int(promo[i])))
    return pl.DataFrame(rows, schema=["shop", "date", "sales", "promo"], orient="row")


@pytest.fixture(scope="module")
def analysed():
    task = open_task(shops(), target="sales", known="promo", lookback=28, horizon=7)
    model = fit_ridge(task)
    model.fit_decision(task, TrainSettings(batch=64))
    columns = score_rows(model, task, "test", 64)
    return task, columns, analyse_errors(model, task, columns, 64)


def test_the_intervals_of_the_backtest_cover_what_they_promise(analysed):
    _, columns, _ = analysed
    scores = compute_scores(columns).values
    assert scores["coverage_80"] == pytest.approx(0.8, abs=0.05)
    assert scores["coverage_95"] == pytest.approx(0.95, abs=0.05)
    assert scores["mase"] < 1


def test_each_shop_has_a_picture_with_its_dates_and_both_intervals(analysed, tmp_path):
    _, _, blocks = analysed
    charts = [block for block in blocks if isinstance(block, Chart) and block.x_names]
    assert [chart.title for chart in charts] == [f"Forecast of {name}" for name in SHOPS]
    ends = [str(date(2024, 1, 1) + timedelta(20 * number + DAYS - 1)) for number in range(4)]
    assert [chart.x_names[-1] for chart in charts] == ends
    actual, forecast = charts[0].curves
    assert len(actual.y) == 21 and len(forecast.y) == 7
    for wide, narrow, value in zip(forecast.low, forecast.inner_low, forecast.y, strict=True):
        assert wide < narrow < value
    write_report(Page("Shops", "", blocks, {}), tmp_path, {})
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count('"inner_low":[') >= 4 and ends[3] in page
    assert all(chart.split == 13.5 for chart in charts)


def test_each_shop_has_its_scores_and_the_worst_windows_have_dates(analysed):
    _, _, blocks = analysed
    tables = {block.title: block.rows for block in blocks if isinstance(block, Table)}
    scores = tables["Scores by series"]
    assert [row["series"] for row in scores] == ["all", *SHOPS]
    assert {"MAE", "RMSE", "sMAPE", "MASE", "within 80 %", "within 95 %", "windows"} < set(scores[0])
    assert scores[3]["MAE"] > 2 * scores[2]["MAE"]  # the largest shop and the smallest one
    assert tables["Worst test rows"][0]["series"] in SHOPS and tables["Worst test rows"][0]["from"].startswith("2025-")


def test_the_worst_windows_are_drawn_with_their_forecasts_and_do_not_overlap(analysed):
    task, _, blocks = analysed
    (gallery,) = (block for block in blocks if isinstance(block, Gallery))
    assert 1 <= len(gallery.pictures) <= 6
    for chart in gallery.pictures:
        assert [curve.name for curve in chart.curves] == ["actual", "forecast"] and chart.split is not None
        assert chart.title.split(",")[0] in SHOPS and "loss" in chart.title
    starts = [(chart.title.split(",")[0], chart.x_names[-7]) for chart in gallery.pictures]
    for i, (shop, day) in enumerate(starts):
        for other, start in starts[:i]:
            assert shop != other or abs((date.fromisoformat(day) - date.fromisoformat(start)).days) >= task.horizon
