"""The command that says which models to try on some data, and why."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from seqloom.cli.commands import Json
from seqloom.cli.commands.lab import Data, Options, Read, _said
from seqloom.cli.warning_notes import warned
from seqloom.core.errors import UserError
from seqloom.lab import console
from seqloom.lab.data.pipeline.reading import Reading

Seconds = Annotated[float, Parameter(help="How long to look, reading included; more makes better advice.")]


@warned
def advise(
    data: Data, *, seconds: Seconds = 22.0, reading: Read = Reading(), task: Options = None, json: Json = False
) -> None:
    """Look at data for half a minute, and say which models to try first, why, and what they would cost here."""
    begun = time.perf_counter()
    if not 4 <= seconds <= 3600:
        raise UserError(f"--seconds must lie between 4 and 3600, got {seconds:g}")
    with console.working("reading and trying"):
        from seqloom.lab.advise import advice, telling
        from seqloom.lab.advise.document import document
        from seqloom.lab.data.look import opened

        opened_task = opened(data, _said(reading) | (task or {}))
        found = advice.advise(opened_task, seconds - (time.perf_counter() - begun))
    options = _said(reading) | {f"task.{name}": value for name, value in (task or {}).items()}
    commands = telling.commands(found, data, options)
    if json:
        return console.show_json(document(found) | {"sentence": telling.sentence(found), "commands": commands})
    console.show_table(telling.known(found.facts, found.gradient_steps))
    print()
    console.show_table(telling.ranking(found))
    print("\n" + "\n".join(telling.rules(found)))
    return print(f"\n{telling.sentence(found)}\n\n" + "\n".join(commands))
