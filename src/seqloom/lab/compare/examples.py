"""Where the best model goes wrong: classes that it takes for others, errors along a forecast, its worst rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch

from seqloom.lab.compare.rows import Columns
from seqloom.lab.data.task import PAD, Batch, Classes, Features, Tags, Task, Tokens, Values
from seqloom.lab.report.page import Block, Chart, Curve, Grid, Table
from seqloom.lab.stats.metrics import Array
from seqloom.lab.training.for_task import ForTask

BATCHES, SHOWN_SENTENCES = 8, 10


WORST = 10
CLASSES = 30  # a larger matrix is a list of its largest entries
SHOWN = 200  # characters of a text
POINTS = 200


def errors(model: ForTask, task: Task, columns: Columns, batch: int) -> list[Block]:
    """Blocks for a page, in the order in which a person wants them; `columns` are the model's test rows."""
    found: list[Block] = []
    if task.kind == "classify" and isinstance(task.target, Classes):
        found.append(_confusion(task.target.names, columns["y"], columns["p"]))
    elif task.kind == "tag" and isinstance(task.target, Tags):
        found.append(_confusion(task.target.names, *_tags(model, task, batch)))
    elif task.kind == "forecast":
        found.append(_along(model, task, batch))
    elif task.kind == "regress":
        found.append(_said(model, task, batch))
    elif task.kind == "translate":
        found.append(translations(model, task, batch))
    found.append(Table("The worst test rows", list(_worst(model, task, columns, batch)), "By the loss of each row."))
    return found


def _confusion(names: tuple[str, ...], y: Array, p: Array) -> Block:
    keep = y >= 0
    y, p = y[keep].astype(int), p[keep].astype(int)
    if len(names) <= CLASSES:
        counts = np.zeros((len(names), len(names)))
        np.add.at(counts, (y, p), 1)
        note = "Rows are what is true, columns what the best model says; numbers of test examples."
        return Grid("What is taken for what", list(names), list(names), counts.tolist(), note)
    wrong = Counter(zip(y[y != p].tolist(), p[y != p].tolist(), strict=True))
    rows = [{"true": names[a], "said": names[b], "test examples": n} for (a, b), n in wrong.most_common(CLASSES)]
    return Table("What is taken for what, most often", rows or [{"true": "-", "said": "-", "test examples": 0}])


@torch.no_grad()
def _tags(model: ForTask, task: Task, batch: int) -> tuple[Array, Array]:
    ys, ps = [], []
    for one in task.batches("test", batch=batch):
        assert one.y is not None
        said = model.predict(one).values
        keep = one.y >= 0
        ys.append(one.y[keep].numpy())
        ps.append(said[keep].numpy())
    return np.concatenate(ys), np.concatenate(ps)


@torch.no_grad()
def _along(model: ForTask, task: Task, batch: int) -> Block:
    """The error of each step of a forecast."""
    assert isinstance(task.target, Values)
    square = absolute = n = torch.zeros(task.target.steps, task.target.size, dtype=torch.float64)
    for one in task.batches("test", batch=batch):
        assert one.y is not None
        off = (model.predict(one).values - one.y).double()
        square, absolute = square + off.square().nansum(0), absolute + off.abs().nansum(0)
        n = n + (~off.isnan()).sum(0)
    steps = [float(s) for s in range(1, task.target.steps + 1)]
    curves = [
        Curve("mean squared error", steps, (square / n).mean(-1).tolist()),
        Curve("mean absolute error", steps, (absolute / n).mean(-1).tolist()),
    ]
    return Chart("Error along the forecast", "steps ahead", "error, in units of the training data's spread", curves)


@torch.no_grad()
def _said(model: ForTask, task: Task, batch: int) -> Block:
    """What is true, in order, and what was said of it."""
    true, said = [], []
    for one in task.batches("test", batch=batch):
        assert one.y is not None
        true += [row[0] for row in task.decode(one.y)]
        said += [row[0] for row in task.decode(model.predict(one).values)]
    order = np.argsort(np.array(true))
    some = order[np.linspace(0, len(order) - 1, min(POINTS, len(order))).astype(int)]
    x = [float(i) for i in range(len(some))]
    curves = [Curve("true", x, [float(true[i]) for i in some]), Curve("said", x, [float(said[i]) for i in some])]
    return Chart("What is true and what is said", "test rows, by their true value", task.target.names[0], curves)  # type: ignore[union-attr]


def _worst(model: ForTask, task: Task, columns: Columns, batch: int) -> Iterator[dict[str, Any]]:
    each = np.nan_to_num(columns["nats"] / np.maximum(columns["targets"], 1), nan=-1.0)
    worst = np.argsort(-each, kind="stable")[:WORST]
    place = {int(row): rank for rank, row in enumerate(worst)}
    found: dict[int, dict[str, Any]] = {}
    start = 0
    for one in task.batches("test", batch=batch):
        for k in range(len(one)):
            if start + k in place:
                row = one.part(k, len(one))
                found[place[start + k]] = _shown(model, task, row) | {"loss": round(float(each[start + k]), 4)}
        start += len(one)
    yield from (found[rank] for rank in sorted(found))


@torch.no_grad()
def _shown(model: ForTask, task: Task, row: Batch) -> dict[str, Any]:
    said = model.predict(row)
    known = {"row": int(row.rows[0]), "input": _input(task, row)}
    if task.kind == "forecast":
        return known
    assert row.y is not None
    lengths = row.y_lengths if row.y_lengths is not None else row.lengths
    true = "(not in training)" if bool((row.y < 0).all()) else _decoded(task, row.y.clamp(min=PAD), lengths)
    return known | {"true": true, "said": _decoded(task, said.values, said.lengths)}


def _decoded(task: Task, values: torch.Tensor, lengths: Any) -> str:
    plain = task.kind in ("classify", "regress")
    value = task.decode(values, None if plain else lengths)[0]
    return _cut(" ".join(map(str, value)) if isinstance(value, list) else str(value))


def _input(task: Task, row: Batch) -> str:
    """A text, or how long a series is."""
    coder = getattr(getattr(task, "saved", None), "x", None)
    if isinstance(task.input, Tokens) and coder is not None:
        return _cut(str(coder.decode(row.x[0, : int(row.lengths[0])].tolist())))
    what = f" of {task.input.size} features" if isinstance(task.input, Features) else ""
    return f"{int(row.lengths[0])} steps{what}"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


@torch.no_grad()
def translations(model: ForTask, task: Task, batch: int) -> Table:
    """Of some test rows, short and long ones: the source, what is right, what the model wrote."""
    from sacrebleu import corpus_bleu

    every = max(1, (task.count("test", batch=batch) or 1) // BATCHES)
    coder = getattr(getattr(task, "saved", None), "x", None)
    rows: list[dict[str, Any]] = []
    for one in islice(task.batches("test", batch=batch), every // 2, None, every):
        assert one.y is not None and one.y_lengths is not None
        said = model.predict(one)
        sources = [row[:n] for row, n in zip(one.x.tolist(), one.lengths.tolist(), strict=True)]
        right, wrote = task.decode(one.y, one.y_lengths - 1), task.decode(said.values, said.lengths)
        for source, true, written in zip(sources, right, wrote, strict=True):
            shown = coder.decode(source) if coder is not None else _text(source)
            rows.append({"source": shown, "right": _text(true), "written": _text(written)})
    bleu = corpus_bleu([row["written"] for row in rows], [[row["right"] for row in rows]])
    some = rows[:: max(1, len(rows) // SHOWN_SENTENCES)][:SHOWN_SENTENCES]
    return Table("What the best model writes", some, f"BLEU of {len(rows):,} test rows, greedily: {bleu.score:.1f}.")


def _text(decoded: Any) -> str:
    return decoded if isinstance(decoded, str) else " ".join(map(str, decoded))
