from types import SimpleNamespace

import numpy as np
import pytest

from seqloom.core.errors import UserError
from seqloom.lab.data.memory import MemoryTask
from seqloom.lab.kinds.objective import _find_majority, balance_classes, find_positive
from seqloom.lab.kinds.registry import KINDS
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training import fit as fitting
from seqloom.lab.training import sizes
from seqloom.lab.training.calibration import resolve_objective

CLASSIFY = KINDS["classify"]


def texts(classes):
    """A task whose rows have these classes; each third of the rows is train, valid and test."""
    rows = np.arange(len(classes))
    splits = {name: rows[rows % 3 == k] for k, name in enumerate(("train", "valid", "test"))}
    return MemoryTask("classify", [f"text {i % 7}" for i in rows], classes, splits)


RARE = texts([int(i % 60 < 3) for i in range(600)])  # 5 % are of class 1
EVEN = texts([i % 2 for i in range(60)])


def test_a_rare_class_changes_the_metric_the_weights_and_the_threshold():
    settings, note = resolve_objective(RARE, TrainSettings())
    assert (settings.metric, settings.class_weights, settings.threshold) == ("average_precision", "balanced", "f1")
    assert "95.0% of the training rows" in note and "average precision" in note
    assert "only 10 test rows are of a rare class" in note
    settings, note = resolve_objective(EVEN, TrainSettings())
    assert (settings.metric, settings.class_weights, settings.threshold) == (None, "none", None)
    assert not note


def test_a_training_says_what_a_rare_class_changed(monkeypatch, tmp_path):
    monkeypatch.setattr(fitting, "train_new", lambda *args: args)
    for task, is_noted in ((texts([int(i % 60 < 3) for i in range(600)]), True), (EVEN, False)):
        fitting.fit(task, runs=tmp_path)
        assert any("95.0% of the training rows" in note.text for note in task.notes) == is_noted
        assert all(note.text for note in task.notes)


def test_held_out_rows_of_one_class_keep_the_metric_and_are_reported():
    settings, note = resolve_objective(texts([int(i in (0, 2)) for i in range(60)]), TrainSettings())
    assert (settings.metric, settings.class_weights, settings.threshold) == (None, "none", None)
    assert "95.0% of the training rows and all validation rows" in note and "add rows of them" in note


def test_what_the_user_chose_is_kept():
    settings, _ = resolve_objective(RARE, TrainSettings(metric="Accuracy"))
    assert (settings.metric, settings.class_weights, settings.threshold) == ("accuracy", "none", None)
    settings, _ = resolve_objective(RARE, TrainSettings(class_weights="none", threshold="0.4"))
    assert (settings.metric, settings.class_weights, settings.threshold) == ("average_precision", "none", "0.4")


def test_several_classes_are_ranked_by_balanced_accuracy():
    task = texts([(i // 3) % 20 if (i // 3) % 20 < 3 else 0 for i in range(600)])
    assert CLASSIFY.choose_objective(task, None).metric.name == "balanced_accuracy"


def test_a_metric_has_several_spellings():
    assert CLASSIFY.find_metric(EVEN, "ROC AUC").name == "auroc"
    assert CLASSIFY.find_metric(EVEN, "log-loss").name == "loss"
    assert CLASSIFY.find_metric(EVEN, "balanced accuracy").name == "balanced_accuracy"


@pytest.mark.parametrize(("name", "reason"), [("rmse", "does not fit"), ("acuracy", "there is no metric 'acuracy'")])
def test_a_metric_that_does_not_fit_is_refused_with_those_that_do(name, reason):
    with pytest.raises(UserError, match=f"{reason}.*accuracy, balanced_accuracy, macro_f1, f1, auroc"):
        CLASSIFY.find_metric(EVEN, name)


def test_the_metrics_of_a_task_depend_on_its_classes():
    many = texts([i % 20 for i in range(600)])
    assert "auroc" not in CLASSIFY.list_metrics(many) and "f1" not in CLASSIFY.list_metrics(
        texts([i % 3 for i in range(60)])
    )


def test_balanced_weights_give_all_classes_the_same_total():
    common, rare = balance_classes(RARE)
    assert 190 * common == pytest.approx(10 * rare) and (190 * common + 10 * rare) / 200 == pytest.approx(1)


def test_the_positive_class_is_the_rarer_one_unless_it_is_named():
    assert RARE.target.names[find_positive(RARE, None)] == "1"
    assert RARE.target.names[find_positive(RARE, "0")] == "0"
    with pytest.raises(UserError, match="no class 'yes'; choose one of 0, 1"):
        find_positive(RARE, "yes")


def test_no_model_is_wider_than_the_widest(monkeypatch):
    monkeypatch.setattr(sizes, "measure_size", lambda *given: SimpleNamespace(core=given[-1]))
    assert sizes.fit_size(None, None, 10**9).core == 2048
    assert sizes.fit_size(None, None, 100).core == 96


def test_numbers_have_no_majority():
    assert _find_majority(SimpleNamespace(target=None)) == (None, "")


TRAITS = {
    "has_classes": {"classify", "pairs", "tag"},
    "aligns_text": {"transcribe"},
    "predicts_text": {"generate", "translate"},
    "is_per_row": {"classify", "multilabel", "pairs", "regress"},
    "reads_timespans": {"classify", "multilabel", "regress", "tag"},
    "has_values": {"forecast", "regress"},
    "writes": {"translate"},
    "continues_text": {"generate"},
    "spans_rows": {"forecast"},
    "explains_last": {"forecast", "generate"},
}


@pytest.mark.parametrize("trait", TRAITS)
def test_a_kind_has_the_traits_of_its_task(trait):
    assert {name for name, kind in KINDS.items() if getattr(kind, trait)} == TRAITS[trait]
