"""The commands that make runs: look at data, write settings, train, list what there is."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, ArgumentCollection, Parameter
from cyclopts.config import Toml

from seqloom.cli.commands import INTERRUPTED, Json
from seqloom.cli.warning_notes import warned
from seqloom.core.errors import UserError
from seqloom.core.suggest import suggest
from seqloom.lab import console
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.training.folders import RUNS, is_first_process
from seqloom.lab.training.settings import TrainSettings

SWITCH: Any = {"negative": None, "negative_bool": "no-", "negative_iterable": "", "negative_none": ""}
WHAT = Parameter(help="A file, a folder, two parallel files as a.de,a.en, or the name of a task.")
Data = Annotated[str, WHAT]
Runs = Annotated[Path, Parameter(help="The folder where runs are kept.")]
Trust = Annotated[bool, Parameter(help="With --resume: execute the Python code stored in the folder. Read it first.")]
Options = Annotated[dict[str, int | float | str] | None, Parameter(help="Options of a task by name: --task.steps 200.")]
Read = Annotated[Reading, Parameter(name="*", group="How the data are read", **SWITCH)]


def look(data: Data, *, reading: Read = Reading(), task: Options = None, json: Json = False) -> None:
    """Say what the columns of a file are taken for, what can be learned from it, and how it is split."""
    with console.working("reading"):
        from seqloom.lab.data.look import document, facts, opened

        found = opened(data, _said(reading) | (task or {}))
    if json:
        return console.show_json(document(found))
    return print("\n".join(facts(found)))


def init(
    data: Data,
    *,
    out: Annotated[Path | None, Parameter(help="The file to write; by default the data's name and .toml.")] = None,
    settings: Annotated[TrainSettings, Parameter(name="*", group="The training", **SWITCH)] = TrainSettings(),
    reading: Read = Reading(),
    task: Options = None,
    force: Annotated[bool, Parameter(help="Write over a file that is there.")] = False,
    json: Json = False,
) -> None:
    """Look at the data and write a settings file, every setting explained; `seqloom train --config` reads it."""
    with console.working("reading"):
        from seqloom.lab.data.look import document, facts, opened
        from seqloom.lab.training.settings_template import build_template, write_template

        found = opened(data, _said(reading) | (task or {}))
    text = build_template(data, found, settings, _said(reading), task)
    place = write_template(text, out or Path(f"{found.name}.toml"), force)
    if json:
        return console.show_json(document(found) | {"settings": str(place)})
    print("\n".join(facts(found)))
    return console.note(f"\nwritten: {place}\nnext:    seqloom train --config {place}")


def _config(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Take what flags leave open from the file that --config names."""
    for argument in arguments:
        if argument.name == "--config" and argument.tokens:
            path = Path(argument.tokens[0].value)
            if not path.is_file():
                raise UserError(f"{path}: no such settings file; `seqloom init DATA` writes one")
            _check(path, [a.name.lstrip("-").replace("-", "_") for a in arguments])
            Toml(path, use_commands_as_keys=False)(app, commands, arguments)


def _check(path: Path, known: Sequence[str]) -> None:
    """A line that cannot be read, or a name that is no setting, is said with the file's name."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    for name in [name for name in given if name not in known]:
        raise UserError(f"{path}: no setting {name!r}; {suggest(name, known) or 'see train --help'}")


@warned
def train(
    data: Annotated[str | None, WHAT] = None,
    *,
    config: Annotated[Path | None, Parameter(help="A settings file, as `seqloom init` writes it; flags win.")] = None,
    name: Annotated[str | None, Parameter(help="What the run is called; by default after data and model.")] = None,
    runs: Runs = Path(RUNS),
    resume: Annotated[bool, Parameter(help="Go on with a run that was interrupted.")] = False,
    settings: Annotated[TrainSettings, Parameter(name="*", group="The training", **SWITCH)] = TrainSettings(),
    trust: Trust = False,
    reading: Read = Reading(),
    task: Options = None,
    json: Json = False,
) -> int:
    """Train a model on a file, a folder or a named task; the run can be resumed, used and looked at."""
    with console.working("loading"):
        from seqloom.lab.training.preparation import prepare_new, prepare_resume, use_command
        from seqloom.lab.training.summary import summarise_run, tabulate_results

        options = _said(reading) | (task or {})
        if resume:
            job = prepare_resume(data, name, runs, settings, options, trust)
        else:
            job = prepare_new(data, name, runs, settings, options)
    for line in job.facts if is_first_process() else ():
        console.note(line)
    try:
        run = job.run()
    except KeyboardInterrupt:
        console.note(f"interrupted; go on with: {job.resume_command}")
        return INTERRUPTED
    except (FloatingPointError, MemoryError) as error:  # the training's fault, not the command's
        console.error(str(error))
        return 1
    if not is_first_process():
        return 0
    document = summarise_run(run)
    if json:
        console.show_json(document)
    else:
        console.show_table(tabulate_results(document))
    console.note(f"\nthe run is {run.folder}; use it with: {use_command(run)}")
    return 0


def runs(folder: Runs = Path(RUNS), *, json: Json = False) -> None:
    """What was trained: model, data, how far, how good."""
    with console.working("reading"):
        from seqloom.lab.training.summary import tabulate_runs

        rows = tabulate_runs(folder)
    if json:
        return console.show_json(rows)
    if not rows:
        return console.note(f"{folder} holds no runs yet; `seqloom train DATA` makes one")
    return console.show_table(rows)


def _said(reading: Reading) -> dict[str, Any]:
    """What was given, and nothing that was not; "a,b" are two columns."""
    given = {name: getattr(reading, name) for name in reading.model_fields_set}
    columns = {name: given[name] for name in ("input", "target") if name in given}
    return given | {name: tuple(c.strip() for v in some for c in v.split(",")) for name, some in columns.items()}


train_app = App(name="train", config=(_config,), default_parameter=Parameter(negative=""))
train_app.default(train)
