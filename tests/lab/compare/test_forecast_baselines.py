"""Baselines of forecasts: gradient boosting on lags and ridge, with known features and gaps."""

from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest
import torch
from threadpoolctl import threadpool_limits

from seqloom.lab.data.registry import open_task
from seqloom.lab.kinds.baselines.boosting import MOST_VALID, _collect, _Sizes, _to_arrays, fit_boosting
from seqloom.lab.kinds.baselines.module import BaselineModule, wrap
from seqloom.lab.kinds.baselines.naive import fit_last_value, fit_ridge, fit_seasonal
from seqloom.lab.training.scoring import score

OPTIONS = {"target": "sales", "lookback": 21, "horizon": 5}


@pytest.fixture(autouse=True)
def _one_thread():
    """Fit as a comparison's jobs do; threads that wait for each other on a busy machine take seconds."""
    with threadpool_limits(limits=1):
        yield


def shops(n=300, gaps=0.05):
    """Return two shops by day: more on Saturdays, more with a promotion, and some days without a row."""
    random = np.random.default_rng(0)
    rows = []
    for name, level in (("a", 50.0), ("b", 80.0)):
        promo = random.integers(0, 2, n)
        for i in range(n):
            sales = level + 20 * (i % 7 == 2) + 15 * promo[i] + random.normal()
            if random.random() > gaps:
                rows.append((name, str(date(2026, 1, 1) + timedelta(i)), sales, int(promo[i])))
    return pl.DataFrame(rows, schema=["shop", "day", "sales", "promo"], orient="row")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return open_task(shops(), known="promo", **OPTIONS)


@pytest.mark.parametrize("fit", [fit_ridge, fit_boosting])
def test_a_baseline_uses_what_is_known_ahead_also_with_gaps(task, fit):
    naive = score(fit_seasonal(task), task, "test").values["mae"]
    assert score(fit(task), task, "test").values["mae"] < 0.6 * naive


@pytest.mark.parametrize("fit", [fit_last_value, fit_seasonal, fit_ridge, fit_boosting])
def test_a_baseline_is_the_same_after_it_was_saved(task, fit):
    model = fit(task)
    module = model.model
    again = BaselineModule.by_name[type(module).__name__].build(module.arrays(), module.settings())
    (batch,) = task.batches("valid", batch=1000)
    assert torch.equal(model.predict(batch).values, wrap(task, again).predict(batch).values)


@pytest.mark.parametrize("fit", [fit_last_value, fit_seasonal, fit_ridge, fit_boosting])
def test_a_past_that_is_shorter_than_in_training_is_preceded_by_its_first_value(task, fit):
    model = fit(task)
    (batch,) = task.batches("valid", batch=1000)
    x, T = batch.x.clone(), batch.x.shape[1]
    x[:, : T - 4] = x[:, T - 4 : T - 3]
    short = torch.zeros_like(x)
    short[:, :4] = x[:, T - 4 :]
    one = replace(batch, x=x[:, T - 4 :], lengths=torch.full_like(batch.lengths, 4))
    padded = replace(batch, x=short, lengths=one.lengths)  # beside longer rows
    for cut in (one, padded):
        torch.testing.assert_close(model.predict(cut).values, model.predict(replace(batch, x=x)).values)


def test_stored_trees_predict_as_scikit_learn_does(task):
    from sklearn.ensemble import HistGradientBoostingRegressor

    sizes = _Sizes(task)
    X, y = _collect(task, "valid", sizes, MOST_VALID)
    trees = HistGradientBoostingRegressor(max_iter=9, max_depth=6, early_stopping=False).fit(X, y)
    module = BaselineModule.by_name["LagTrees"](**_to_arrays(trees, 9), sizes=sizes.sizes, seasons=sizes.seasons)
    np.testing.assert_allclose(module.predict_rows(torch.from_numpy(X)).numpy(), trees.predict(X), rtol=1e-9)


def test_boosting_forecasts_several_targets_without_time_stamps():
    t = np.arange(400.0)
    data = pl.DataFrame({"a": np.sin(t / 3), "b": 5 + np.cos(t / 5)})
    task = open_task(data, kind="forecast", lookback=16, horizon=4)
    boosted, last = (score(fit(task), task, "test").values["mse"] for fit in (fit_boosting, fit_last_value))
    assert boosted < 0.2 * last
