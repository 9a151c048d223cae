"""`seqloom advise`: which models to try on some data, and why."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from seqloom.cli.commands import Json, print_warnings
from seqloom.cli.commands.training import Data, ReadingFlags, TaskOptions, explicit_options
from seqloom.core.errors import UserError
from seqloom.lab import console
from seqloom.lab.data.names import check_exists
from seqloom.lab.data.pipeline.reading import Reading

Seconds = Annotated[
    float, Parameter(help="Time limit in seconds, including reading the data; more time gives better advice.")
]

Models = Annotated[
    str,
    Parameter(
        help="Models to rank instead of the usual dozen, with commas between them: layers of `seqloom list layers`, or "
        "all for every one."
    ),
]


@print_warnings
def advise(
    data: Data,
    *,
    seconds: Seconds = 22.0,
    models: Models = "",
    reading: ReadingFlags = Reading(),
    task: TaskOptions = None,
    json: Json = False,
) -> None:
    """Try models on the data for half a minute and print which to train first, why, and at what cost."""
    start = time.perf_counter()
    if not 4 <= seconds <= 3600:
        raise UserError(f"--seconds must be between 4 and 3600, got {seconds:g}")
    check_exists(data)
    with console.show_status("reading and trying"):
        from seqloom.lab.advise import output
        from seqloom.lab.advise.advice import advise as find_advice
        from seqloom.lab.data.description import open_or_print_columns

        opened_task = open_or_print_columns(data, explicit_options(reading) | (task or {}))
        advice = find_advice(
            opened_task, seconds - (time.perf_counter() - start), [name for name in models.split(",") if name]
        )
    options = explicit_options(reading) | {f"task.{name}": value for name, value in (task or {}).items()}
    commands = output.build_commands(advice, data, options)
    if json:
        return console.show_json(
            output.build_document(advice) | {"sentence": output.summarise(advice), "commands": commands}
        )
    console.show_table(output.facts_table(advice.facts, advice.gradient_steps))
    print()
    console.show_table(output.ranking_table(advice))
    unknown = output.describe_unknown(advice)
    if unknown:
        console.show_text(f"\n{unknown}")
    console.show_text("\n" + "\n".join(output.describe_rules(advice)))
    return console.show_text(f"\n{output.summarise(advice)}\n\n" + "\n".join(commands))
