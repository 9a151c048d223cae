"""Pairs of texts: what is read, how two texts are compared, and a run through every place that uses one."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

import seqloom
from seqloom.core.errors import UserError
from seqloom.lab.data.registry import open_task
from seqloom.lab.data.task import END
from seqloom.lab.explore.explanation import explain
from seqloom.lab.explore.rows import list_rows
from seqloom.lab.explore.subject import open_subject
from seqloom.lab.export.c_target import check_streamable
from seqloom.lab.export.export import export_run
from seqloom.lab.kinds.baselines.features import Overlap
from seqloom.lab.kinds.baselines.registry import baselines, build_baseline
from seqloom.lab.kinds.pairs import PairReadout
from seqloom.lab.serve.model_version import load_version
from seqloom.lab.serve.settings import ServeSettings
from seqloom.layers.readout import Readout

ROW = {"first": "a red cat", "second": "a red cat"}


def make_pairs(n=120):
    """Return pairs of which every second one repeats the words of its first text in another order."""
    chance = np.random.default_rng(0)
    nouns, adjectives = [f"noun{i}" for i in range(8)], ["red", "old", "big"]
    rows = []
    for i in range(n):
        words = ["a", str(chance.choice(adjectives)), *map(str, chance.choice(nouns, 2, replace=False))]
        other = words[::-1] if i % 2 else ["a", str(chance.choice(adjectives)), *map(str, chance.choice(nouns, 2))]
        rows.append((" ".join(words), " ".join(other), "yes" if i % 2 else "no"))
    return pl.DataFrame(rows, schema=["first", "second", "same"], orient="row")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("pairs")
    make_pairs().write_csv(folder / "pairs.csv")
    sizes = {"hidden": 8, "embedding": 8, "steps": 2, "validate_every": 2, "device": "cpu"}
    return seqloom.train(folder / "pairs.csv", out=folder / "run", kind="pairs", **sizes)


def test_two_columns_of_text_and_a_label_are_pairs_on_request():
    task = open_task(make_pairs(), kind="pairs")
    assert (task.kind, task.target.names) == ("pairs", ("no", "yes"))
    assert [column.use for column in task.columns] == ["input", "input", "target"]
    batch = next(task.batches("train", batch=4))
    assert ((batch.x == END).sum(1) == 1).all()


def test_the_inputs_are_read_in_the_order_in_which_they_are_named():
    task = open_task(make_pairs(), kind="pairs", input="second,first", target="same")
    assert task.encoding.plan.input == ("second", "first")


def test_names_are_read_as_texts_if_they_are_the_inputs():
    names = [(f"name{i}", f"name{k}", "yes" if i == k else "no") for i in range(8) for k in range(8)]
    frame = pl.DataFrame(names, schema=["a", "b", "same"], orient="row")
    assert {column.role for column in open_task(frame, kind="pairs", input="a,b").columns} == {"label"}
    assert open_task(frame, kind="pairs", input="a,b", target="same").encoding.plan.input == ("a", "b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input": "first"}, "cannot be used to compare pairs, which needs two columns of text"),
        ({"input": "first,second,third", "target": "same"}, "cannot be used to compare pairs"),
        ({}, "more than one task is possible"),
    ],
)
def test_other_than_two_texts_are_refused(options, message):
    frame = make_pairs().with_columns(third=pl.col("first").str.to_uppercase())
    with pytest.raises(UserError, match=message):
        open_task(frame, kind="pairs", **options)


def test_pairs_are_named_among_the_possible_tasks():
    with pytest.raises(UserError, match="input=first,second target=same kind=pairs"):
        open_task(make_pairs())


@pytest.mark.parametrize("name", ["last", "mean", "max_mean"])
def test_each_text_is_summarised_by_itself(name):
    inner = Readout(name, 6)
    texts = [(3, 2), (1, 4), (0, 2), (2, 0), (0, 0)]
    y, ids = torch.randn(len(texts), 8, 6), torch.full((len(texts), 8), 7)
    for row, (a, _) in enumerate(texts):
        ids[row, a] = END
    lengths = torch.tensor([a + 1 + b for a, b in texts])
    actual = PairReadout(inner)(y, lengths, ids)
    for row, (a, b) in enumerate(texts):
        u, v = inner(y[row : row + 1], [a])[0], inner(y[row : row + 1, a + 1 :], [b])[0]
        torch.testing.assert_close(actual[row], torch.cat([u, v, (u - v).abs(), u * v]))


def test_a_row_without_a_separator_is_one_text():
    inner = Readout("mean", 3)
    y = torch.randn(1, 4, 3)
    u = inner(y, [4])[0]
    expected = torch.cat([u, torch.zeros(3), u.abs(), torch.zeros(3)])
    torch.testing.assert_close(PairReadout(inner)(y, torch.tensor([4]), torch.full((1, 4), 9))[0], expected)


def test_overlap_counts_common_tokens():
    x = np.array([[5, 6, 7, END, 6, 8, 0], [5, 6, END, 5, 6, 0, 0]])
    different, equal = Overlap()(x, np.array([6, 5]))
    np.testing.assert_allclose(different, [1 / 4, 1 / 3, 1 / 2, 0, 0, 0, 1 / 3, 0])
    np.testing.assert_allclose(equal, [1, 1, 1, 1, 1, 1, 0, 1])


def test_the_overlap_of_texts_is_a_baseline_that_can_be_stored():
    task = open_task(make_pairs(), kind="pairs")
    fits = baselines(task)
    assert list(fits) == ["majority", "overlap of the texts", "TF-IDF + logistic regression"]
    fitted = fits["overlap of the texts"](task)
    batch = next(task.batches("test", batch=12))
    assert (fitted.predict(batch).values == batch.y).float().mean() > 0.8
    again = build_baseline(
        task, {"class": type(fitted.model).__name__, "settings": fitted.model.settings()}, fitted.model.arrays()
    )
    torch.testing.assert_close(again.predict(batch).probabilities, fitted.predict(batch).probabilities)


@pytest.mark.parametrize("model", ["bi_gru", "transformer"])
def test_other_layers_compare_texts_as_well(model, tmp_path):
    sizes = {"hidden": 8, "embedding": 8, "steps": 1, "device": "cpu", "model": model}
    other = seqloom.train(make_pairs(40), out=tmp_path / "run", kind="pairs", **sizes)
    assert other.predict([ROW])[0]["prediction"] in ("yes", "no")


def test_a_padded_row_has_the_prediction_of_the_row_alone(run):
    rows = [ROW, {"first": "a", "second": "an old big noun1 noun2 red cat"}, {"first": "a red cat", "second": ""}]
    together = run.predict(rows, probabilities=True)
    alone = [run.predict([row], probabilities=True)[0] for row in rows]
    for one, other in zip(together, alone, strict=True):
        assert one["prediction"] == other["prediction"]
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


def test_a_page_explains_a_pair_and_lists_its_rows(run):
    subject = open_subject(run)
    document = explain(subject, subject.read(json.dumps(ROW))).document
    assert len(document["steps"]) == 7 and document["layers"]
    assert list_rows(subject)


def test_a_pair_is_served_and_has_no_stream(run):
    version = load_version("run", run.folder, ServeSettings())
    assert version.stepper is None
    (result,) = version.predict([ROW], False)
    assert result == run.predict([ROW])[0]


def test_a_run_is_exported_but_not_to_c(run, tmp_path):
    with pytest.raises(UserError, match="two texts are compared after the last step"):
        check_streamable(run.model(), run.task)
    export_run(run, "safetensors", tmp_path / "folder")
    card = (tmp_path / "folder" / "README.md").read_text()
    assert "Compares two texts as sequences of words; labels: no, yes." in card
    assert 'model.predict([{"first": "some text", "second": "some text"}])' in card


@pytest.mark.long
def test_an_exported_file_predicts_as_its_run(run, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    export_run(run, "onnx", tmp_path / "out")
    command = [sys.executable, tmp_path / "out" / "run.py", json.dumps(ROW)]
    actual = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert actual["prediction"] == run.predict([ROW])[0]["prediction"]


@pytest.mark.long
def test_pairs_can_be_compared(tmp_path):
    options = {"models": "gru", "seeds": 1, "steps": 2, "folds": 1, "tune": 1}
    compared = seqloom.compare(make_pairs(60), kind="pairs", out=tmp_path / "compared", **options)
    assert "overlap of the texts" in compared.table["model"].to_list()


def test_the_losses_of_classes_hold_for_pairs(run):
    model, task = run.model(), open_task(make_pairs(), kind="pairs")
    batch = next(task.batches("test", batch=4))
    scores = model.scores(batch)[0]
    expected = torch.nn.functional.cross_entropy(scores, batch.y, reduction="none")
    torch.testing.assert_close(model.eval().row_losses(scores, batch), expected)
    assert model.count_targets(replace(batch, y=torch.full_like(batch.y, -1))).sum() == 0
