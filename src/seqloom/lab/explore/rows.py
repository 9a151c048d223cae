"""Rows of a run's data, to choose from (sorted by the model's loss) and to search for similar spans."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.registry import reopen
from seqloom.lab.data.task import Batch, Tokens
from seqloom.lab.explore.contributions import find_layer
from seqloom.lab.explore.inside import Array
from seqloom.lab.explore.subject import LabelledInput, Subject

MAX_ROWS = 300  # rows of the held-out data that are listed and searched
BATCH_ROWS = 32
MAX_ROW_STEPS = 2_000  # longer rows are cut in the search, to bound its memory
MAX_TEXT = 300  # characters of a row in a list
ACTIVE_SHARE = 0.5  # share of a unit's largest value from which the unit counts as active
MAX_MATCHES = 20


@dataclass(frozen=True, eq=False)
class HeldOutRow:
    """One row of held-out data with its prediction."""

    batch: Batch
    text: str
    truth: str
    prediction: str
    loss: float | None
    confidence: float | None


@dataclass(frozen=True)
class Match:
    """A span of a row in which the marked units are active."""

    row: int
    start: int
    end: int  # the last step
    share: float  # share of the marked units
    steps: tuple[str, ...]


def list_rows(subject: Subject, limit: int = MAX_ROWS) -> list[HeldOutRow]:
    """Return rows of the run's held-out data, with predictions.

    Raises:
        UserError: If the run does not know its data, or the data no longer exist.
    """
    if subject.run is None:
        return []
    task = reopen(subject.run.record["source"])
    held_out = [name for name in ("test", "valid", "train") if name in task.splits]
    if not held_out:
        raise UserError(f"the data of {subject.name} have no rows")
    total = task.count(held_out[0], batch=BATCH_ROWS)
    every = max(1, (total or 1) * BATCH_ROWS // limit)  # batches are sorted by length, so that all lengths occur
    rows: list[HeldOutRow] = []
    for number, batch in enumerate(task.batches(held_out[0], batch=BATCH_ROWS)):
        if len(rows) >= limit:
            break
        if number % every == 0 or total is None or total * BATCH_ROWS <= limit:
            with subject.lock:
                rows += _read_rows(subject, batch)
    return rows[:limit]


@torch.no_grad()
def _read_rows(subject: Subject, batch: Batch) -> Iterator[HeldOutRow]:
    scores = subject.model.scores(batch)[0]
    losses = subject.model.row_losses(scores, batch) / subject.model.count_targets(batch).clamp(min=1)
    prediction = subject.model.choose(scores, batch)
    predicted = subject.task.decode(prediction.values, prediction.lengths)
    p = prediction.probabilities
    confidence = p.amax(-1) if p is not None and p.ndim == 2 else None
    for i, n in enumerate(batch.lengths.tolist()):
        if n == 0:
            continue
        loss, row, text = float(losses[i]), batch.select(torch.tensor([i])).cut(n), f"{n} steps"
        if isinstance(subject.task.input, Tokens) and batch.x.ndim == 2:
            text = _shorten(join_tokens(subject, subject.label(row).steps))
        yield HeldOutRow(
            row,
            text,
            "" if batch.y is None else _shorten(subject.kind.decode_target(subject.task, batch, i)),
            _shorten(predicted[i]),
            loss if math.isfinite(loss) else None,
            None if confidence is None else float(confidence[i]),
        )


def join_tokens(subject: Subject, steps: tuple[str, ...]) -> str:
    """Return tokens as the text that a user would type."""
    unit = subject.task.input.unit if isinstance(subject.task.input, Tokens) else ""
    return ("" if unit in ("characters", "bytes", "bpe", "unigram") else " ").join(steps)


def _shorten(value: object) -> str:
    if isinstance(value, list):
        parts: list[Any] = [v for one in value[:8] for v in (one if isinstance(one, list) else [one])]
        value = " ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in parts[:24])
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def read_row_states(subject: Subject, rows: list[HeldOutRow]) -> list[Array]:
    """Return the outputs (T, H) of the layer for each row, for `find_similar`.

    Raises:
        UserError: If the model has no layer.
    """
    states = []
    for row in rows:
        with subject.lock:
            states.append(_read_states(subject, row.batch.cut(MAX_ROW_STEPS))[0])
    return states


def find_similar(
    subject: Subject,
    example: LabelledInput,
    rows: list[HeldOutRow],
    states: list[Array],
    span: tuple[int, int],
    units: tuple[int, ...] = (),
) -> tuple[list[int], list[Match]]:
    """Find spans of other rows in which the same units are active as in a span of this one.

    A unit is active in a span if, at every step, it has the same sign and at least half of its largest value in the
    example. The idea is that of LSTMVis (Strobelt et al. 2018, arXiv 1606.07461).

    Args:
        example: The input with the span.
        states: What `read_row_states` returned for these rows.
        span: The first and the last step.
        units: Units to look for; by default those that are active in the span.

    Returns:
        The units, and the matches with the largest share of active units first.

    Raises:
        UserError: If the model has no layer, or the span is outside the input.
    """
    start, end = span
    n = len(example.steps)
    if not 0 <= start <= end < n:
        raise UserError(f"the span must lie within steps 0 to {n - 1}, got {start} to {end}")
    with subject.lock:
        h = _read_states(subject, example.batch)[0]
    if h.shape[0] != n:
        raise UserError("the layer of this model reads several steps at once, so spans cannot be compared")
    marked = h[start : end + 1]
    sign, limit = np.sign(marked.mean(0)), ACTIVE_SHARE * np.abs(h).max(0)
    active = (marked * sign >= np.maximum(limit, 1e-6)).all(0)
    chosen = [u for u in units if 0 <= u < h.shape[1]] or np.flatnonzero(active).tolist()
    if not chosen:
        raise UserError("no unit is active throughout this span; mark a shorter one")
    matches = []
    for number, (row, other) in enumerate(zip(rows, states, strict=True)):
        hits = (other[:, chosen] * sign[chosen] >= limit[chosen]).mean(1)
        match = _find_best_span(hits, end - start + 1)
        is_same = torch.equal(example.batch.x, row.batch.x)
        if match is not None and not is_same:
            a, b, share = match
            steps = subject.label(row.batch.cut(MAX_ROW_STEPS)).steps if subject.has_tokens else ()
            matches.append(Match(number, a, b, share, steps))
    matches.sort(key=lambda match: -match.share)
    return chosen, matches[:MAX_MATCHES]


def _find_best_span(hits: Array, length: int) -> tuple[int, int, float] | None:
    """Return the span of a length with the largest mean of hits (T,): first step, last step, mean."""
    length = min(length, len(hits))
    if length == 0:
        return None
    sums = np.convolve(hits, np.ones(length), "valid")
    a = int(sums.argmax())
    return a, a + length - 1, float(sums[a] / length)


@torch.no_grad()
def _read_states(subject: Subject, batch: Batch) -> Array:
    """Return the outputs of the layer that reads the input (B, T, H)."""
    layer = find_layer(subject.network)
    if layer is None:
        raise UserError("this model has no layer whose units could be compared")
    kept: list[Tensor] = []
    with layer.register_forward_hook(lambda _m, _i, output: kept.append(output[0])):
        subject.compute_outputs(batch)
    return np.asarray(kept[0].float().numpy())
