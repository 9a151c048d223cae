"""`seqloom explore`: show the inside of trained runs in a browser."""

from __future__ import annotations

import logging
import os
import sys
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from seqloom.cli.commands import HIDDEN, Json, print_warnings
from seqloom.core import plurals
from seqloom.core.errors import UserError, require
from seqloom.lab import console
from seqloom.lab.training.folders import find_run_folder

if TYPE_CHECKING:  # needs torch, which takes long to import
    from seqloom.lab.explore.service import Service

PACKAGES = ("starlette", "uvicorn")  # packages of the server


@print_warnings
def explore(
    *runs: Annotated[str, Parameter(help="Folders of runs, or their names in runs/.")],
    out: Annotated[
        Path | None,
        Parameter(
            help="Write a file instead of starting a server. page.html: the page with recorded examples; table.parquet "
            "or table.csv: the contribution of every step of the held-out rows."
        ),
    ] = None,
    save: Annotated[Path | None, HIDDEN] = None,
    examples: Annotated[
        int, Parameter(help="With --out page.html: rows of the held-out data to record for each run.")
    ] = 12,
    input: Annotated[
        list[str] | None, Parameter(help="With --out page.html: a further input to record. May be repeated.")
    ] = None,
    model: Annotated[
        bool,
        Parameter(
            help="With --out page.html: put models into the page, so that it explains any text by itself. "
            "Works for gru, lstm, attn_rnn and transformer that classify texts.",
            negative=None,
            negative_bool="no-",
        ),
    ] = True,
    export_attributions: Annotated[Path | None, HIDDEN] = None,
    port: Annotated[int, Parameter(help="Port of the server on this machine; 0 chooses a free one.")] = 0,
    browser: Annotated[bool, Parameter(help="Open the page in a browser.", negative=None, negative_bool="no-")] = True,
    trust: Annotated[bool, Parameter(help="Execute the Python code stored in a run (cell.py). Read it first.")] = False,
    json: Json = False,
) -> None:
    """Show what trained models do with an input: predictions, contributions, states, gates and attention."""
    if not runs:
        raise UserError("explore needs at least one run: seqloom explore RUN; `seqloom runs` lists them")
    if examples < 0:
        raise UserError(f"--examples must be at least 0, got {examples}")
    if not 0 <= port <= 65535:
        raise UserError(f"--port must be between 0 and 65535, got {port}")
    folders = [find_run_folder(run) for run in runs]
    page, table = _choose_files(out, save, export_attributions)
    if table is not None and len(folders) > 1:
        raise UserError(f"--out {table}: a table of contributions takes one run, got {len(folders)}")
    if page is None and table is None:
        for package in PACKAGES:
            require(package, "seqloom explore", "lab")
    service = _open(folders, trust)
    if table is not None:
        _export(service, table, json)
    if page is not None:
        _save(service, page, examples, input or [], model, json)
    if table is None and page is None:
        _serve(service, port, browser, json)


def _choose_files(out: Path | None, save: Path | None, export: Path | None) -> tuple[Path | None, Path | None]:
    """Return the page and the table to write; `save` and `export` are the options that --out replaced."""
    given = [path for path in (out, save, export) if path is not None]
    if len(given) > 1:
        raise UserError(f"give one file as --out, got {' and '.join(map(str, given))}")
    for path in given:
        if path.is_dir():
            raise UserError(f"--out: {path} is a folder; give a file such as {path / 'page.html'}")
    if out is None:
        return save, export
    if out.suffix.lower() in (".html", ".htm"):
        return out, None
    if out.suffix.lower() in (".parquet", ".csv"):
        return None, out
    raise UserError(f"--out: {out} must end with .html (a page), or with .parquet or .csv (a table of contributions)")


def _serve(service: Service, port: int, browser: bool, json: bool) -> None:
    """Serve the page until Ctrl-C."""
    from seqloom.lab.explore.server import Session, has_running_questions, make_server
    from seqloom.lab.web import logs

    logs.set_up(level=logging.ERROR)
    session = Session()

    def report(address: str) -> None:
        page = f"{address}/?token={session.token}"
        if json:
            console.show_json({"address": page})
            print(end="", flush=True)
        else:
            console.note(f"explore: {page}\nstop:    Ctrl-C")
        threading.Thread(target=service.warm_up, daemon=True).start()
        if browser:
            page = f"{address}/?token={session.make_single_use_token()}"
            threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()

    make_server(service, session, report, port).serve_site()
    console.note("stopped")
    if has_running_questions():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # the interpreter would end while torch computes, which aborts the process


def _open(folders: list[Path], trust: bool) -> Service:
    with console.show_status("loading"):
        from seqloom.lab.explore.service import RunEntry, Service
        from seqloom.lab.training.run import Run

        entries: dict[str, RunEntry] = {}
        for folder in folders:
            name = folder.resolve().name
            name = name if name not in entries else str(folder)
            try:
                entries[name] = RunEntry(name, Run.load(folder, trust=trust))
            except (UserError, OSError) as error:
                if len(folders) == 1:
                    raise
                entries[name] = RunEntry(name, problem=str(error))  # the page still shows the other runs
        return Service(list(entries.values()))


def _save(service: Service, place: Path, examples: int, inputs: list[str], with_models: bool, json: bool) -> None:
    with console.show_status("recording examples"):
        from seqloom.lab.explore.portable_model import explain_not_portable
        from seqloom.lab.explore.saved_page import build_page, record_examples
        from seqloom.lab.files.scratch import write_text

        for entry in service.entries.values():
            if problem := entry.describe()["problem"]:
                raise UserError(f"{entry.name}: {problem}")
        recording = record_examples(service, examples, inputs, with_models)
        counts = {name: len(examples) for name, examples in recording["explanations"].items()}
        if not sum(counts.values()):
            raise UserError("there are no examples to record; give one with --input, or a larger --examples")
        page = build_page(recording, f"seqloom explore: {', '.join(service.entries)}")
        write_text(place, page)
    size = len(page.encode())
    inside = list(recording["models"])
    if json:
        console.show_json({"page": str(place), "bytes": size, "examples": counts, "models": inside})
    else:
        console.note(f"{plurals.count(sum(counts.values()), 'example')} recorded in {place} ({size / 1e6:.1f} MB)")
        for entry in service.entries.values() if with_models else ():
            if entry.name not in inside:
                why = explain_not_portable(entry.subject)
                console.note(f"{entry.name}: the page shows the recorded examples only; {why}")


def _export(service: Service, place: Path, json: bool) -> None:
    from seqloom.lab.explore.attribution_table import check_table_path, write_attributions

    check_table_path(place)
    (entry,) = service.entries.values()
    last = 0

    def report(done: int, total: int) -> None:
        nonlocal last
        if done * 10 // total > last:
            last = done * 10 // total
            console.note(f"{done:,} of {total:,} rows")

    rows = write_attributions(entry.subject, place, report=report)
    if json:
        console.show_json({"table": str(place), "rows": rows})
    else:
        console.note(f"attributions of {plurals.count(rows, 'row')} written to {place}")
