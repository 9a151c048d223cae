"""The commands of `seqloom`, one short function each. torch is loaded by those that need it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, NoReturn

from cyclopts import App, CycloptsError, Parameter
from pydantic import ValidationError

from seqloom import __version__
from seqloom.cli.commands import INTERRUPTED, Json
from seqloom.cli.commands.study import study
from seqloom.core.errors import UserError
from seqloom.lab import console
from seqloom.lab.bench.settings import BenchSettings

NO_MEMORY = "OutOfMemoryError"  # torch's, which is not loaded here
app = App(
    name="seqloom",
    version=__version__,
    help="Sequence models from recurrence to attention: what there is, what works here, what is better.",
    default_parameter=Parameter(negative=""),
)
listing = App(name="list", help="Show what there is: cells, layers, kernels.")
app.command(listing)
app.command(study)
# Loaded when they are called: their settings need torch.
app.command(
    "seqloom.cli.commands.lab:look", name="look", help="Say what a file's columns are and what can be learned from it."
)
app.command(
    "seqloom.cli.commands.lab:init",
    name="init",
    help="Look at data and write a settings file, every setting explained.",
)
app.command(
    "seqloom.cli.commands.lab:train_app", name="train", help="Train a model on a file, a folder or a named task."
)
app.command("seqloom.cli.commands.lab:runs", name="runs", help="What was trained: model, data, how far, how good.")
app.command("seqloom.cli.commands.advise:advise", name="advise", help="Say which models to try on data, and why.")
app.command(
    "seqloom.cli.commands.compare:compare", name="compare", help="Baselines and models side by side: which one to use."
)
app.command("seqloom.cli.commands.use:predict", name="predict", help="Apply a trained model to new rows.")
app.command(
    "seqloom.cli.commands.use:evaluate", name="evaluate", help="Measure a trained model on data it has not seen."
)
app.command("seqloom.cli.commands.use:generate", name="generate", help="Write texts with a trained language model.")
app.command(
    "seqloom.cli.commands.use:translate", name="translate", help="Translate lines or rows with a trained model."
)
app.command(
    "seqloom.cli.commands.results:results", name="results", help="What all stored studies found, as one document."
)


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; a mistake in it is one line on stderr, and exit code 2.

    SEQLOOM_TRACEBACK=1 in the environment shows where the mistake was found.
    """
    try:
        words = sys.argv[1:] if words is None else words
        code = app(words, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (CycloptsError, UserError, ValidationError, OSError) as error:
        if os.environ.get("SEQLOOM_TRACEBACK"):
            raise
        console.error(_plain(error))
        code = 2
    except Exception as error:
        if os.environ.get("SEQLOOM_TRACEBACK") or type(error).__name__ != NO_MEMORY:
            console.error("a fault in seqloom, not in the command; please report it with the traceback below")
            raise
        said = ". ".join(str(error).split(". ")[:2])
        console.error(f"{said}; end what else runs on the GPU, or ask for less at once")
        code = 2
    sys.exit(code)


def _plain(error: Exception) -> str:
    """The message; of a settings record that does not hold, which flags and why."""
    from seqloom.lab.files.sealed import DamagedError
    from seqloom.lab.flags import flags

    cause = error if isinstance(error, ValidationError) else error.__cause__
    if isinstance(error, OSError) and error.strerror and not error.filename2:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if not isinstance(cause, ValidationError) or isinstance(error, DamagedError):
        return flags(str(error))
    wrong = [(e["loc"], e["msg"].removeprefix("Value error, "), e["input"]) for e in cause.errors()]
    told = {at: reason if ", got " in reason else f"{reason}, got {value!r}" for at, reason, value in wrong}
    return "; ".join(f"--{at[0]}: {told[at]}" if at else reason for at, reason, _ in wrong)


@listing.command
def cells(*, input: int = 64, hidden: int = 128, json: Json = False) -> None:
    """Every cell with its cost, for one layer with INPUT features and HIDDEN units."""
    with console.working("counting"):
        import seqloom.cells  # noqa: F401  (fills the registry)
        from seqloom.core.cell import Cell
        from seqloom.kernels.registry import list_kernels
        from seqloom.tools.measure import cost

        kinds = [kind for _, kind in sorted(Cell.registry.items())]
        rows = [cost(kind, input, hidden).as_dict() for kind in kinds]
        for row, kind in zip(rows, kinds, strict=True):
            row |= {"description": _first_line(kind), "kernels": [k.name for k in list_kernels(kind.name)]}
    if json:
        return console.show_json(rows)
    console.show_table([{"cell": row["cell"], "description": row["description"]} for row in rows])
    print(f"\nOne layer with {input} inputs (d) and {hidden} units (h):\n")
    return console.show_table(
        [
            {
                "cell": row["cell"],
                "parameters": row["parameters"],
                "formula": row["formula"] or None,
                "flops/token": row["flops_per_token"],
                "bytes/token": row["activation_bytes_per_token"],
                "kernels": ", ".join(name.rpartition("_")[2] for name in row["kernels"]),
            }
            for row in rows
        ]
    )


@listing.command
def layers(*, json: Json = False) -> None:
    """Every layer by name, as `seqloom.layers.registry.make` takes it, and the form of it that also looks ahead."""
    with console.working("reading"):
        from seqloom.layers import registry

        names = registry.list_names()
        both = {name: registry.BI_PREFIX + name if registry.BI_PREFIX + name in names else None for name in names}
        rows = [
            {"layer": name, "both ways": both[name], "description": registry.describe(name)}
            for name in names
            if not name.startswith(registry.BI_PREFIX)
        ]
    console.show_json(rows) if json else console.show_table(rows)


@listing.command
def kernels(*, json: Json = False) -> None:
    """The faster ways to run a cell over time, fastest first; `seqloom doctor` says which run here."""
    with console.working("reading"):
        from seqloom.kernels.registry import KERNELS

        rows = [{"kernel": k.name, "cell": k.cell, "backend": k.backend, "description": k.description} for k in KERNELS]
    if json:
        return console.show_json(rows)
    return console.show_table([{"kernel": row["kernel"], "description": row["description"]} for row in rows])


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().partition("\n")[0]


@app.command
def doctor(*, json: Json = False) -> int:
    """What this machine has, which kernels run on it, and whether they are right."""
    with console.working("testing every kernel"):
        from seqloom.tools import doctor as here

        versions, hardware, engine, verdicts = here.versions(), here.hardware(), here.engine(), here.run_self_tests()
    failed = any(verdict.failed for verdict in verdicts)
    if json:
        tests = [asdict(verdict) for verdict in verdicts]
        console.show_json(
            {"versions": versions, "hardware": hardware, "engine": engine, "kernels": tests, "ok": not failed}
        )
        return int(failed)
    gpus = [f"{g['name']}, {g['memory_gib']} GiB, capability {g['capability']}" for g in hardware["gpus"]]
    built = engine["problem"] or f"{engine['library']}, compiled by {engine['compiler']}"
    facts = versions | hardware | {"gpus": "; ".join(gpus) or "none", "cpu engine": built}
    console.show_table([{"what": what.replace("_", " "), "here": str(value)} for what, value in facts.items()])
    print()
    rows = [
        {"kernel": v.kernel, "device": v.device, "self-test": v.self_test, "runs": v.why_not or "yes"} for v in verdicts
    ]
    console.show_table(rows)
    return int(failed)


@app.command
def bench(*, settings: Annotated[BenchSettings, Parameter(name="*")] = BenchSettings(), json: Json = False) -> int:
    """Time layers beside torch.nn's, forward and forward+backward.

    A kernel is checked against the reference loop first; one that fails is not timed, and the command ends with 1.
    """
    with console.working("loading"):
        from seqloom.lab.bench import race, shown
        from seqloom.lab.cell_names import check_kernels, find_cells

        check_kernels(settings.kernels)
        kinds = find_cells(settings.cells)
    found: list[race.Row] = []
    finished = False
    try:
        with console.progress(len(race.grid(settings))) as (before, after):
            for row in race.rows(settings, kinds, before):
                found.append(row)
                after(str(row))
        finished = True
    except KeyboardInterrupt:
        console.note("interrupted: this is what was finished")
    if settings.plot and any(row.us_per_step for row in found):
        with console.working("drawing"):
            from seqloom.lab.report.pictures import speed

            speed(found, settings.plot)
        console.note(f"drawn in {settings.plot}")
    if json:
        console.show_json(shown.document(settings, found, finished))
    else:
        console.show_table(shown.table(settings, found))
        print(f"\n{shown.caption(settings)}")
    if not finished:
        return INTERRUPTED
    return int(any(row.reason.startswith(race.RED) for row in found))
