"""Score a model on a whole split: the sums that every row contributes to the metrics of its kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.core.cell import State
from seqloom.core.errors import UserError
from seqloom.lab.data.task import IGNORE, PAD, SPECIALS, UNKNOWN, Batch, Classes, Tags, Task, Values
from seqloom.lab.stats.forecasts import count_inside, sum_relative_errors
from seqloom.lab.stats.metrics import Array, Scores, compute_scores
from seqloom.lab.stats.ngrams import NGRAMS, count_characters
from seqloom.lab.stats.spans import count_spans
from seqloom.lab.training.for_task import ForTask, Prediction
from seqloom.lab.training.objective import MOST_RANKED_CLASSES

Columns = dict[str, Array]
UNKNOWN_IN_REFERENCE, UNKNOWN_IN_TRANSLATION = "\ue000", "\ue001"  # private characters: one word each, never equal


def score(
    model: ForTask,
    task: Task,
    split: str,
    *,
    batch: int | None = None,
    tokens: int | None = None,
    intervals: bool = False,
    full: bool = True,
    within: AbstractContextManager[Any] | None = None,
) -> Scores:
    """Compute every metric of the task's kind on a whole split.

    Args:
        model: The model.
        task: The task.
        split: The name of the split.
        batch: Examples per batch.
        tokens: Time steps per batch, instead of `batch`.
        intervals: Whether to compute 95% intervals.
        full: Whether to decode translations too, which takes longer.
        within: A context for each batch, such as autocast.
    """
    columns = score_split(model, task, split, batch=batch, tokens=tokens, full=full, within=within)
    return compute_scores(columns, intervals, overlap=task.overlap)


@torch.no_grad()
def score_split(
    model: ForTask,
    task: Task,
    split: str,
    *,
    batch: int | None = None,
    tokens: int | None = None,
    full: bool = True,
    within: AbstractContextManager[Any] | None = None,
    only: Collection[int] | None = None,
) -> Columns:
    """Return what every row of a split, or `only` some positions, contribute to the metrics; see `score`."""
    if task.splits[split].size is None:
        raise UserError(f"split {split!r} of task {task.name!r} has no end; score 'valid' or 'test'")
    device, training = next(model.parameters()).device, model.training
    rows, state = defaultdict(list), None
    model.eval()
    try:
        for one in (
            task.batches(split, batch=batch, tokens=tokens) if batch or tokens else task.batches(split, batch=64)
        ):
            if only is not None:
                one = one.select(torch.tensor([row in only for row in one.rows.tolist()]))  # noqa: PLW2901
                if not len(one):
                    continue
            with within or nullcontext():
                columns, state = _score_batch(model, task, one.to(device), state if one.carry else None, full)
            for name, column in columns.items():
                rows[name].append(column)
    finally:
        model.train(training)
    return {name: np.concatenate(parts) for name, parts in rows.items()}


def _score_batch(
    model: ForTask, task: Task, batch: Batch, state: Tensor | State | None, full: bool
) -> tuple[Columns, Tensor | State | None]:
    """Score one batch; split it in halves if it does not fit into memory."""
    try:
        scores, after = model.scores(batch, state)
        columns = _score_loss(model, scores, batch) | KINDS[task.kind](task, batch, model.choose(scores, batch))
        if full and task.kind == "translate":
            columns |= score_texts(task, batch, model.predict(batch))
        return columns, after
    except torch.OutOfMemoryError:
        if len(batch) < 2 or state is not None:
            raise
    torch.cuda.empty_cache()
    halves = [_score_batch(model, task, batch.shard(k, 2), None, full)[0] for k in range(2)]
    return {name: np.concatenate([half[name] for half in halves]) for name in halves[0]}, None


def _score_loss(model: ForTask, scores: object, batch: Batch) -> Columns:
    return {"nats": _numbers(model.row_losses(scores, batch)), "targets": _numbers(model.count_targets(batch))}


def _numbers(tensor: Tensor) -> Array:
    return tensor.double().cpu().numpy()


def _classify(task: Task, batch: Batch, prediction: Prediction) -> Columns:
    assert batch.y is not None and isinstance(task.target, Classes)
    y, p = batch.y.cpu().numpy(), prediction.values.cpu().numpy()
    has_target = y != IGNORE
    right = ((p == y) & has_target).astype(np.float64)
    columns = {"right": right, "scored": has_target.astype(np.float64), "y": y, "p": p}
    if prediction.probabilities is not None:
        chosen = prediction.probabilities.gather(-1, prediction.values.unsqueeze(-1)).squeeze(-1)
        columns["confidence"] = chosen.double().cpu().numpy()  # the probability of the predicted class
    if prediction.probabilities is None or not 2 <= task.target.size <= MOST_RANKED_CLASSES:
        return columns
    q = prediction.probabilities.float().cpu().numpy()
    if task.target.size > 2:
        return columns | {"q": q}
    k = prediction.positive
    return columns | {"q": q[:, k], "is_positive": (y == k).astype(np.float64), "says_positive": (p == k) * 1.0}


def _multilabel(task: Task, batch: Batch, prediction: Prediction) -> Columns:
    """Return how often each label is true, predicted and right in each row (B, K), and counts over all labels.

    The number of true labels includes those that training lacks. A step, or a row without steps, is exact if all of
    its labels are right.
    """
    assert batch.y is not None
    y, p = batch.y.cpu().numpy(), prediction.values.cpu().numpy()
    y, p = (v if v.ndim == 3 else v[:, None] for v in (y, p))  # (B, T, K + 1) and (B, T, K)
    known = y[..., -1] >= 0
    y, p = y * known[..., None], p * known[..., None]
    true, exact = y[..., :-1], ((y[..., :-1] == p).all(2) & (y[..., -1] == 0) & known).sum(1)
    by_label = {"label_true": true.sum(1), "label_predicted": p.sum(1), "label_right": (true * p).sum(1)}
    counts = {"labels_right": by_label["label_right"].sum(1), "labels_predicted": by_label["label_predicted"].sum(1)}
    counts |= {"labels_true": y.sum((1, 2)), "exact": exact, "rows": known.sum(1)}
    return by_label | {name: column.astype(np.float64) for name, column in counts.items()}


def _tag(task: Task, batch: Batch, prediction: Prediction) -> Columns:
    assert batch.y is not None and isinstance(task.target, Tags)
    names = task.target.names
    y, p = batch.y.cpu().numpy(), prediction.values.cpu().numpy()
    has_target = y != IGNORE
    scored = has_target & ~np.isin(y, [names.index(tag) for tag in task.target.unscored if tag in names])
    columns = {"right": ((p == y) & scored).sum(1).astype(np.float64), "scored": scored.sum(1).astype(np.float64)}
    if any(name.startswith("B-") for name in names):
        named = [*names, "B-<unseen>"]  # index -1 is UNSEEN: a span that no model can predict
        each = [
            count_spans([named[k] for k in row_y[keep]], [named[k] for k in row_p[keep]])
            for row_y, row_p, keep in zip(y, p, has_target, strict=True)
        ]
        columns |= dict(
            zip(("spans_right", "spans_predicted", "spans_true"), np.array(each, dtype=np.float64).T, strict=True)
        )
    return columns


def _regress(task: Task, batch: Batch, prediction: Prediction) -> Columns:
    """Return errors in the units of the data."""
    assert batch.y is not None
    y, p = (np.array(task.decode(v), dtype=np.float64).reshape(len(batch), -1) for v in (batch.y, prediction.values))
    return _errors(p - y)


def _forecast(task: Task, batch: Batch, prediction: Prediction) -> Columns:
    """Return errors in the units of a single target, or in standard deviations of several ones."""
    assert batch.y is not None and isinstance(task.target, Values)
    y, p = (np.array(task.decode(v), dtype=np.float64) for v in (batch.y, prediction.values))  # (B, S, K)
    off = (prediction.values - batch.y).double().cpu().numpy()
    columns = _errors((p - y if task.target.size == 1 else off).reshape(len(batch), -1))
    columns["relative"] = sum_relative_errors(y, p)
    if batch.series is not None:
        series = batch.series.cpu().numpy()
        columns["of_series"] = series
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = _mean(np.abs(off), 1) / task.units[series]  # (B, K)
        known = np.isfinite(scaled)
        columns |= {"scaled": np.where(known, scaled, 0).sum(1), "series": known.sum(1).astype(np.float64)}
    if prediction.bounds is not None:
        bounds = {k: (_numbers(low), _numbers(high)) for k, (low, high) in prediction.bounds.items()}
        columns |= count_inside(_numbers(batch.y), bounds)
    return columns


def _mean(values: Array, axis: int) -> Array:
    known = ~np.isnan(values)
    return np.where(known, values, 0).sum(axis) / known.sum(axis)


def _errors(off: Array) -> Columns:
    known = ~np.isnan(off)
    off = np.where(known, off, 0)
    return {"square": (off**2).sum(1), "absolute": np.abs(off).sum(1), "values": known.sum(1).astype(np.float64)}


def _language(task: Task, batch: Batch, prediction: Prediction) -> Columns:
    assert batch.y is not None
    has_target = batch.y >= 0 if task.kind == "generate" else batch.y != PAD
    right = (prediction.values == batch.y) & has_target
    return {"right": _numbers(right.sum(1)), "scored": _numbers(has_target.sum(1)), "language": np.ones(len(batch))}


def score_texts(task: Task, batch: Batch, prediction: Prediction) -> Columns:
    """Compare decoded translations with the references of a batch; an unknown word is never right."""
    from sacrebleu.metrics.bleu import BLEU

    assert batch.y is not None and batch.y_lengths is not None
    texts = task.decode(batch.y, batch.y_lengths - 1)  # without END
    bleu = BLEU(effective_order=True, force=True)
    stats, exact, chrf, edits = [], [], [], []
    for reference, written in zip(texts, task.decode(prediction.values, prediction.lengths), strict=True):
        true, output = _mark_unknown(reference, UNKNOWN_IN_REFERENCE), _mark_unknown(written, UNKNOWN_IN_TRANSLATION)
        exact.append(float(true == output))
        one = bleu.sentence_score(output, [true])
        counts = [*one.counts, *[0] * (NGRAMS - len(one.counts)), *one.totals, *[0] * (NGRAMS - len(one.totals))]
        stats.append([one.sys_len, one.ref_len, *counts])
        chrf.append(count_characters(true, output))
        edits.append(_count_edits(true, output))
    columns = {"exact": np.array(exact), "rows": np.ones(len(batch))}
    columns |= {"bleu": np.array(stats, dtype=np.float64), "chrf": np.array(chrf, dtype=np.float64)}
    return columns | _name_edits(edits)


def _transcribe(task: Task, batch: Batch, prediction: Prediction) -> Columns:
    assert batch.y is not None
    true = [_text(t) for t in task.decode(batch.y, batch.y_lengths)]
    predicted = [_text(p) for p in task.decode(prediction.values, prediction.lengths)]
    pairs = list(zip(true, predicted, strict=True))
    exact = np.array([float(t == p) for t, p in pairs])
    return {"exact": exact, "rows": np.ones(len(batch))} | _name_edits([_count_edits(t, p) for t, p in pairs])


def _count_edits(true: str, predicted: str) -> list[int]:
    """Return the edits and the length of the true text, in characters and in words."""
    from jiwer import process_characters, process_words

    row: list[int] = []
    for one in (process_characters(true, predicted), process_words(true, predicted)):
        row += [one.substitutions + one.deletions + one.insertions, one.hits + one.substitutions + one.deletions]
    return row


def _name_edits(rows: list[list[int]]) -> Columns:
    names = ("letter_edits", "letters", "word_edits", "words")
    return dict(zip(names, np.array(rows, dtype=np.float64).T, strict=True))


def _mark_unknown(decoded: str | Iterable[object], mark: str) -> str:
    return _text(decoded).replace(SPECIALS[UNKNOWN], mark)


def _text(decoded: str | Iterable[object]) -> str:
    return decoded if isinstance(decoded, str) else " ".join(map(str, decoded))


KINDS = {
    "classify": _classify,
    "multilabel": _multilabel,
    "regress": _regress,
    "tag": _tag,
    "generate": _language,
    "translate": _language,
    "forecast": _forecast,
    "transcribe": _transcribe,
}
