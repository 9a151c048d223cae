"""The command that serves trained runs over HTTP: serve."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from seqloom.cli.commands import print_warnings
from seqloom.lab import console
from seqloom.lab.serve.settings import ServeSettings
from seqloom.lab.training.folders import find_run_folder

Names = Annotated[
    list[str],
    Parameter(help="Folders of runs, or their names in runs/; NAME=FOLDER serves a run under another name."),
]
Trust = Annotated[bool, Parameter(help="Execute the Python code stored in the runs (cell.py). Read it first.")]


@print_warnings
def serve(
    runs: Names,
    *,
    settings: Annotated[ServeSettings, Parameter(name="*")] = ServeSettings(),
    quiet: Annotated[bool, Parameter(help="Log starts, stops and errors, but not each request.")] = False,
    trust: Trust = False,
    json: Annotated[bool, Parameter(help="Print the address and the runs as JSON once the server answers.")] = False,
) -> None:
    """Serve runs until SIGTERM or Ctrl-C."""
    from seqloom.core.errors import require

    token = settings.read_token()
    for run in runs:
        find_run_folder(run.partition("=")[2] or run)
    for package in ("fastapi", "uvicorn", "websockets", "prometheus_client"):
        require(package, "seqloom serve", "serve")
    with console.show_status("loading"):
        from seqloom.lab.serve import logs
        from seqloom.lab.serve.metrics import Metrics
        from seqloom.lab.serve.runs import load_runs
        from seqloom.lab.serve.server import Server, Site

        metrics = Metrics()
        site = Site(load_runs(runs, settings, metrics, trust), settings, metrics, token)
    names = list(site.runs.by_name)
    logs.set_up(quiet)

    def report(address: str) -> None:
        logs.write("serving", {"address": address, "runs": names})
        if json:
            console.show_json({"address": address, "runs": names})
            print(end="", flush=True)
        console.note(f"serving {', '.join(names)} on {address} (a page to try it; Ctrl-C stops)")

    Server(site, report).serve_site()
