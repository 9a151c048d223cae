"""Exported baselines: the same predictions as the run, on rows of the data, and a sentence for what they cannot be."""

import json
import random
from functools import cache

import numpy as np
import polars as pl
import pytest
import torch

from seqloom.core.errors import UserError
from seqloom.lab.compare.baselines.registry import fit_baseline
from seqloom.lab.data.registry import open_data, open_task
from seqloom.lab.export import targets
from seqloom.lab.export.baselines import LinearGraph, SeriesProduct, make_traceable, mix
from seqloom.lab.export.check import measure_difference
from seqloom.lab.export.export import export_run
from seqloom.lab.export.hub_folder import read_hub_folder
from seqloom.lab.export.runner.model import Model
from seqloom.lab.kinds.baselines import window
from seqloom.lab.kinds.baselines.boosting import LagTrees
from seqloom.lab.kinds.baselines.features import Ngrams
from seqloom.lab.kinds.baselines.registry import LETTERS, ROCKET, baselines
from seqloom.lab.training.predict import predict_pieces
from seqloom.lab.training.run import Run

WORDS = ["kettle", "teapot", "saucer", "spoon", "honey", "lemon", "ginger", "mint", "Ümit", "U.S."]
CLOSEST = 1e-5  # probabilities have six decimals; values are relative to their size


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("baselines")


def make_rows(kind):
    """Return rows of a kind; series take few values, so that many are exactly at a threshold."""
    chance, rows = random.Random(1), []
    for n in range(60):
        words = chance.choices(WORDS, k=chance.randint(2, 9))
        steps = [[round(chance.gauss(n % 2, 1) * 2) / 2, chance.choice([0, 1])] for _ in range(chance.randint(5, 30))]
        rows.append(
            {
                "text": {"text": " ".join(words), "label": "tea" if "mint" in words else "other"},
                "value": {"text": " ".join(words), "price": len(words) + ("honey" in words)},
                "labels": {"text": " ".join(words), "labels": sorted({w[0] for w in words} & set("kt"))},
                "pairs": {
                    "a": " ".join(words),
                    "b": " ".join(words[::-1] if n % 2 else [*words[1:], "spoon"]),
                    "same": str(n % 2),
                },
                "tags": {"tokens": words, "tags": ["B-X" if w[0] in "mUt" else "O" for w in words]},
                "series": {"s": steps, "label": "ab"[n % 2]},
                "level": {"s": [one for one, _ in steps], "level": float(np.mean(steps))},
            }[kind]
        )
    return rows


OPTIONS = {
    "text": {"kind": "classify"},
    "value": {"kind": "regress"},
    "labels": {"kind": "multilabel", "target": "labels"},
    "pairs": {"kind": "pairs", "input": "a,b", "target": "same"},
    "tags": {"kind": "tag"},
    "series": {"kind": "classify", "target": "label"},
    "level": {"kind": "regress", "target": "level"},
}
FORECAST = {"kind": "forecast", "target": "sales", "input": "sales,open", "known": "open", "horizon": 4, "lookback": 14}


@pytest.fixture(scope="module")
def open_kind(work):
    @cache
    def open_it(kind):
        if kind == "forecast":
            days = pl.date_range(pl.date(2024, 1, 1), pl.date(2024, 6, 1), eager=True)
            sales = np.arange(len(days)) % 7 * 3.0 + np.random.default_rng(0).integers(0, 4, len(days))
            is_open = [("yes", "no")[d % 7 == 6] for d in range(len(days))]
            pl.DataFrame({"day": days, "sales": sales, "open": is_open}).write_csv(work / "sales.csv")
            return open_task(str(work / "sales.csv"), **FORECAST)
        file = work / f"{kind}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in make_rows(kind)))
        return open_task(str(file), **OPTIONS[kind])

    return open_it


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*OPTIONS, "forecast"])
def test_every_baseline_is_traced_with_its_own_outputs_on_rows_of_the_data(kind, open_kind):
    task = open_kind(kind)
    for name, fit in baselines(task).items():
        model = fit(task).eval()
        graph = make_traceable(model)
        batch = next(iter(task.batches("train", batch=64)))
        with torch.no_grad():
            expected, actual = model.compute_output(batch), graph.compute_output(batch)
        if task.target.as_target == "tags":
            real = torch.arange(batch.x.shape[1]) < batch.lengths.unsqueeze(1)
            expected, actual = expected[real], actual[real]
        torch.testing.assert_close(actual, expected, atol=CLOSEST, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


FILES = {
    "text": LETTERS,
    "pairs": "overlap of the texts",
    "tags": "window + CRF",
    "series": ROCKET,
    "level": "ridge",
    "forecast": "gradient boosting on lags",
}


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [*FILES.items(), ("series", "1-NN with DTW")])
def test_the_onnx_file_of_a_baseline_and_its_runner_predict_as_it_does_on_rows_of_the_data(
    kind, name, open_kind, work, tmp_path
):
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    task = open_kind(kind)
    model = baselines(task)[name](task).eval()
    facts = targets.write_onnx(model, task, tmp_path, int8=False)
    assert facts["difference"] < CLOSEST and facts["inputs"][:2] == ["x", "lengths"]
    if kind == "forecast":
        table = pl.read_csv(work / "sales.csv")
        rows = [
            {"sales": table["sales"][n : n + 14].to_list(), "open": table["open"][n : n + 18].to_list()}
            for n in range(100)
        ]
    else:
        rows = make_rows(kind)
    expected, runner = list(predict_pieces(model, task, [rows], probabilities=True)), Model(tmp_path)
    runner.about["batch_steps"] = 100  # several batches
    for ours, theirs in zip(expected, runner.predict(rows, probabilities=True), strict=True):
        for key in ours.keys() - {"date"}:
            assert measure_difference(ours[key], theirs[key], key) < CLOSEST


def test_hashes_of_signed_integers_are_those_of_unsigned_ones():
    random_ = np.random.default_rng(0)
    a, b = (random_.integers(0, 1 << 64, 1000, dtype=np.uint64) for _ in range(2))
    hashes = mix(*(torch.from_numpy(one.astype(np.int64)) for one in (a, b))).numpy().astype(np.uint64)
    h = (a ^ (a >> np.uint64(29))) * window.MIXER + b + np.uint64(1)
    assert (hashes == (h ^ (h >> np.uint64(32))) * window.MIXER).all()


def test_features_of_standardised_series_do_not_depend_on_the_order_of_sums(work):
    """The mean of each series is 0 but for rounding, and is scaled to a deviation of 1."""
    rows = []
    for n in range(40):
        one = np.random.default_rng(n).normal(size=150) + np.sin(np.arange(150) * (0.1 + 0.1 * (n % 2)))
        rows.append({"s": ((one - one.mean()) / one.std()).tolist(), "label": "ab"[n % 2]})
    (work / "standard.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = open_task(str(work / "standard.jsonl"), kind="classify", target="label")
    model = baselines(task)["logistic regression"](task).eval()
    batch = next(iter(task.batches("train", batch=64)))
    features = model.model.features
    assert features.scale[0] < 1e-6  # of the mean
    graph = make_traceable(model)
    assert isinstance(graph.model, LinearGraph) and isinstance(graph.model.product, SeriesProduct)
    torch.testing.assert_close(graph.compute_output(batch), model.compute_output(batch), atol=1e-6, rtol=0)


def test_the_level_of_a_window_does_not_depend_on_the_rows_beside_it(open_kind):
    task = open_kind("forecast")
    model = baselines(task)["gradient boosting on lags"](task).eval()
    assert isinstance(model.model, LagTrees)
    batch = next(iter(task.batches("train", batch=64)))
    together = model.model(batch.x, batch.lengths, batch.future)
    for k in range(len(batch.x)):
        one = slice(k, k + 1)
        assert torch.equal(model.model(batch.x[one], batch.lengths[one], batch.future[one])[0], together[k])


def test_ngrams_of_a_row_do_not_depend_on_its_place_in_a_batch():
    x = np.random.default_rng(0).integers(4, 9, (12, 5))
    lengths, features = np.full(12, 5), Ngrams(9, (1, 2))
    fitted = features.fit([(x[:6], lengths[:6]), (x[6:], lengths[6:])])
    together = features(x, lengths).toarray()
    assert features.known.min() > 0 and np.allclose(fitted.toarray(), together)
    for k in range(12):
        assert np.array_equal(features(x[k : k + 1], lengths[k : k + 1]).toarray()[0], together[k])


@pytest.fixture(scope="module")
def run(open_kind, work):
    open_kind("text")  # writes the file
    _, source = open_data(str(work / "text.jsonl"), OPTIONS["text"])
    (work / "job").mkdir()
    fit_baseline(source, "TF-IDF + logistic regression", 64, str(work / "runs" / "tf-idf"), None, work / "job")
    return Run.load(work / "runs" / "tf-idf")


def test_a_baseline_in_a_folder_for_hubs_is_read_back(run, work):
    document = export_run(run, "safetensors", work / "hub")
    assert document["difference"] == 0 and document["rows"] > 9
    model, task = read_hub_folder(work / "hub")
    rows = [row["text"] for row in make_rows("text")]
    assert list(predict_pieces(model, task, [rows])) == run.predict(rows)
    card = (work / "hub" / "README.md").read_text()
    assert "Model: `TF-IDF + logistic regression`. Trained" in card and "units" not in card
    config = json.loads((work / "hub" / "config.json").read_text())
    (work / "hub" / "config.json").write_text(json.dumps(config | {"baseline": {"class": "Nothing"}}))
    with pytest.raises(UserError, match="damaged"):
        read_hub_folder(work / "hub")


def test_what_a_baseline_cannot_be_exported_to_is_a_sentence(run, work):
    with pytest.raises(UserError, match=r"writes recurrent cells, and Linear is not one; use --to onnx"):
        export_run(run, "c", work / "new")
    with pytest.raises(UserError, match=r"--int8 .* is a baseline \(TF-IDF .* export it without --int8"):
        export_run(run, "onnx", work / "new", int8=True)
    assert not (work / "new").exists()
