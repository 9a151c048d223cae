"""The commands that use a trained run: predict, evaluate, generate, translate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from seqloom.cli.commands import SOME_FAILED, Json
from seqloom.cli.warning_notes import warned
from seqloom.lab import console
from seqloom.lab.training.output import check_not_input, write_results

Name = Annotated[str, Parameter(help="The folder of a run, or its name in runs/.")]
File = Annotated[
    str, Parameter(help="A file of a format that training reads, or - for standard input.", allow_leading_hyphen=True)
]
Stdin = Annotated[
    str | None, Parameter(help="The format of standard input, such as csv; by default a text or JSON a line.")
]
Trust = Annotated[bool, Parameter(help="Execute the Python code stored in the run (cell.py). Read it first.")]
Out = Annotated[Path | None, Parameter(help="A file in place of standard output.")]


@warned
def predict(
    run: Name,
    file: File = "-",
    *,
    out: Out = None,
    format: Annotated[
        Literal["jsonl", "csv"] | None, Parameter(help="Of the results; by default as --out ends, else jsonl.")
    ] = None,
    probabilities: Annotated[bool, Parameter(help="Those of all classes, too.")] = False,
    keep: Annotated[str, Parameter(help="Columns of the file to copy into the results, separated by commas.")] = "",
    stdin: Stdin = None,
    device: Annotated[str, Parameter(help="cpu, cuda or cuda:1.")] = "cpu",
    trust: Trust = False,
    json: Annotated[bool, Parameter(help="Results as JSON lines, as they are by default.")] = False,
) -> int:
    """Apply a trained model to new rows; one result for each, in their order.

    If the model computes NaN or infinity for a row, that row has an error in place of a result, and the exit code is 3.
    """
    check_not_input(out, file)
    with console.working("loading"):
        from seqloom.lab.data.task import Notes
        from seqloom.lab.training.folders import find_run
        from seqloom.lab.training.predict import check_can_predict, predict_pieces

        found, notes = find_run(run, trust=trust), Notes()
        check_can_predict(found)
        model, pieces = found.model("best", device), _rows(found, file, stdin)
    columns = [name.strip() for name in keep.split(",") if name.strip()]
    failed = 0

    def counted(results: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        nonlocal failed
        for result in results:
            failed += "error" in result
            yield result

    results = predict_pieces(model, found.task, pieces, probabilities, columns, notes, _place(file))
    count = write_results(counted(results), out, "jsonl" if json else format)
    _told(notes, count, out)
    return SOME_FAILED if failed else 0


def _rows(run: Any, file: str, stdin: str | None) -> Any:
    from seqloom.lab.data.pipeline.new_rows import STDIN, given_rows, stdin_rows

    return stdin_rows(run.task, stdin) if file == STDIN else given_rows(run.task, file)


def _place(file: str) -> str:
    return "standard input: " if file == "-" else f"{file}: "


def _told(notes: Any, count: int, out: Path | None) -> None:
    for warning in notes.warnings:
        console.note(f"warning: {warning}")
    if out is not None:
        console.note(f"{count:,} results in {out}")


@warned
def evaluate(
    run: Name,
    data: Annotated[str | None, Parameter(help="A file with the target in it; by default the test data.")] = None,
    *,
    split: Annotated[str | None, Parameter(help="Which split; by default test.")] = None,
    device: Annotated[str, Parameter(help="cpu, cuda or cuda:1.")] = "cpu",
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Measure a trained model on data it has not seen, with intervals."""
    with console.working("loading"):
        from seqloom.lab.training.evaluate import evaluate as measured
        from seqloom.lab.training.evaluate import tabulate_metrics
        from seqloom.lab.training.folders import find_run

        found = find_run(run, trust=trust)
    document = measured(found, data, split, device)
    for warning in document["warnings"]:
        console.note(f"warning: {warning}")
    if json:
        return console.show_json(document)
    console.show_table(tabulate_metrics(document))
    return console.note(f"\n{document['examples']:,} examples of {document['data']}, split {document['split']}")


@warned
def generate(
    run: Name,
    *,
    prompt: Annotated[list[str] | None, Parameter(help="How the text begins; may be given several times.")] = None,
    temperature: Annotated[float, Parameter(help="Below 1 sharper, above 1 wilder.")] = 1.0,
    top_k: Annotated[int, Parameter(help="Draw from the k likeliest tokens alone; 0 for all.")] = 0,
    top_p: Annotated[float, Parameter(help="Draw from the likeliest tokens that reach p together.")] = 1.0,
    length: Annotated[int, Parameter(help="The most tokens of a text.")] = 200,
    count: Annotated[int, Parameter(help="Texts for each prompt.")] = 1,
    seed: Annotated[int | None, Parameter(help="The same seed draws the same texts.")] = None,
    trust: Trust = False,
    json: Annotated[bool, Parameter(help="Print a JSON object a line.")] = False,
) -> None:
    """Texts from a language model that was trained on texts."""
    with console.working("loading"):
        from seqloom.lab.training import generate as texts
        from seqloom.lab.training.folders import find_run
        from seqloom.models.decoding.sampling import Sampling

        found = find_run(run, trust=trust)
        sampling = Sampling(temperature, top_k, top_p, seed)
    results = texts.generate(found, prompt or [""], sampling, length, count)
    if json:
        write_results(results)
        return
    for number, result in enumerate(results):
        if number and length > 40:
            print("-" * 8)
        print(result["text"], flush=True)


@warned
def translate(
    run: Name,
    file: File = "-",
    *,
    beam: Annotated[int, Parameter(help="Translations that are followed at once; 1 takes the likeliest word.")] = 5,
    length_penalty: Annotated[float, Parameter(help="Above 0 favours longer ones.")] = 0.6,
    max_length: Annotated[int, Parameter(help="The most tokens of a translation.")] = 100,
    out: Out = None,
    stdin: Stdin = None,
    trust: Trust = False,
    json: Annotated[bool, Parameter(help="JSON lines with source, translation and score.")] = False,
) -> None:
    """Translate lines or rows; one line for each, in their order."""
    check_not_input(out, file)
    with console.working("loading"):
        from seqloom.lab.training import translate as texts
        from seqloom.lab.training.folders import find_run
        from seqloom.models.decoding.beam import Beam

        found = find_run(run, trust=trust)
        search = Beam(beam, length_penalty, max_length)
        results = texts.translate(found, _rows(found, file, stdin), search, _place(file))
    count = write_results(results, out, "jsonl") if json else write_results(results, out, "lines")
    if out is not None:
        console.note(f"{count:,} translations in {out}")
