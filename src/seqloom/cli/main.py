"""The entry point of `seqloom`. Commands that need torch are imported when they are called."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, NoReturn

from cyclopts import App, CycloptsError, Parameter
from pydantic import ValidationError

from seqloom import __version__
from seqloom.cli.commands import DEFAULTS, INTERRUPTED, Json
from seqloom.cli.commands.study import study
from seqloom.core.errors import ChoiceError, UserError
from seqloom.core.plurals import count
from seqloom.lab import console
from seqloom.lab.bench.settings import BenchSettings

OUT_OF_MEMORY = "OutOfMemoryError"  # the name of torch's exception; torch is not imported here
# Commands whose settings need torch, with their help, which would otherwise have to import them.
LAZY_COMMANDS = {
    "look": ("training:look", "Show what a file contains and which task it allows."),
    "init": ("training:init", "Look at data and write a commented settings file for `seqloom train --config`."),
    "train": (
        "training:train_app",
        """Train a model on a file, a folder or a built-in task.

        The run is stored in OUT and can be resumed with --resume, also after Ctrl-C.""",
    ),
    "runs": ("training:runs", "List trained models with data, progress and score."),
    "advise": (
        "advise:advise",
        """Recommend models for your data, with reasons and costs.

        Tries small models for about 20 seconds; `seqloom compare` trains them in full.""",
    ),
    "compare": (
        "compare:compare",
        """Train baselines and models on your data and rank them.

        All models get about the same number of parameters and the same time. Learning rates are tuned; the best
        models are trained longer and with several seeds. Validation rows choose the models; test rows are used once,
        at the end. Without DATA, compares on handwritten digits. Ctrl-C prints the leaderboard so far; --resume
        continues.""",
    ),
    "predict": (
        "inference:predict",
        """Apply a trained model to new rows.

        Writes one result per row, in input order; of a forecast, one per series and date, with intervals. If the model
        computes NaN or infinity for a row, that row has an error instead of a result and the exit code is 3.""",
    ),
    "evaluate": ("inference:evaluate", "Measure a trained model on held-out data, with 95 % intervals."),
    "generate": ("inference:generate", "Generate text with a trained language model."),
    "translate": ("inference:translate", "Translate lines or rows with a trained model, one line of output for each."),
    "serve": (
        "serving:serve",
        """Serve trained runs over HTTP: predictions, streams with kept state, and texts.

        Listens on this machine only, unless --host says otherwise; that needs a bearer token. The address shows a page
        to try it; /openapi.json describes the routes. A new checkpoint is loaded while requests go on. SIGTERM
        finishes the requests that were taken. Needs: pip install 'seqloom[serve]'.""",
    ),
    "explore": (
        "explore:explore",
        """Show in a browser what trained models do with an input, and why.

        Predictions as the sequence grows, contributions of each step, states, gates, attention and gradient flow; hold
        a gate and see the prediction move. Runs on this machine only; --out page.html writes one file that needs no
        server.""",
    ),
    "export": (
        "export:export",
        """Write a trained model as files that predict without seqloom.

        Before it says done, the command compares the files with the run on rows of three lengths.""",
    ),
    "results": ("study:results", "Combine all stored studies into one Markdown document."),
}
app = App(
    name="seqloom",
    version=__version__,
    help="Train, compare and time sequence models, from recurrent networks to attention.",
    default_parameter=DEFAULTS,
)
listing = App(name="list", help="List the available cells, layers or kernels.")
app.command(listing)
app.command(study)
for _name, (_place, _help) in LAZY_COMMANDS.items():
    app.command(f"seqloom.cli.commands.{_place}", name=_name, help=_help)


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its code.

    A user's mistake is one line on stderr and exit code 2; the environment variable SEQLOOM_TRACEBACK=1 shows the
    traceback instead.
    """
    try:
        words = sys.argv[1:] if words is None else words
        code = app(words, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `| head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (CycloptsError, UserError, ValidationError, OSError) as error:
        if os.environ.get("SEQLOOM_TRACEBACK"):
            raise
        console.report_error(_format_error(error))
        for command in _list_commands(error, words or ()):
            console.note(command)
        code = 2
    except Exception as error:
        if os.environ.get("SEQLOOM_TRACEBACK") or type(error).__name__ != OUT_OF_MEMORY:
            console.report_error("internal error; please report it with the traceback below")
            raise
        summary = ". ".join(str(error).split(". ")[:2])
        console.report_error(f"{summary}; stop other programs on the GPU or use a smaller batch or model")
        code = 2
    sys.exit(code)


def _list_commands(error: Exception, words: Sequence[str]) -> list[str]:
    """Complete the user's command with each choice that the error lists; return these commands."""
    if not isinstance(error, ChoiceError):
        return []
    commands, flags = [], {word.partition("=")[0] for word in words}
    for choice in error.choices:
        missing = {f"--{name}": value for name, value in choice.items() if f"--{name}" not in flags}
        commands.append(shlex.join(["seqloom", *words, *(word for pair in missing.items() for word in pair)]))
    return commands


def _format_error(error: Exception) -> str:
    """Return the message of an error; for invalid settings, each flag and what is wrong with it."""
    from seqloom.lab.files.scratch import find_final_name
    from seqloom.lab.files.sealed import DamagedError

    cause = error if isinstance(error, ValidationError) else error.__cause__
    if isinstance(error, OSError) and error.strerror and not error.filename2:
        if isinstance(error.filename, str) and (final := find_final_name(error.filename)):
            return f"{final} cannot be written: {error.strerror}"
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if not isinstance(cause, ValidationError) or isinstance(error, DamagedError):
        return console.write_as_flags(str(error))
    messages = []
    for item in cause.errors():
        reason = console.describe_invalid(f"--{item['loc'][0]}" if item["loc"] else "", item["msg"])
        messages.append(reason if not item["loc"] or ", got " in reason else f"{reason}, got {item['input']!r}")
    return "; ".join(messages)


@listing.command
def cells(
    *,
    input: Annotated[int, Parameter(help="Input features (d) of the layer to measure.")] = 64,
    hidden: Annotated[int, Parameter(help="Units (h) of the layer to measure.")] = 128,
    json: Json = False,
) -> None:
    """List every cell by idea, with its year, its parameters and its cost per time step."""
    with console.show_status("counting"):
        import seqloom.cells  # noqa: F401  (fills the registry)
        from seqloom.cells.ideas import IDEAS
        from seqloom.core.cell import Cell
        from seqloom.kernels.registry import list_kernels
        from seqloom.lab.bench.cell_times import read_cell_times
        from seqloom.tools.measure import cost

        times = read_cell_times()
        kinds = [kind for _, kind in sorted(Cell.registry.items())]
        rows = [cost(kind, input, hidden).as_dict() for kind in kinds]
        for row, kind in zip(rows, kinds, strict=True):
            row |= {"description": _first_line(kind), "kernels": [k.name for k in list_kernels(kind.name)]}
            row |= {"year": kind.year or None, "idea": kind.idea or None, "parent": kind.parent or None}
            row["us_per_step"] = times.us_per_step.get(kind.name)
    if json:
        return console.show_json(rows)
    groups = {idea: [row for row in rows if row["idea"] == idea] for idea in (*IDEAS, None)}
    for idea, group in groups.items():
        group.sort(key=lambda row: (row["year"] or 0, row["cell"]))
        if group:
            console.show_text(f"{idea}: {IDEAS[idea]}\n" if idea else "other cells\n")
            console.show_table(
                [
                    {"cell": row["cell"], "year": str(row["year"] or ""), "description": row["description"]}
                    for row in group
                ]
            )
            print()
    console.show_text(
        f"{count(len(rows), 'cell')}. One layer with {count(input, 'input')} (d) and {count(hidden, 'unit')} (h):\n\n"
        "flops: of the products in one step of one row, forward; a multiply-add counts as two\n"
        "bytes: saved by one step of one row for the backward pass, float32\n"
        f"us: microseconds per step, forward and backward, at other sizes: {times.about}\n"
    )
    grouped = [row for group in groups.values() for row in group]
    heads = {id(group[0]): idea or "other" for idea, group in groups.items() if group}
    console.show_table(
        [
            {
                "idea": heads.get(id(row), ""),
                "cell": row["cell"],
                "parameters": row["parameters"],
                "flops": row["flops_per_token"],
                "bytes": row["activation_bytes_per_token"],
                "us": row["us_per_step"] and f"{row['us_per_step']:.3g}",
            }
            for row in grouped
        ]
    )
    print()
    return console.show_table(
        [{"cell": row["cell"], "formula of the parameters": row["formula"]} for row in grouped if row["formula"]]
    )


@listing.command
def layers(*, json: Json = False) -> None:
    """List every layer; the prefix bi_ gives its bidirectional version."""
    with console.show_status("reading"):
        from seqloom.layers import registry

        names = registry.list_names()
        both = {name: registry.BI_PREFIX + name if registry.BI_PREFIX + name in names else None for name in names}
        rows = [
            {"layer": name, "both ways": both[name], "description": registry.describe(name)}
            for name in names
            if not name.startswith(registry.BI_PREFIX)
        ]
    if json:
        return console.show_json(rows)
    console.show_table([row | {"both ways": "bi_" if row["both ways"] else None} for row in rows])
    return console.show_text("\nboth ways: layers with a bidirectional version, such as bi_gru")


@listing.command
def kernels(*, json: Json = False) -> None:
    """List every kernel, fastest first; `seqloom doctor` shows which of them run on this machine."""
    with console.show_status("reading"):
        from seqloom.kernels.registry import KERNELS

        rows = [{"kernel": k.name, "cell": k.cell, "backend": k.backend, "description": k.description} for k in KERNELS]
    if json:
        return console.show_json(rows)
    return console.show_table([{"kernel": row["kernel"], "description": row["description"]} for row in rows])


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().partition("\n")[0]


@app.command
def doctor(*, json: Json = False) -> int:
    """Check this machine: versions, hardware, and a test of every kernel.

    The exit code is 1 if a kernel gives wrong results.
    """
    with console.show_status("testing every kernel"):
        from seqloom.tools import doctor as here

        versions, hardware, engine, verdicts = here.versions(), here.hardware(), here.engine(), here.run_self_tests()
    failed = any(verdict.failed for verdict in verdicts)
    if json:
        tests = [asdict(verdict) for verdict in verdicts]
        console.show_json(
            {"versions": versions, "hardware": hardware, "engine": engine, "kernels": tests, "ok": not failed}
        )
        return int(failed)
    console.show_table([{"item": name, "value": value} for name, value in here.describe_facts().items()])
    print()
    console.show_table([{"kernel": v.kernel, "device": v.device, "self-test": v.describe()} for v in verdicts])
    return int(failed)


benching = App(name="bench", default_parameter=DEFAULTS)
app.command(benching)
benching.command(
    "seqloom.cli.commands.serving:bench",
    name="serve",
    help="""Measure a server of a run under load.

    Starts `seqloom serve` with the run on this machine. Measures the model alone, the highest throughput, and the
    latency at several loads (an open loop: requests are sent at random times, whether earlier ones are answered or
    not). With --streams, measures streams of steps instead. Needs: pip install 'seqloom[serve]'.""",
)


@benching.default
def bench(*, settings: Annotated[BenchSettings, Parameter(name="*")] = BenchSettings(), json: Json = False) -> int:
    """Time layers against torch.nn, forward and forward+backward.

    Every kernel is first checked against the reference loop. A kernel that fails is not timed, and the exit code is 1.
    """
    with console.show_status("loading"):
        from seqloom.lab.bench import race
        from seqloom.lab.cell_names import check_kernels, find_cells

        check_kernels(settings.kernels)
        kinds = find_cells(settings.cells)
    rows: list[race.Timing] = []
    finished = False
    try:
        with console.show_progress(len(race.list_shapes(settings))) as (before, after):
            for row in race.time_layers(settings, kinds, before):
                rows.append(row)
                after(str(row))
        finished = True
    except KeyboardInterrupt:
        console.note("interrupted; the results so far follow")
    if settings.plot and any(row.us_per_step for row in rows):
        with console.show_status("drawing"):
            from seqloom.lab.report.pictures import plot_speed

            plot_speed(rows, settings.plot)
        console.note(f"plot: {settings.plot}")
    if json:
        console.show_json(race.build_document(settings, rows, finished))
    else:
        console.show_table(race.tabulate(settings, rows))
        console.show_text(f"\n{race.describe_setup(settings)}")
    if not finished:
        return INTERRUPTED
    return int(any(row.reason.startswith(race.CHECK_FAILED) for row in rows))
