"""Runs with a threshold or a reject option: they store it, and predictions follow it."""

import polars as pl
import pytest

import seqloom
from seqloom.core.errors import UserError
from seqloom.lab.data.task import Notes
from seqloom.lab.kinds import decision as decisions
from seqloom.lab.training.calibration import change_decision
from seqloom.lab.training.results import evaluate


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))


def mails(n=400, rare=4):
    """Mails of which 1 in `rare` is spam; half of the spam has a telling word."""
    spam = [i % rare == 0 for i in range(n)]
    texts = [f"{'win' if s and i % 8 < 4 else 'meet'} w{i % 13} w{i % 17}" for i, s in enumerate(spam)]
    return pl.DataFrame({"text": texts, "label": ["spam" if s else "ham" for s in spam]})


SMALL = {"hidden": 8, "embedding": 8, "epochs": 3, "near_duplicates": False}


def test_a_run_stores_its_threshold_and_predicts_with_it():
    run = seqloom.train(mails(), target="label", threshold="recall=0.9", out="runs/a", **SMALL)
    decision = decisions.load(run.folder)
    assert decision.positive == run.task.target.names.index("spam") and decision.facts["recall"] >= 0.9
    results = run.predict(["win w1 w2", "meet w1 w2"] * 5, probabilities=True)
    for result in results:
        is_spam = result["probabilities"]["spam"] >= decision.threshold
        assert result["prediction"] == ("spam" if is_spam else "ham")
        assert result["probability"] == result["probabilities"][result["prediction"]]


def test_an_unsure_prediction_is_empty_and_counted():
    run = seqloom.train(mails(), target="label", reject="0.999", out="runs/b", **SMALL)
    notes = Notes()
    results = run.predict(["win w1 w2", "", "meet w1 w2"], notes=notes)
    assert [result["prediction"] for result in results] == [None] * 3
    assert [result["is_unsure"] for result in results] == [True, None, True]
    assert any("unsure: 2 of 3 rows have a probability below 0.999" in text for text in notes.warnings)


def test_settings_that_do_not_fit_are_refused_before_training():
    with pytest.raises(UserError, match="contradict"):
        seqloom.train(mails(), target="label", threshold="0.5", reject="0.7", **SMALL)
    three = mails().with_columns(pl.Series("label", ["a", "b", "c", "c"] * 100))
    with pytest.raises(UserError, match=r"threshold=recall=0.9 is for two classes; this task has 3"):
        seqloom.train(three, target="label", threshold="recall=0.9", **SMALL)


def test_the_chosen_metric_selects_the_weights():
    run = seqloom.train(mails(), target="label", metric="AUROC", out="runs/c", **SMALL)
    lines = [line for line in run.metrics() if line["split"] == "valid"]
    best = run.checkpoint("best").facts["step"]
    assert run.settings.metric == "auroc"
    assert best == max(lines, key=lambda line: (line["auroc"], -line["loss"]))["step"]


def test_a_run_can_be_used_with_another_threshold(tmp_path):
    mails().write_csv("mails.csv")
    run = seqloom.train("mails.csv", target="label", out="runs/d", **SMALL)
    model = run.model()
    change_decision(run, model, "0.25", None)
    assert model.decision.threshold == 0.25
    change_decision(run, model, "recall=0.9", None)
    assert model.decision.facts["recall"] >= 0.9
    change_decision(run, model, None, "0.8")
    assert model.decision.threshold is None and model.decision.reject == 0.8
    everything = evaluate(run, threshold="0")
    assert next(row for row in everything["classes"] if row["class"] == "spam")["recall"] == 1.0
    with pytest.raises(UserError, match=r"threshold=0.5 and reject=0.5 contradict each other"):
        change_decision(run, model, "0.5", "0.5")
