import numpy as np
import polars as pl
import pytest
import torch

from seqloom.core.errors import UserError
from seqloom.lab.compare.baselines.registry import fit_baseline
from seqloom.lab.compare.data import load_task
from seqloom.lab.compare.row_scores import load, score_rows
from seqloom.lab.data.registry import open_task
from seqloom.lab.kinds.baselines import dtw, rocket
from seqloom.lab.kinds.baselines.registry import DTW, ROCKET, baselines
from seqloom.lab.stats.metrics import compute_scores
from seqloom.lab.training.run import Run


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))


def write_bumps(folder, rows=90):
    """Write series of 20 to 40 noisy values; the shape of a bump at a random place is the class."""
    random = np.random.default_rng(0)
    shapes = {"up": [0, 1, 2, 3, 0], "down": [0, 3, 2, 1, 0]}
    series, labels = [], []
    for i in range(rows):
        s = 0.1 * random.normal(size=random.integers(20, 41))
        at = random.integers(len(s) - 5)
        labels.append(("up", "down")[i % 2])
        s[at : at + 5] += shapes[labels[-1]]
        series.append(s.tolist())
    pl.DataFrame({"s": series, "label": labels}).write_parquet(folder / "bumps.parquet")
    return {"data": str(folder / "bumps.parquet"), "options": {"target": "label", "test": 0.4}}


@pytest.mark.parametrize("name", [ROCKET, DTW])
def test_shapes_at_any_place_are_told_apart_and_the_saved_model_is_the_same(tmp_path, name, monkeypatch):
    monkeypatch.setattr(rocket, "FEATURES", 2_000)
    source = write_bumps(tmp_path)
    fit_baseline(source, name, 32, str(tmp_path / "run"), None, tmp_path)
    columns = load(tmp_path)
    assert compute_scores(columns).values["accuracy"] > 0.85
    again = score_rows(Run.load(tmp_path / "run").model(), load_task(source), "test", 32)
    for key, column in columns.items():
        np.testing.assert_array_equal(again[key], column)


def test_a_feature_is_the_share_of_steps_above_its_bias():
    random = np.random.default_rng(0)
    x, lengths = random.normal(size=(3, 30, 2)).astype(np.float32), np.array([30, 21, 12])
    x[np.arange(30) >= lengths[:, None]] = 0
    dilations, counts, channels, biases = kernels = rocket.fit_kernels(x, lengths, 1_000)
    biases += 1e-3  # so that no value equals its bias
    f = rocket.transform(x, lengths, kernels)
    assert f.shape == (3, len(biases)) and len(biases) == 84 * counts.sum() == 84 * (1_000 // 84)
    at = 0
    for i, (dilation, count) in enumerate(zip(dilations, counts, strict=True)):
        for k, twos in enumerate(rocket.KERNELS):
            w = np.array([2.0 if j in twos else -1.0 for j in range(9)])
            for row, n in enumerate(lengths):
                s = np.pad(x[row, :n, channels[i, k]].sum(0), 4 * dilation)
                C = np.array([w @ s[t : t + 9 * dilation : dilation] for t in range(n)])
                inside = C[4 * dilation : n - 4 * dilation]
                C = inside if (i + k) % 2 and len(inside) else C
                share = (C[:, None] > biases[at : at + count]).mean(0)
                np.testing.assert_allclose(f[row, at : at + count], share, atol=1e-6)
            at += count


def test_rows_left_out_have_the_error_of_a_fit_without_them():
    random = np.random.default_rng(0)
    for features in (4, 40):
        x, y = random.normal(size=(12, features)), random.normal(size=(12, 2))
        x -= x.mean(0)
        _, _, left_out = rocket.fit_ridge(x, y, [0.1])
        for i in range(12):
            rest = np.arange(12) != i
            a, mean, middle = x[rest], y[rest].mean(0), x[rest].mean(0)
            gram = (a - middle).T @ (a - middle) + 1.2 * np.eye(features)
            W = np.linalg.solve(gram, (a - middle).T @ (y[rest] - mean))
            np.testing.assert_allclose(left_out[i], (x[i] - middle) @ W + mean, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("window", [0, 2, 20])
@pytest.mark.parametrize("features", [1, 3])
def test_distances_match_the_recurrence(window, features):
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 9, features)), random.normal(size=(3, 12, features))
    a_lengths, b_lengths = np.array([9, 4]), np.array([12, 7, 1])
    distances = dtw.measure_distances(a.astype(np.float32), a_lengths, b.astype(np.float32), b_lengths, window)
    for i, n in enumerate(a_lengths):
        for j, m in enumerate(b_lengths):
            D = np.full((n + 1, m + 1), np.inf)
            D[0, 0] = 0
            for s in range(n):
                for t in range(m):
                    if abs(s - t) <= window + abs(n - m):
                        before = min(D[s, t + 1], D[s + 1, t], D[s, t])
                        D[s + 1, t + 1] = np.square(a[i, s] - b[j, t]).sum() + before
            np.testing.assert_allclose(distances[i, j], D[-1, -1], rtol=1e-4)


def test_endless_data_have_no_nearest_neighbours(monkeypatch):
    monkeypatch.setattr(rocket, "MOST_ROWS", 200)
    monkeypatch.setattr(rocket, "FEATURES", 1_000)
    task = open_task("adding")
    assert ROCKET in baselines(task) and not dtw.can_fit_dtw(task)
    model = rocket.fit_rocket(task)
    batch = next(iter(task.batches("test", batch=4)))
    assert torch.isfinite(model(batch)[0])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("channels", lambda t: t.unsqueeze(-1).expand(*t.shape, 2)),
        ("counts", lambda t: t.unsqueeze(-1)),
        ("counts", lambda t: t + 1),
        ("dilations", lambda t: t * 0),
        ("dilations", lambda t: t.double()),
        ("b", lambda t: t[0]),
        ("W", lambda t: t[:, 1:]),
    ],
)
def test_arrays_of_a_file_that_do_not_fit_each_other_are_refused(name, change):
    x, lengths = np.random.default_rng(0).normal(size=(6, 20, 1)).astype(np.float32), np.full(6, 20)
    arrays = dict(
        zip(
            ("dilations", "counts", "channels", "biases"),
            map(torch.from_numpy, rocket.fit_kernels(x, lengths, 168)),
            strict=True,
        )
    )
    arrays |= {"W": torch.zeros(2, len(arrays["biases"])), "b": torch.zeros(2)}
    assert rocket.Rocket(**arrays)(torch.from_numpy(x), torch.from_numpy(lengths)).shape == (6, 2)
    with pytest.raises(UserError, match="do not fit each other"):
        rocket.Rocket(**arrays | {name: change(arrays[name])})


def align(a, b, window):
    """Return the DTW distance of two series, cell by cell."""
    table = np.full((len(a) + 1, len(b) + 1), np.inf)
    table[0, 0] = 0
    for i, j in np.ndindex(len(a), len(b)):
        if abs(i - j) <= window + abs(len(a) - len(b)):
            cost = np.square(a[i] - b[j]).sum()
            table[i + 1, j + 1] = cost + min(table[i, j], table[i, j + 1], table[i + 1, j])
    return table[-1, -1]


@pytest.mark.parametrize("features", [1, 2, 3])
def test_distances_are_those_of_every_pair(features):
    draw = np.random.default_rng(0)
    a, b = draw.normal(size=(2, 5, features)), draw.normal(size=(3, 6, features))
    a_lengths, b_lengths = np.array([5, 4]), np.array([6, 5, 4])
    found = dtw.measure_distances(a, a_lengths, b, b_lengths, window=2)
    expected = [
        [align(x[:n], y[:m], 2) for y, m in zip(b, b_lengths, strict=True)] for x, n in zip(a, a_lengths, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
