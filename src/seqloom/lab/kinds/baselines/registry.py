"""The baselines of a task, by name, and those that a run stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from seqloom.lab.data.coders.labels import StepSetCoder
from seqloom.lab.data.task import Labels, Task, Tokens
from seqloom.lab.kinds.baselines import boosting, counts, dtw, linear, naive, rocket, window
from seqloom.lab.kinds.baselines.features import WordsAndLetters, can_spell
from seqloom.lab.kinds.baselines.module import BaselineModule, wrap
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.registry import kind_of

Fit = Callable[..., ForTask]  # takes a task, and splits if it is in REFITTED
ROCKET, DTW = "MiniROCKET + ridge", "1-NN with DTW"
WINDOW = "window + logistic regression"
LETTERS = "TF-IDF of words and characters"
MOST_TAGS = 200  # of a CRF, whose time grows with their square


class BaselineEntry(NamedTuple):
    """A baseline: its name for texts and its name for numbers, how it is fitted, and which tasks it suits."""

    names: tuple[str, str]
    fit: Fit
    suits: Callable[[Task], bool]


def baselines(task: Task) -> dict[str, Fit]:
    """Return the baselines for a task by name, the simplest first."""
    entries = [FITS[key] for key in kind_of(task).baselines]
    return {entry.names[not _is_text(task)]: entry.fit for entry in entries if entry.suits(task)}


def _is_text(task: Task) -> bool:
    return isinstance(task.input, Tokens)


def _has_row_targets(task: Task) -> bool:
    return not (isinstance(task.target, Labels) and task.target.per_step)


def _is_plain_series(task: Task) -> bool:
    """Return whether inputs are series without attributes, which only the linear baselines read."""
    return not _is_text(task) and not task.input.attributes


def _shares_labels(task: Task) -> bool:
    """Return whether input steps are sets of labels, some of which are to be predicted."""
    is_set = not _has_row_targets(task) and task.encoding is not None and isinstance(task.encoding.x, StepSetCoder)
    return is_set and bool(set(task.encoding.x.names) & set(task.encoding.y.names))


def _describe(name: str, fit: Fit, suits: Callable[[Task], bool] = lambda _: True, numbers: str = "") -> BaselineEntry:
    return BaselineEntry((name, numbers or name), fit, suits)


def _describe_letters(fit: Fit) -> BaselineEntry:
    """Return a baseline of words whose letters are known."""
    return _describe(LETTERS, fit, lambda task: _is_text(task) and _has_row_targets(task) and can_spell(task))


FITS: dict[str, BaselineEntry] = {
    "majority": _describe("majority", counts.fit_majority),
    "logistic": _describe("TF-IDF + logistic regression", linear.fit_logistic, _has_row_targets, "logistic regression"),
    "logistic of letters": _describe_letters(linear.fit_logistic_with_letters),
    "overlap": _describe("overlap of the texts", linear.fit_overlap),
    "rocket": _describe(ROCKET, rocket.fit_rocket, _is_plain_series),
    "nearest series": _describe(DTW, dtw.fit_dtw, lambda task: _is_plain_series(task) and dtw.can_fit_dtw(task)),
    "frequent labels": _describe("most frequent labels", counts.fit_frequent_labels),
    "labels of step": _describe("labels of the input step", counts.fit_labels_of_step, _shares_labels),
    "labels": _describe("TF-IDF + logistic regression", linear.fit_labels, _has_row_targets, "logistic regression"),
    "labels of letters": _describe_letters(lambda task: linear.fit_labels(task, WordsAndLetters.of(task))),
    "mean": _describe("mean", counts.fit_mean),
    "ridge": _describe("TF-IDF + ridge", linear.fit_ridge, _has_row_targets, "ridge"),
    "ridge of letters": _describe_letters(lambda task: linear.fit_ridge(task, WordsAndLetters.of(task))),
    "tag": _describe("most frequent tag", counts.fit_unigram),
    "tag of token": _describe("most frequent tag of each token", counts.fit_bigram, _is_text),
    "window": _describe(WINDOW, window.fit_window, _is_text),
    "window with crf": _describe(
        "window + CRF", window.fit_window_crf, lambda task: _is_text(task) and task.target.size <= MOST_TAGS
    ),
    "unigram": _describe("unigram", counts.fit_unigram),
    "bigram": _describe("bigram", counts.fit_bigram, lambda task: task.target.size <= counts.LARGEST_VOCABULARY),
    "mean of past": _describe("mean of the past", naive.fit_mean_of_past),
    "last value": _describe("last value", naive.fit_last_value),
    "season": _describe("seasonal naive", naive.fit_seasonal),
    "ridge of past": _describe("ridge", naive.fit_ridge),
    "boosting": _describe("gradient boosting on lags", boosting.fit_boosting),
    "text": _describe("most frequent text", counts.fit_text),
}


def build_baseline(task: Task, description: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> ForTask:
    """Build a saved baseline again.

    Args:
        description: what `describe_baseline` returned; it can only name one of the classes of this folder.
    """
    return wrap(task, BaselineModule.by_name[description["class"]].build(arrays, description["settings"]))
