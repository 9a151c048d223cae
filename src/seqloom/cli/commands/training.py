"""The commands for training: inspect data, write a settings file, train, list runs."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, ArgumentCollection, Parameter
from cyclopts.config import Toml

from seqloom.cli.commands import DEFAULTS, HIDDEN, INTERRUPTED, Json, print_warnings
from seqloom.core.errors import UserError
from seqloom.core.suggest import suggest
from seqloom.lab import console
from seqloom.lab.data.names import check_exists
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.layout import RUNS

SWITCH: Any = {"negative": None, "negative_bool": "no-", "negative_iterable": "", "negative_none": ""}
DATA = Parameter(help="A file, a folder, two parallel files (a.de,a.en) or the name of a built-in task.")
Data = Annotated[str, DATA]
Runs = Annotated[Path, Parameter(help="Folder that contains the runs.")]
Trust = Annotated[bool, Parameter(help="With --resume: execute the Python code stored in the folder. Read it first.")]
TaskOptions = Annotated[
    dict[str, int | float | str] | None, Parameter(help="Options of a built-in task, such as --task.steps 200.")
]
ReadingFlags = Annotated[Reading, Parameter(name="*", group="Reading the data", **SWITCH)]


def look(data: Data, *, reading: ReadingFlags = Reading(), task: TaskOptions = None, json: Json = False) -> None:
    """Show how the columns of a file are interpreted, which task they allow, and how the rows are split."""
    check_exists(data)
    with console.show_status("reading"):
        from seqloom.lab.data.description import describe_task, make_document, open_or_print_columns

        opened_task = open_or_print_columns(data, explicit_options(reading) | (task or {}))
    if json:
        return console.show_json(make_document(opened_task))
    return print("\n".join(describe_task(opened_task, console.text_width())))


def init(
    data: Data,
    *,
    out: Annotated[Path | None, Parameter(help="File to write. Default: the name of the data with .toml.")] = None,
    settings: Annotated[TrainSettings, Parameter(name="*", group="Training", **SWITCH)] = TrainSettings(),
    reading: ReadingFlags = Reading(),
    task: TaskOptions = None,
    force: Annotated[bool, Parameter(help="Overwrite an existing file.")] = False,
    json: Json = False,
) -> None:
    """Inspect the data and write a commented settings file for `seqloom train --config`."""
    check_exists(data)
    with console.show_status("reading"):
        from seqloom.lab.data.description import describe_task, make_document, open_or_print_columns
        from seqloom.lab.training.settings_template import build_template, write_template

        opened_task = open_or_print_columns(data, explicit_options(reading) | (task or {}))
    text = build_template(data, opened_task, settings, explicit_options(reading), task)
    place = write_template(text, out or Path(f"{opened_task.name}.toml"), force)
    if json:
        return console.show_json(make_document(opened_task) | {"settings": str(place)})
    print("\n".join(describe_task(opened_task, console.text_width())))
    return console.note(f"\nwritten: {place}\nnext:    seqloom train --config {place}")


def _config(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill in settings from the --config file; flags on the command line take precedence."""
    for argument in arguments:
        if argument.name == "--config" and argument.tokens:
            path = Path(argument.tokens[0].value)
            if not path.is_file():
                raise UserError(f"{path}: no such settings file; `seqloom init DATA` writes one")
            _check_settings_file(path, [a.name.lstrip("-").replace("-", "_") for a in arguments])
            Toml(path, use_commands_as_keys=False)(app, commands, arguments)


def _check_settings_file(path: Path, known: Sequence[str]) -> None:
    """Raise a UserError that names the file if it cannot be parsed or has an unknown setting."""
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    for name in [name for name in settings if name not in known]:
        raise UserError(f"{path}: no setting {name!r}; {suggest(name, known) or 'see seqloom train --help'}")


@print_warnings
def train(
    data: Annotated[str | None, DATA] = None,
    *,
    config: Annotated[
        Path | None, Parameter(help="Settings file, as written by `seqloom init`. Flags take precedence over it.")
    ] = None,
    out: Annotated[
        Path | None, Parameter(help=f"Folder of the run, such as {RUNS}/reviews. Default: {RUNS}/DATA-MODEL.")
    ] = None,
    name: Annotated[str | None, HIDDEN] = None,
    runs: Annotated[Path, HIDDEN] = Path(RUNS),
    resume: Annotated[bool, Parameter(help="Continue a run that was interrupted.")] = False,
    settings: Annotated[TrainSettings, Parameter(name="*", group="Training", **SWITCH)] = TrainSettings(),
    trust: Trust = False,
    reading: ReadingFlags = Reading(),
    task: TaskOptions = None,
    json: Json = False,
) -> int:
    """Train a model on a file, a folder or a built-in task, and store it as a run."""
    if data is not None:
        check_exists(data)
    if out is not None and (name is not None or runs != Path(RUNS)):
        raise UserError(f"--out {out} names the whole folder of the run; leave out --name and --runs")
    if name is not None:
        out = runs / name
    with console.show_status("loading"):
        from seqloom.lab.training.calibration import explain_run
        from seqloom.lab.training.fit import prepare_new, prepare_resume, use_command
        from seqloom.lab.training.folders import is_first_process
        from seqloom.lab.training.results import summarise_run, tabulate_results

        options = explicit_options(reading) | (task or {})
        if resume:
            job = prepare_resume(data, out, runs, settings, options, trust)
        else:
            job = prepare_new(data, out, runs, settings, options)
    for line in job.facts if is_first_process() else ():
        console.note(line)
    try:
        run = job.run()
    except KeyboardInterrupt:
        console.note(f"interrupted; continue with: {job.resume_command}")
        return INTERRUPTED
    except (FloatingPointError, MemoryError) as error:  # the training diverged or ran out of memory
        console.report_error(str(error))
        return 1
    if not is_first_process():
        return 0
    document = summarise_run(run)
    if json:
        console.show_json(document)
    else:
        console.show_table(tabulate_results(document))
    if document["skipped_steps"]:
        skipped, steps = document["skipped_steps"], document["steps"]
        console.note(f"steps skipped because their gradient was not finite: {skipped:,} of {steps:,}")
    for sentence in explain_run(run):
        console.note(console.wrap(sentence, console.text_width()))
    console.note(f"\nrun: {run.folder}\nuse: {use_command(run)}")
    return 0


def runs(folder: Runs = Path(RUNS), *, json: Json = False) -> None:
    """List the runs of a folder with model, data, progress and score."""
    with console.show_status("reading"):
        from seqloom.lab.training.results import FINISHED, tabulate_runs

        rows = tabulate_runs(folder)
    if json:
        return console.show_json(rows)
    if not rows:
        return console.note(f"{folder} contains no runs yet; `seqloom train DATA` creates one")
    short = [
        row | {"state": FINISHED if str(row["state"]).startswith(f"{FINISHED} (") else row["state"]} for row in rows
    ]
    return console.show_table(short, optional=("epochs", "kind", "data", "steps", "model", "metric"))


def explicit_options(reading: Reading) -> dict[str, Any]:
    """Return the options that were set on the command line, with "a,b" split into two columns."""
    options = {name: getattr(reading, name) for name in reading.model_fields_set}
    columns = {name: options[name] for name in ("input", "target", "known") if name in options}
    return options | {name: tuple(c.strip() for v in some for c in v.split(",")) for name, some in columns.items()}


train_app = App(name="train", config=(_config,), default_parameter=DEFAULTS)
train_app.default(train)
