"""A trained model on new inputs: any number of them, in their order, in constant memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.new_rows import given_rows
from seqloom.lab.data.task import Batch, Classes, Notes, Tags, Task, Values
from seqloom.lab.training.for_task import ForTask, Prediction
from seqloom.lab.training.run import Run

NOT_FINITE = "the model computes NaN or infinity for it; look at its values"
TOKENS = 16_384  # time steps of a batch, padding included

Result = dict[str, Any]


def predict(
    run: Run,
    given: Any,
    *,
    which: str = "best",
    device: str = "cpu",
    probabilities: bool = False,
    keep: Sequence[str] = (),
    notes: Notes | None = None,
) -> Iterator[Result]:
    """A result for each input: "prediction", in the words and units of the data, and what belongs to it.

        classify    a class; "probability"; with `probabilities`, those of all classes by name
        tag         a list of tags; "probability", a list (not of a CRF, which scores whole chains)
        regress     a number, or numbers by name
        forecast    a list of numbers, or lists by name; of a table of several series, one for each, after its name
        translate   a text; so does transcribe

    `given` is a file of a format that training reads, a frame, or rows: inputs, or dicts of columns. An empty
    input has no prediction: it is None, and `notes` counts them. Nor has an input for which the model computes
    NaN or infinity: its "error" says so. Columns in `keep` are copied.
    """
    check_can_predict(run)
    pieces = given_rows(run.task, given)
    with torch.random.fork_rng(devices=[]):  # a model is made with fresh weights, before it gets its own
        model = run.model(which, device)
    return predict_pieces(model, run.task, pieces, probabilities, keep, notes, row_prefix(given))


def row_prefix(given: Any) -> str:
    """What stands before "row 3" in an error."""
    return f"{given}: " if isinstance(given, (str, Path)) else ""


def check_can_predict(run: Run) -> None:
    """A language model has nothing to say about a row."""
    if run.task.kind == "generate":
        raise UserError(f"{run.folder} is a language model: it goes on from a text; use `seqloom generate`")


def predict_pieces(
    model: ForTask,
    task: Task,
    pieces: Iterable[list[Any]],
    probabilities: bool = False,
    keep: Sequence[str] = (),
    notes: Notes | None = None,
    place: str = "",
) -> Iterator[Result]:
    """The results of rows that come some at a time."""
    done = empty = first = wrong = first_wrong = 0
    group = getattr(task, "group", None)
    for rows in pieces:
        if group and isinstance(rows[0], dict) and group in rows[0]:
            keep = list(dict.fromkeys([group, *keep]))
        results = _piece(model, task, rows, (place, done), probabilities)
        for row, result in zip(rows, results, strict=True):
            done += 1
            if "error" in result:
                wrong, first_wrong = wrong + 1, first_wrong or done
            elif result["prediction"] is None:
                empty, first = empty + 1, first or done
            yield _kept(row, keep, f"{place}row {done}") | result
    if empty and notes is not None:
        notes.warn(f"{empty} of {done} inputs are empty (first: row {first}); they have no prediction")
    if wrong and notes is not None:
        notes.warn(f"{wrong} of {done} rows have no result (first: {place}row {first_wrong}): {NOT_FINITE}")


def _kept(row: Any, keep: Sequence[str], where: str) -> Result:
    there = row if isinstance(row, dict) else {}
    for name in keep:
        if name not in there:
            told = f"it has {', '.join(there)}" if there else "it has no columns, for it is the input itself"
            raise UserError(f"{where}: no column {name!r} to keep; {told}")
    return {name: there[name] if _finite(there[name]) else None for name in keep}


def _piece(model: ForTask, task: Task, rows: list[Any], where: tuple[str, int], probabilities: bool) -> list[Result]:
    batch = encode_rows(task, rows, *where)
    results: list[Result] = [{} for _ in rows]
    device = next(model.parameters()).device
    for part, at in split_by_length(batch):
        found = model.predict(part.to(device))
        for row, result in zip(at, _results(task, found, probabilities), strict=True):
            results[row] = result if _finite(result) else _failed(result)
    nothing: Result = {"prediction": None}
    filled = next((result for result in results if result), None)
    if filled is not None:  # the same keys for all, as a table wants them
        nothing = {k: dict.fromkeys(v) if isinstance(v, dict) else None for k, v in filled.items() if k != "error"}
        nothing["prediction"] = None
    return [result or dict(nothing) for result in results]


def _finite(value: Any) -> bool:
    """Return whether every number in a result is one."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    return all(map(_finite, value)) if isinstance(value, list) else True


def _failed(result: Result) -> Result:
    return dict.fromkeys(result) | {"error": NOT_FINITE}


def encode_rows(task: Task, rows: Sequence[Any], place: str = "", before: int = 0) -> Batch:
    """The rows as one batch; what is wrong with one of them is said with its place and number."""
    try:
        return task.encode(rows)
    except ValueError as wrong:
        if len(rows) == 1:
            raise UserError(f"{place}row {before + 1}: {str(wrong).removeprefix('row 1: ')}") from None
        for number, row in enumerate(rows):
            encode_rows(task, [row], place, before + number)
        raise  # together they are wrong, and each alone is not


def split_by_length(batch: Batch) -> Iterator[tuple[Batch, list[int]]]:
    """Batches of like lengths with the rows that are in them; empty rows are in none."""
    lengths = batch.lengths.tolist()
    order = sorted((n, row) for row, n in enumerate(lengths) if n)
    while order:
        count = max(1, min(len(order), TOKENS // order[-1][0]))  # the longest first
        order, some = order[:-count], order[-count:]
        rows = torch.tensor([row for _, row in some])
        longest = some[-1][0]
        spans = None if batch.timespans is None else batch.timespans[rows, :longest]
        yield Batch(batch.x[rows, :longest], batch.lengths[rows], batch.rows[rows], timespans=spans), rows.tolist()


def _results(task: Task, found: Prediction, probabilities: bool) -> list[Result]:
    values = task.decode(found.values, found.lengths)
    if isinstance(task.target, Values):
        return [{"prediction": _numbers(task.target, value)} for value in values]
    if found.probabilities is None:
        return [{"prediction": value} for value in values]
    best = found.probabilities.max(-1).values.cpu()
    if isinstance(task.target, Tags):
        ends = found.lengths.tolist() if found.lengths is not None else [None] * len(values)
        each: list[Any] = [round_probabilities(row[:end]) for row, end in zip(best, ends, strict=True)]
    else:
        each = round_probabilities(best)
    results = [{"prediction": value, "probability": p} for value, p in zip(values, each, strict=True)]
    if probabilities and isinstance(task.target, Classes):
        for result, row in zip(results, round_probabilities(found.probabilities.cpu()), strict=True):
            result["probabilities"] = dict(zip(task.target.names, row, strict=True))
    return results


def _numbers(target: Values, value: list[Any]) -> Any:
    """One number or one list where there is one target, else by name."""
    by_name = list(map(list, zip(*value, strict=True))) if value and isinstance(value[0], list) else value
    return by_name[0] if target.size == 1 else dict(zip(target.names, by_name, strict=True))


def round_probabilities(p: Tensor) -> Any:
    """Probabilities as Python numbers, no longer than they are exact."""
    return torch.round(p.double(), decimals=6).tolist()
