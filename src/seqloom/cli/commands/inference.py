"""The commands that apply a trained run: predict, evaluate, generate, translate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from seqloom.cli.commands import SOME_FAILED, Json, print_warnings
from seqloom.core import plurals
from seqloom.lab import console
from seqloom.lab.training.folders import find_run, find_run_folder
from seqloom.lab.training.output import check_not_input, write_results

if TYPE_CHECKING:  # both need torch, which takes long to import
    from seqloom.lab.data.task import Notes
    from seqloom.lab.training.run import Run
MOST_CLASSES = 30  # rows of a table for a terminal; --json has all
Name = Annotated[str, Parameter(help="Folder of a run, or its name in runs/.")]
File = Annotated[
    str,
    Parameter(help="Input file in any format that training reads, or - for standard input.", allow_leading_hyphen=True),
]
Stdin = Annotated[
    str | None, Parameter(help="Format of standard input, such as csv. Default: one text or JSON object per line.")
]
Trust = Annotated[bool, Parameter(help="Execute the Python code stored in the run (cell.py). Read it first.")]
Threshold = Annotated[
    str | None,
    Parameter(help="Least probability to predict the positive class: 0.3, recall=0.9 or f1. Default: the run's."),
]
Out = Annotated[Path | None, Parameter(help="Output file. Default: standard output.")]


@print_warnings
def predict(
    run: Name,
    file: File = "-",
    *,
    out: Out = None,
    format: Annotated[
        Literal["jsonl", "csv"] | None,
        Parameter(help="Output format. Default: from the suffix of --out, else jsonl, or csv for forecasts."),
    ] = None,
    probabilities: Annotated[bool, Parameter(help="Also output the probability of every class.")] = False,
    threshold: Threshold = None,
    reject: Annotated[
        str | None,
        Parameter(help="Least probability to predict a class at all: 0.7, or accuracy=0.95. Default: the run's."),
    ] = None,
    keep: Annotated[str, Parameter(help="Input columns to copy into the results, separated by commas.")] = "",
    stdin: Stdin = None,
    device: Annotated[str, Parameter(help="Device: cpu, cuda or cuda:1.")] = "cpu",
    trust: Trust = False,
    json: Annotated[bool, Parameter(help="Output JSON lines.")] = False,
) -> int:
    """Write one result per input row, in input order; of a forecast, one per series and date.

    Returns:
        3 if the model computed NaN or infinity for a row, which then has an error instead of a result; otherwise 0.
    """
    check_not_input(out, file)
    find_run_folder(run)
    with console.show_status("loading"):
        from seqloom.lab.data.task import Notes
        from seqloom.lab.kinds.registry import kind_of
        from seqloom.lab.training.calibration import change_decision
        from seqloom.lab.training.predict import check_can_predict, predict_pieces

        trained_run, notes = find_run(run, trust=trust), Notes()
        check_can_predict(trained_run)
        model, pieces = trained_run.model("best", device), _rows(trained_run, file, stdin)
        change_decision(trained_run, model, threshold, reject)
    columns = [name.strip() for name in keep.split(",") if name.strip()]
    failed = 0

    def count_errors(results: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        nonlocal failed
        for result in results:
            failed += "error" in result
            yield result

    results = predict_pieces(model, trained_run.task, pieces, probabilities, columns, notes, _place(file))
    form = "jsonl" if json else format
    kind = kind_of(trained_run.task)
    if kind.spans_rows:  # a table of dates
        results = kind.lengthen_results(results, trained_run.task)
        form = form or (None if out and out.suffix else "csv")
    count = write_results(count_errors(results), out, form, kind.separator)
    _report(notes, count, out)
    return SOME_FAILED if failed else 0


def _rows(run: Run, file: str, stdin: str | None) -> Iterator[list[Any]]:
    from seqloom.lab.data.pipeline.new_rows import STDIN, iterate_rows, read_stdin_rows

    return read_stdin_rows(run.task, stdin) if file == STDIN else iterate_rows(run.task, file)


def _place(file: str) -> str:
    return "standard input: " if file == "-" else f"{file}: "


def _report(notes: Notes, count: int, out: Path | None) -> None:
    for warning in notes.warnings:
        console.note(f"warning: {warning}")
    if out is not None:
        console.note(f"{plurals.count(count, 'result')} written to {out}")


@print_warnings
def evaluate(
    run: Name,
    data: Annotated[
        str | None, Parameter(help="File that includes the target. Default: the test data of the run.")
    ] = None,
    *,
    split: Annotated[str | None, Parameter(help="Split to evaluate. Default: test.")] = None,
    threshold: Threshold = None,
    metric: Annotated[str | None, Parameter(help="Print only this metric, such as auroc. Default: all.")] = None,
    device: Annotated[str, Parameter(help="Device: cpu, cuda or cuda:1.")] = "cpu",
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Print the metrics of a run on held-out data with 95 % intervals."""
    find_run_folder(run)
    with console.show_status("loading"):
        from seqloom.lab.training.calibration import explain_run
        from seqloom.lab.training.results import evaluate as evaluate_run
        from seqloom.lab.training.results import tabulate_metrics

        trained_run = find_run(run, trust=trust)
    document = evaluate_run(trained_run, data, split, device, metric, threshold)
    for warning in document["warnings"]:
        console.note(f"warning: {warning}")
    if json:
        return console.show_json(document)
    console.show_table(tabulate_metrics(document))
    classes = document.get("classes") or document.get("labels", []) if metric is None else []
    if 0 < len(classes) <= MOST_CLASSES:
        console.show_text("")
        console.show_table(classes)
    for sentence in explain_run(trained_run) if threshold is None else ():
        console.note(console.wrap(sentence, console.text_width()))
    return console.note(
        f"\n{plurals.count(document['examples'], 'example')} of {document['data']}, split {document['split']}"
    )


@print_warnings
def generate(
    run: Name,
    *,
    prompt: Annotated[list[str] | None, Parameter(help="Beginning of the text. May be repeated.")] = None,
    temperature: Annotated[
        float, Parameter(help="Sampling temperature; below 1 gives likelier text, above 1 more varied text.")
    ] = 1.0,
    top_k: Annotated[int, Parameter(help="Sample from the k likeliest tokens only; 0 means all.")] = 0,
    top_p: Annotated[
        float, Parameter(help="Sample from the smallest set of likeliest tokens with total probability p.")
    ] = 1.0,
    length: Annotated[int, Parameter(help="Maximum number of tokens per text.")] = 200,
    count: Annotated[int, Parameter(help="Number of texts per prompt.")] = 1,
    seed: Annotated[int | None, Parameter(help="Random seed; the same seed gives the same texts.")] = None,
    trust: Trust = False,
    json: Annotated[bool, Parameter(help="Print one JSON object per line.")] = False,
) -> None:
    """Print texts sampled from a trained language model."""
    find_run_folder(run)
    with console.show_status("loading"):
        from seqloom.lab.training import predict as texts
        from seqloom.models.decoding.sampling import Sampling

        trained_run = find_run(run, trust=trust)
        sampling = Sampling(temperature, top_k, top_p, seed)
    results = texts.generate(trained_run, prompt or [""], sampling, length, count)
    if json:
        write_results(results)
        return
    for number, result in enumerate(results):
        if number and length > 40:
            print("-" * 8)
        print(result["text"], flush=True)


@print_warnings
def translate(
    run: Name,
    file: File = "-",
    *,
    beam: Annotated[int, Parameter(help="Beam width; 1 decodes greedily.")] = 5,
    length_penalty: Annotated[float, Parameter(help="Values above 0 favour longer translations.")] = 0.6,
    max_length: Annotated[int, Parameter(help="Maximum number of tokens per translation.")] = 100,
    out: Out = None,
    stdin: Stdin = None,
    trust: Trust = False,
    json: Annotated[bool, Parameter(help="Print JSON lines with source, translation and score.")] = False,
) -> None:
    """Write one translation per input line or row, in input order."""
    check_not_input(out, file)
    find_run_folder(run)
    with console.show_status("loading"):
        from seqloom.lab.training import predict as texts
        from seqloom.models.decoding.beam import Beam

        trained_run = find_run(run, trust=trust)
        search = Beam(beam, length_penalty, max_length)
        results = texts.translate(trained_run, _rows(trained_run, file, stdin), search, _place(file))
    count = write_results(results, out, "jsonl") if json else write_results(results, out, "lines")
    if out is not None:
        console.note(f"{plurals.count(count, 'translation')} written to {out}")
