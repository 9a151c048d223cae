"""Apply a trained model to new inputs: predictions, translations and generated texts.

Inputs of any number are processed in their order, in constant memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.new_rows import iterate_rows
from seqloom.lab.data.pipeline.windows import WindowsTask, describe_short
from seqloom.lab.data.task import END, PAD, SPECIALS, START, UNKNOWN, Batch, DataSource, Notes, Task
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.forms import describe_kind
from seqloom.lab.kinds.generate import GenerateKind
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.kinds.results import Result
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.kinds.translate import TranslateKind
from seqloom.models.decoding.beam import Beam
from seqloom.models.decoding.sampling import Sampling

NOT_FINITE = "the model computes NaN or infinity for it; check its values"
BATCH_STEPS = 16_384  # time steps in a batch, padding included
MAX_TOKENS = 200  # in a generated text


class TrainedRun(Protocol):
    """The part of `run.Run` that is used here; `run.Run` offers predictions as a method."""

    @property
    def folder(self) -> Path: ...
    @property
    def record(self) -> dict[str, Any]: ...
    @property
    def settings(self) -> TrainSettings: ...
    @property
    def task(self) -> Task: ...
    def model(self, which: str = "best", device: str = "cpu") -> ForTask:
        """Return the trained model in eval mode."""


def predict(
    run: TrainedRun,
    data: DataSource | Iterable[Any],
    *,
    which: str = "best",
    device: str = "cpu",
    probabilities: bool = False,
    keep: Sequence[str] = (),
    notes: Notes | None = None,
) -> Iterator[Result]:
    """Yield a result for each input, with the "prediction" in the words and units of the data.

        classify    a class; "probability"; with `probabilities`, those of all classes by name; with a reject option,
                    None if the probability is too low ("is_unsure" is then true)
        multilabel  a list of labels, the most probable first; "probability", a list; with `probabilities`, those of
                    all labels by name. If every step has labels, lists of such lists
        tag         a list of tags; "probability", a list (not with a CRF, which scores whole sequences)
        regress     a number, or numbers by name
        forecast    a list of numbers, or lists by name, and in the same form the ends of their intervals ("lower_80" to
                    "upper_95"; None if the validation was too short); "date", a list of dates. One result per series
        translate   a text; the same for transcribe

    The prediction of an empty input is None. If the model computes NaN or infinity for an input, its result has an
    "error".

    Args:
        run: The trained run.
        data: A file in a format that training reads, a frame, or rows: inputs, or dicts of columns.
        which: The checkpoint, "best" or "last".
        device: Where the model runs.
        probabilities: Whether to return the probabilities of all classes.
        keep: Columns to copy into the results.
        notes: Collects warnings about inputs without a prediction.

    Raises:
        UserError: If the run is a language model or a row cannot be read.
    """
    check_can_predict(run)
    pieces = iterate_rows(run.task, data)
    with torch.random.fork_rng(devices=[]):  # building the model draws random weights
        model = run.model(which, device)
    prefix = f"{data}: " if isinstance(data, (str, Path)) else ""
    return predict_pieces(model, run.task, pieces, probabilities, keep, notes, prefix)


def check_can_predict(run: TrainedRun) -> None:
    """Raise a UserError if the run is a language model, which has no prediction for a row."""
    if kind_of(run.task).continues_text:
        _check_not_baseline(run, kind_of(run.task).command)  # which `seqloom generate` refuses, too
        raise UserError(f"{run.folder} is a language model, which continues a text; use `seqloom generate`")


def _check_not_baseline(run: TrainedRun, command: str) -> None:
    """Raise a UserError for a baseline from counts, which only a comparison needs."""
    kind = kind_of(run.task)
    if "baseline" in run.record and kind.command == command:
        use = "choose a trained model" if kind.continues_text else "`seqloom predict` shows its outputs"
        raise UserError(f"{run.folder} is a baseline ({run.settings.model}), which cannot {command}; {use}")


def _check_command(run: TrainedRun, command: str) -> None:
    """Raise a UserError if this command does not apply the run to new data."""
    _check_not_baseline(run, command)
    if kind_of(run.task).command != command:
        raise UserError(
            f"{run.folder} was trained to {describe_kind(run.task.kind)}, not to {command}; use `seqloom predict`"
        )


def predict_pieces(
    model: ForTask,
    task: Task,
    pieces: Iterable[list[Any]],
    probabilities: bool = False,
    keep: Sequence[str] = (),
    notes: Notes | None = None,
    prefix: str = "",
    done: int = 0,
) -> Iterator[Result]:
    """Yield the results of rows in pieces; `prefix` precedes "row 3" in messages, which count from the rows `done`."""
    empty = first_empty = failed = first_failed = unsure = 0
    short: list[int] = []  # steps of series that are shorter than a window of training
    for rows in pieces:
        if task.group and isinstance(rows[0], dict) and task.group in rows[0]:
            keep = list(dict.fromkeys([task.group, *keep]))
        if isinstance(task, WindowsTask) and notes is not None:
            task.check_new_rows(rows, notes)
            short += [n for n in map(task.count_steps, rows) if 0 < n < task.lookback]
        results = _predict_piece(model, task, rows, (prefix, done), probabilities)
        for row, result in zip(rows, results, strict=True):
            done += 1
            if "error" in result:
                failed, first_failed = failed + 1, first_failed or done
            elif result.get("is_unsure"):
                unsure += 1
            elif result["prediction"] is None:
                empty, first_empty = empty + 1, first_empty or done
            dated = {"date": dates} if isinstance(task, WindowsTask) and (dates := task.list_dates(row)) else {}
            yield _copy_columns(row, keep, f"{prefix}row {done}") | dated | result
    if unsure and notes is not None and model.decision is not None:
        notes.warn(f"unsure: {unsure:,} of {done:,} rows have a probability below {model.decision.reject:.3g}")
    if short and notes is not None:
        notes.warn(prefix + describe_short(short, done, task.lookback))
    if empty and notes is not None:
        notes.warn(f"empty inputs: {empty} of {done} (first: row {first_empty}); they have no prediction")
    if failed and notes is not None:
        notes.warn(f"rows without a result: {failed} of {done} (first: {prefix}row {first_failed}): {NOT_FINITE}")


def _copy_columns(row: object, keep: Sequence[str], where: str) -> Result:
    columns = row if isinstance(row, dict) else {}
    for name in (name for name in keep if name not in columns):
        hint = f"it has {', '.join(columns)}" if columns else "it has no columns, only the input itself"
        raise UserError(f"{where}: no column {name!r} to keep; {hint}")
    return {name: columns[name] if is_finite(columns[name]) else None for name in keep}


def _predict_piece(
    model: ForTask, task: Task, rows: list[Any], where: tuple[str, int], probabilities: bool
) -> list[Result]:
    results: list[Result] = [{} for _ in rows]
    for part, numbers in split_by_length(encode_rows(task, rows, *where)):
        reject = 0.0 if model.decision is None else model.decision.reject
        prediction = model.predict(part.to(next(model.parameters()).device))
        predicted = kind_of(task).build_results(task, prediction, probabilities, reject)
        if len(predicted) != len(numbers):
            raise UserError(f"the data give {len(predicted):,} results for {len(numbers):,} rows: restore the weights")
        for number, result in zip(numbers, predicted, strict=True):
            results[number] = result if is_finite(result) else dict.fromkeys(result) | {"error": NOT_FINITE}
    empty: Result = {"prediction": None}
    filled = next((result for result in results if result), None)
    if filled is not None:  # the same keys in all results, as a table needs them
        empty = {k: dict.fromkeys(v) if isinstance(v, dict) else None for k, v in filled.items() if k != "error"}
        empty["prediction"] = None
    return [result or dict(empty) for result in results]


def is_finite(value: object) -> bool:
    """Return whether every number in a result is finite."""
    if isinstance(value, float):
        return math.isfinite(value)
    value = list(value.values()) if isinstance(value, dict) else value
    return all(map(is_finite, value)) if isinstance(value, list) else True


def encode_rows(task: Task, rows: Sequence[Any], prefix: str = "", before: int = 0) -> Batch:
    """Encode rows as one batch; an error names the row, counting from `before`."""
    try:
        return task.encode(rows)
    except ValueError as error:
        if len(rows) == 1:
            raise UserError(f"{prefix}row {before + 1}: {str(error).removeprefix('row 1: ')}") from None
        for number, row in enumerate(rows):
            encode_rows(task, [row], prefix, before + number)
        raise  # each row alone is valid


def split_by_length(batch: Batch) -> Iterator[tuple[Batch, list[int]]]:
    """Yield batches of similar lengths with their row numbers; empty rows are left out."""
    lengths = batch.lengths.tolist()
    order = sorted((n, row) for row, n in enumerate(lengths) if n)
    while order:
        count = max(1, min(len(order), BATCH_STEPS // order[-1][0]))  # the longest first
        order, some = order[:-count], order[-count:]
        rows = [row for _, row in some]
        yield batch.select(torch.tensor(rows)).cut(some[-1][0]), rows


def translate(
    run: TrainedRun, pieces: Iterable[list[Any]], beam: Beam = Beam(), prefix: str = ""
) -> Iterator[dict[str, Any]]:
    """Translate rows by beam search.

    Args:
        run: A run that was trained to translate.
        pieces: Rows in pieces: texts, or dicts of columns.
        beam: The beam search.
        prefix: Precedes "row 3" in messages.

    Yields:
        {"source", "translation", "score"} of each row, in order; the translation of an empty row is empty.

    Raises:
        UserError: If the run was trained for something else.
    """
    _check_command(run, TranslateKind.command)
    model, task, done = run.model(), run.task, 0
    column = task.encoding.plan.input[0] if task.encoding is not None else ""
    for rows in pieces:
        translations: list[tuple[Any, float | None]] = [("", None)] * len(rows)
        with torch.no_grad():
            for part, numbers in split_by_length(encode_rows(task, rows, prefix, done)):
                beams = model.model.translate(part.x, part.lengths, beam)
                texts = task.decode(beams.tokens[:, 0], beams.lengths[:, 0])
                for number, text, score in zip(numbers, texts, beams.scores[:, 0].tolist(), strict=True):
                    translations[number] = text, score
        for row, (text, score) in zip(rows, translations, strict=True):
            source = row.get(column) if isinstance(row, dict) else row
            yield {"source": source, "translation": text, "score": score}
        done += len(rows)


@dataclass(frozen=True)
class TextSampling(Sampling):
    """Sampling without special tokens: no padding, start or unknown token; no end token if `end` is False."""

    end: bool = True

    def probabilities(self, logits: Tensor) -> Tensor:
        logits = logits.clone()
        logits[..., [PAD, UNKNOWN, START] if self.end else list(range(len(SPECIALS)))] = -torch.inf
        return super().probabilities(logits)


def generate(
    run: TrainedRun,
    prompts: Sequence[str] = ("",),
    sampling: Sampling = Sampling(),
    max_tokens: int = MAX_TOKENS,
    count: int = 1,
) -> Iterator[dict[str, Any]]:
    """Continue prompts with a language model.

    Args:
        run: A run that was trained to generate.
        prompts: The beginnings of the texts.
        sampling: How tokens are drawn.
        max_tokens: The maximum number of new tokens in a text.
        count: The number of texts for each prompt.

    Returns:
        An iterator over {"prompt", "text"} of each text, which begins with the prompt.

    Raises:
        UserError: If the run was trained for something else, or `count` is below 1.
    """
    _check_command(run, GenerateKind.command)
    if count < 1:
        raise UserError(f"count must be at least 1, got {count}")
    return continue_texts(run.model(), run.task, prompts, sampling, max_tokens, count)


def continue_texts(
    model: ForTask, task: Task, prompts: Sequence[str], sampling: Sampling, max_tokens: int, count: int
) -> Iterator[dict[str, Any]]:
    """Continue prompts with the model of a run; `generate` describes arguments and results."""
    has_ends = not task.lookback  # separate texts with a start and an end, not one long text
    words = TextSampling(sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed, end=has_ends)
    for prompt in prompts:
        start = _encode_prompt(task, prompt, has_ends).expand(count, -1)
        sampled = model.model.sample(start, words, stop=END if has_ends else None, max_length=max_tokens)
        for text in task.decode(torch.cat([start, sampled.tokens], 1), start.shape[1] + sampled.lengths):
            yield {"prompt": prompt, "text": text}


def _encode_prompt(task: Task, prompt: str, has_ends: bool) -> Tensor:
    """Return the ids (1, P) of a prompt, at least one."""
    batch = encode_rows(task, [prompt])
    ids = batch.x[:, : int(batch.lengths[0])]
    if has_ends:
        return torch.cat([torch.full((1, 1), START), ids], 1)
    if ids.shape[1]:
        return ids
    line = encode_rows(task, ["\n"])  # one long text has no start token; a new line comes closest
    is_known = int(line.lengths[0]) and int(line.x[0, 0]) != UNKNOWN
    return line.x[:, :1] if is_known else torch.full((1, 1), START)
