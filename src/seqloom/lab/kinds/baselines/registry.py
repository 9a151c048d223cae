"""The baselines of a task, by name, and those that a run stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from seqloom.lab.data.coders.step_sets import StepSetCoder
from seqloom.lab.data.task import Labels, Task, Tokens
from seqloom.lab.kinds.baselines import boosting, counts, dtw, letters, linear, naive, overlap, rocket, window
from seqloom.lab.kinds.baselines.module import BaselineModule, wrap
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.registry import kind_of

Fit = Callable[..., ForTask]  # takes a task, and splits if it is in REFITTED
ROCKET, DTW = "MiniROCKET + ridge", "1-NN with DTW"
WINDOW = "window + logistic regression"
MOST_TAGS = 200  # of a CRF, whose time grows with their square


def baselines(task: Task) -> dict[str, Fit]:
    """Return the baselines for a task by name, the simplest first."""
    entries = [FITS[key](task) for key in kind_of(task).baselines]
    return {entry[0]: entry[1] for entry in entries if entry is not None}


Entry = tuple[str, Fit] | None  # the name of a baseline, None if it does not fit the task


def _plain(name: str, fit: Fit) -> Callable[[Task], Entry]:
    return lambda _: (name, fit)


def _of_row(text: str, numbers: str, fit: Fit) -> Callable[[Task], Entry]:
    """Return a baseline of whole rows; labels of every step have none."""

    def find(task: Task) -> Entry:
        return None if _has_step_labels(task) else (text if _is_text(task) else numbers, fit)

    return find


def _of_letters(name: str, fit: Fit) -> Callable[[Task], Entry]:
    def find(task: Task) -> Entry:
        is_spelled = _is_text(task) and not _has_step_labels(task) and letters.can_spell(task)
        return (name, fit) if is_spelled else None

    return find


def _of_series(name: str, fit: Fit, fits: Callable[[Task], bool] = lambda _: True) -> Callable[[Task], Entry]:
    """Return a baseline of series without attributes, which only the linear baselines read."""

    def find(task: Task) -> Entry:
        is_series = not _is_text(task) and not task.input.attributes
        return (name, fit) if is_series and fits(task) else None

    return find


def _of_tokens(name: str, fit: Fit) -> Callable[[Task], Entry]:
    return lambda task: (name, fit) if _is_text(task) else None


def _find_window_crf(task: Task) -> Entry:
    return ("window + CRF", window.fit_window_crf) if _is_text(task) and task.target.size <= MOST_TAGS else None


def _find_bigram(task: Task) -> Entry:
    return ("bigram", counts.fit_bigram) if counts.can_fit_bigram(task) else None


def _find_labels_of_step(task: Task) -> Entry:
    """Return a baseline for input steps that are sets of labels, some of which are to be predicted."""
    is_set = _has_step_labels(task) and task.encoding is not None and isinstance(task.encoding.x, StepSetCoder)
    if not (is_set and set(task.encoding.x.names) & set(task.encoding.y.names)):
        return None
    return "labels of the input step", counts.fit_labels_of_step


def _is_text(task: Task) -> bool:
    return isinstance(task.input, Tokens)


def _has_step_labels(task: Task) -> bool:
    return isinstance(task.target, Labels) and task.target.per_step


FITS: dict[str, Callable[[Task], Entry]] = {
    "majority": _plain("majority", counts.fit_majority),
    "logistic": _of_row("TF-IDF + logistic regression", "logistic regression", linear.fit_logistic),
    "logistic of letters": _of_letters("TF-IDF of words and characters", linear.fit_logistic_with_letters),
    "overlap": _plain("overlap of the texts", overlap.fit_overlap),
    "rocket": _of_series(ROCKET, rocket.fit_rocket),
    "nearest series": _of_series(DTW, dtw.fit_dtw, dtw.can_fit_dtw),
    "frequent labels": _plain("most frequent labels", counts.fit_frequent_labels),
    "labels of step": _find_labels_of_step,
    "labels": _of_row("TF-IDF + logistic regression", "logistic regression", linear.fit_labels),
    "labels of letters": _of_letters("TF-IDF of words and characters", linear.fit_labels_with_letters),
    "mean": _plain("mean", counts.fit_mean),
    "ridge": _of_row("TF-IDF + ridge", "ridge", linear.fit_ridge),
    "ridge of letters": _of_letters("TF-IDF of words and characters", linear.fit_ridge_with_letters),
    "tag": _plain("most frequent tag", counts.fit_tag),
    "tag of token": _of_tokens("most frequent tag of each token", counts.fit_tag_of_token),
    "window": _of_tokens(WINDOW, window.fit_window),
    "window with crf": _find_window_crf,
    "unigram": _plain("unigram", counts.fit_unigram),
    "bigram": _find_bigram,
    "mean of past": _plain("mean of the past", naive.fit_mean_of_past),
    "last value": _plain("last value", naive.fit_last_value),
    "season": _plain("seasonal naive", naive.fit_seasonal),
    "ridge of past": _plain("ridge", naive.fit_ridge),
    "boosting": _plain("gradient boosting on lags", boosting.fit_boosting),
    "text": _plain("most frequent text", counts.fit_text),
}


def build_baseline(task: Task, description: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> ForTask:
    """Build a saved baseline again.

    Args:
        task: the task of its run.
        description: what `describe_baseline` returned; it can only name one of the classes of this folder.
        arrays: what was fitted.
    """
    return wrap(task, BaselineModule.by_name[description["class"]].build(arrays, description["settings"]))
