"""Rows and steps with any number of labels: how they are read, metrics, baselines, and trained runs on new rows."""

import json

import numpy as np
import polars as pl
import pytest
import torch
from sklearn import metrics as sk

from seqloom.core.errors import UserError
from seqloom.lab.compare.error_analysis import analyse_errors
from seqloom.lab.compare.row_scores import score_rows
from seqloom.lab.data.coders.labels import LabelSetCoder, StepSetCoder
from seqloom.lab.data.pipeline.encoding import restore_coder
from seqloom.lab.data.registry import open_task
from seqloom.lab.kinds.baselines.registry import baselines
from seqloom.lab.kinds.multilabel import ForMultilabel
from seqloom.lab.stats.metrics import compute_scores
from seqloom.lab.training.candidates import choose_for_task
from seqloom.lab.training.fit import fit
from seqloom.lab.training.output import write_results
from seqloom.lab.training.predict import predict
from seqloom.lab.training.results import evaluate
from seqloom.lab.training.run import Run

TOPICS = {"natural gas": "pipeline", "oil": "crude", "wheat": "harvest"}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))


def make_news(rows=120):
    """Return texts and their topics: each topic has one word, and the other words say nothing."""
    random = np.random.default_rng(0)
    topics = [sorted(random.choice(list(TOPICS), random.integers(0, 3), replace=False).tolist()) for _ in range(rows)]
    texts = [" ".join(random.permutation([*(TOPICS[t] for t in some), "the", "price", "rose"])) for some in topics]
    return pl.DataFrame({"text": texts, "topics": pl.Series(topics, dtype=pl.List(pl.String))})


def write_news(folder):
    file = folder / "news.jsonl"
    make_news().write_ndjson(file)
    return file


def encode(values, *more):
    coder = LabelSetCoder("c")
    coder.fit([pl.DataFrame({"c": values})])
    frame = pl.DataFrame({"c": list(more) or values}, schema_overrides={"c": pl.Series(values).dtype})
    return coder, coder.encode(frame)[0].tolist()


@pytest.mark.parametrize(
    "values",
    [
        [["b", "a"], ["a"], []],
        ["b|a", "a", ""],
        ["b; a", "a", " "],
        ["b, a", "a", ""],
        ["['b', 'a']", "['a']", "[]"],
    ],
)
def test_lists_and_texts_with_a_separator_are_sets_of_labels(values):
    coder, ids = encode(values)
    assert coder.names == ("a", "b")
    assert ids == [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert [coder.decode(row) for row in ids] == [["a", "b"], ["a"], []]


def test_labels_that_are_numbers_are_sorted_by_size_and_repeated_ones_count_once():
    coder, ids = encode([[10, 2, 2], [2]])
    assert coder.names == ("2", "10")
    assert ids == [[1, 1, 0], [1, 0, 0]]


def test_labels_that_training_lacks_are_counted():
    assert encode([["a"], ["b"]], ["a", "x", "y"], ["b"])[1] == [[1, 0, 2], [0, 1, 0]]


def test_a_saved_coder_reads_the_same_labels():
    coder, ids = encode(["b;a", "a"])
    again = restore_coder(json.loads(json.dumps(coder.state())))
    assert again.encode(pl.DataFrame({"c": ["b;a", "a"]}))[0].tolist() == ids


def test_a_list_of_names_beside_a_text_is_a_multilabel_task(tmp_path):
    task = open_task(write_news(tmp_path))
    assert task.kind == "multilabel" and task.target.names == ("natural gas", "oil", "wheat")
    batch = next(task.batches("train", batch=8))
    assert batch.y.shape == (8, 4) and batch.y.dtype == torch.int64


def test_classes_that_look_like_several_labels_are_mentioned(tmp_path):
    file = tmp_path / "news.csv"
    some = make_news().with_columns(pl.col("topics").list.join("|")).filter(pl.col("topics") != "")
    some.write_csv(file)
    notes = [note.text for note in open_task(file, near_duplicates=False).notes]
    assert any("may be several labels" in text and "kind=multilabel" in text for text in notes)
    task = open_task(file, target="topics", kind="multilabel")
    assert task.target.names == ("natural gas", "oil", "wheat")
    assert "'topics' is cut at '|' into 3 labels" in [note.text for note in task.notes]


def test_labels_that_only_the_test_rows_have_are_never_exact(tmp_path):
    news = make_news(60).with_columns(split=pl.Series(["train"] * 40 + ["valid"] * 10 + ["test"] * 10))
    is_last = pl.int_range(pl.len()) == 59
    topics = pl.when(is_last).then(pl.col("topics").list.concat(pl.lit(["gold"]))).otherwise("topics")
    news.with_columns(topics=topics).write_ndjson(tmp_path / "news.jsonl")
    task = open_task(tmp_path / "news.jsonl")
    assert any("rows of 'test' with a label that does not occur in training: 1" in note.text for note in task.notes)
    model = baselines(task)["TF-IDF + logistic regression"](task)
    columns = score_rows(model, task, "test", 4)
    assert columns["exact"].sum() == 9
    assert columns["labels_true"].sum() == columns["label_true"].sum() + 1


def test_too_many_labels_are_refused(tmp_path):
    table = pl.DataFrame({"text": [f"a b {i}" for i in range(2_500)], "tags": [[f"t{i}"] for i in range(2_500)]})
    table.write_ndjson(tmp_path / "tags.jsonl")
    with pytest.raises(UserError, match=r"'tags' has 2,\d+ different labels, and at most 2,000 are possible"):
        open_task(tmp_path / "tags.jsonl", target="tags", valid=0.05, test=0.05, near_duplicates=False)


def test_metrics_are_scikit_learns():
    random = np.random.default_rng(0)
    y, p = (random.random((50, 4)) < 0.4).astype(int), (random.random((50, 4)) < 0.5).astype(int)
    counts = {"labels_right": (y * p).sum(1), "labels_predicted": p.sum(1), "labels_true": y.sum(1)}
    values = compute_scores({"label_true": y, "label_predicted": p, "label_right": y * p, **counts}).values
    assert values["macro_f1"] == pytest.approx(sk.f1_score(y, p, average="macro"))
    assert values["micro_f1"] == pytest.approx(sk.f1_score(y, p, average="micro"))
    assert "balanced_accuracy" not in values


def test_the_loss_is_the_binary_cross_entropy_of_each_label(tmp_path):
    task = open_task(write_news(tmp_path))
    batch = next(task.batches("test", batch=12))
    scores = torch.randn(12, 3)
    model = ForMultilabel(torch.nn.Identity())
    p, y = scores.sigmoid(), batch.y[:, :-1]
    expected = -(y * p.log() + (1 - y) * (1 - p).log())
    assert torch.allclose(model.row_losses(scores, batch), expected.sum(1), atol=1e-5)
    assert model.count_targets(batch).tolist() == [3] * 12
    assert torch.equal(model.choose(scores, batch).values, (p >= 0.5).long())


def test_baselines_predict_frequent_labels_and_those_of_words(tmp_path):
    task = open_task(write_news(tmp_path))
    fits = baselines(task)
    names = ["most frequent labels", "TF-IDF + logistic regression", "TF-IDF of words and characters"]
    assert list(fits) == names
    frequent, *learned = [compute_scores(score_rows(fits[name](task), task, "test", 8)).values for name in names]
    assert 0 < frequent["macro_f1"] < 0.5
    assert [values["macro_f1"] for values in learned] == [1.0, 1.0]


def test_a_run_is_trained_evaluated_and_predicts_lists(tmp_path):
    file = write_news(tmp_path)
    settings = {"hidden": 16, "embedding": 16, "epochs": 8, "batch": 8, "lr": 0.03}
    folder = fit(file, name="run", runs=tmp_path / "runs", **settings).folder
    run = Run.load(folder)
    document = evaluate(run)
    assert {"macro_f1", "micro_f1", "exact"} <= set(document["metrics"])
    assert document["metrics"]["macro_f1"] > 0.9
    assert [row["label"] for row in document["labels"]] == ["natural gas", "oil", "wheat"]
    texts = ["crude price the harvest", "the price rose", ""]
    both, neither, empty = predict(run, texts, probabilities=True)
    assert sorted(both["prediction"]) == ["oil", "wheat"]
    assert both["probability"] == sorted(both["probability"], reverse=True)
    assert both["probability"] == [both["probabilities"][name] for name in both["prediction"]]
    assert neither["prediction"] == [] and empty["prediction"] is None
    out = tmp_path / "out.csv"
    write_results(predict(run, ["pipeline and crude"]), out, separator="|")
    assert set(out.read_text().splitlines()[1].split(",")[0].split("|")) == {"natural gas", "oil"}


def test_a_report_lists_each_label_and_the_worst_rows(tmp_path):
    task = open_task(write_news(tmp_path))
    model = baselines(task)["most frequent labels"](task)
    labels, worst = analyse_errors(model, task, score_rows(model, task, "test", 8), 8)
    assert (labels.title, [row["label"] for row in labels.rows]) == ("Labels", ["natural gas", "oil", "wheat"])
    assert all(set(row["true"].split(", ")) <= {*TOPICS, "-"} for row in worst.rows)
    task = open_task(write_rolls(tmp_path), **ROLLS)
    model = baselines(task)["labels of the input step"](task)
    worst = analyse_errors(model, task, score_rows(model, task, "test", 8), 8)[-1]
    assert set(worst.rows[0]["true"].removesuffix("...").split(" | ")) <= {"60, 64", "67", "-"}


def test_series_have_labels_too(tmp_path):
    random = np.random.default_rng(0)
    parts = [random.choice(["slow", "high"], random.integers(0, 3), replace=False).tolist() for _ in range(60)]
    series = [(3 * ("high" in some) + ("slow" in some) * np.sin(np.arange(20) / 4)).tolist() for some in parts]
    file = tmp_path / "waves.parquet"
    pl.DataFrame({"values": series, "parts": pl.Series(parts, dtype=pl.List(pl.String))}).write_parquet(file)
    task = open_task(file, target="parts", kind="multilabel")
    assert list(baselines(task)) == ["most frequent labels", "logistic regression"]
    model = baselines(task)["logistic regression"](task)
    assert compute_scores(score_rows(model, task, "test", 8)).values["macro_f1"] == 1.0


def write_rolls(folder, rows=60, **change):
    """Write rolls that repeat two pitches at once, a third one and a rest; the columns in `change` replace them."""
    random = np.random.default_rng(0)
    cycle = [[60, 64], [67], []]
    rolls = [[cycle[(start + t) % 3] for t in range(n)] for start, n in random.integers(4, 30, (rows, 2))]
    columns = {"roll": [roll[:-1] for roll in rolls], "next": [roll[1:] for roll in rolls]}
    pl.DataFrame(columns | change).write_ndjson(folder / "rolls.jsonl")
    return folder / "rolls.jsonl"


ROLLS = {"input": "roll", "target": "next", "kind": "tag", "near_duplicates": False}


def test_steps_with_lists_of_labels_are_read_as_sets(tmp_path):
    task = open_task(write_rolls(tmp_path), **ROLLS)
    assert task.kind == "multilabel" and task.target.per_step
    assert task.input.names == task.target.names == ("60", "64", "67")
    batch = next(task.batches("train", batch=4))
    n = batch.lengths
    for x, y, end in zip(batch.x, batch.y, n.tolist(), strict=True):
        assert torch.equal(x[1:end].long(), y[: end - 1, :3])  # the next step
        assert (y[end:] == -100).all() and (y[:end, 3] == 0).all()
    decoded = task.decode(batch.y.clamp(min=0), n)
    assert [len(row) for row in decoded] == n.tolist()


def test_models_do_not_look_ahead_if_the_target_is_the_next_step(tmp_path):
    task = open_task(write_rolls(tmp_path), **ROLLS)
    assert "'next' is 'roll' one step later; models that look ahead are not used" in [n.text for n in task.notes]
    assert not [c.model for c in choose_for_task(task) if c.model.startswith("bi_")]
    with pytest.raises(UserError, match=r"bi_gru looks ahead.*use gru instead"):
        choose_for_task(task, ["gru", "bi_gru"])
    with pytest.raises(UserError, match=r"bi_gru looks ahead.*use gru instead"):
        fit(task, "bi_gru", runs=tmp_path / "runs")


def test_models_may_look_ahead_if_the_target_is_of_the_same_step(tmp_path):
    rolls = [[[1, 2], [], [3]], [[3], [1], [2]], [[2, 3], [3], []]] * 10
    task = open_task(write_rolls(tmp_path, 30, roll=rolls, next=rolls), **ROLLS)
    assert not task.target.shifted
    assert [c.model for c in choose_for_task(task, ["bi_gru"])] == ["bi_gru"]


def test_padding_has_no_loss_and_no_score(tmp_path):
    task = open_task(write_rolls(tmp_path), **ROLLS)
    model = baselines(task)["most frequent labels"](task)
    together, alone = (compute_scores(score_rows(model, task, "train", size)).values for size in (48, 1))
    assert together == pytest.approx(alone)
    batch = next(task.batches("train", batch=8))
    assert model.count_targets(batch).tolist() == (3 * batch.lengths).tolist()


def test_labels_of_the_input_step_are_a_baseline_of_steps(tmp_path):
    rolls = [[[1, 2], [], [3]], [[3], [1], [2]], [[2, 3], [3], []]] * 10
    task = open_task(write_rolls(tmp_path, 30, roll=rolls, next=rolls), **ROLLS)
    assert list(baselines(task)) == ["most frequent labels", "labels of the input step"]
    model = baselines(task)["labels of the input step"](task)
    values = compute_scores(score_rows(model, task, "test", 2)).values
    assert (values["macro_f1"], values["exact"]) == (1.0, 1.0)


def test_a_run_predicts_the_labels_of_each_step(tmp_path):
    settings = {"hidden": 16, "epochs": 8, "batch": 8, "lr": 0.05}
    run = fit(write_rolls(tmp_path), name="run", runs=tmp_path / "runs", **ROLLS, **settings)
    (result,) = predict(Run.load(run.folder), [[[60, 64], [67], [], [60, 64]]])
    assert [sorted(step) for step in result["prediction"][1:]] == [[], ["60", "64"], ["67"]]
    assert [len(step) for step in result["probability"]] == [len(step) for step in result["prediction"]]


def test_steps_of_zeros_and_ones_are_refused(tmp_path):
    rolls = [[[0, 1, 1], [1, 0, 1], [k % 2, 0, 0]] for k in range(20)]
    with pytest.raises(UserError, match=r"'next' holds 0 and 1 at every step; list the labels that are there"):
        open_task(write_rolls(tmp_path, 20, next=rolls, roll=[[[k], [2], [3]] for k in range(20)]), **ROLLS)


def test_a_saved_coder_of_steps_reads_the_same_labels():
    coder = StepSetCoder("c", shifted=True)
    frame = pl.DataFrame({"c": [[[5], [7, 5]], [[], [9]]]})
    coder.fit([frame])
    again = restore_coder(json.loads(json.dumps(coder.state())))
    assert again.space == coder.space and again.space.shifted
    values, lengths = again.encode(frame)
    assert values.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]] and lengths.tolist() == [2, 2]
