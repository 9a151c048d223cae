"""The commands that serve trained runs over HTTP and measure it: serve, bench serve."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from seqloom.cli.commands import Json, print_warnings
from seqloom.core.errors import require
from seqloom.lab import console
from seqloom.lab.bench import serving
from seqloom.lab.bench.serving import ServeBenchSettings
from seqloom.lab.serve.settings import ServeSettings
from seqloom.lab.training.folders import find_run_folder

PACKAGES = ("fastapi", "uvicorn", "websockets", "prometheus_client")  # packages of the extra "serve"
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
    token = settings.read_token()
    for run in runs:
        find_run_folder(run.partition("=")[2] or run)
    for package in PACKAGES:
        require(package, "seqloom serve", "serve")
    with console.show_status("loading"):
        from seqloom.lab.serve.app import make_server
        from seqloom.lab.serve.metrics import Metrics
        from seqloom.lab.serve.runs import load_runs
        from seqloom.lab.web import logs

        metrics = Metrics()
        loaded = load_runs(runs, settings, metrics, trust)
    names = list(loaded.by_name)
    logs.set_up(quiet)

    def report(address: str) -> None:
        logs.write("serving", {"address": address, "runs": names})
        if json:
            console.show_json({"address": address, "runs": names})
            print(end="", flush=True)
        console.note(f"serving {', '.join(names)} on {address} (a page to try it; Ctrl-C stops)")

    make_server(loaded, settings, metrics, token, report).serve_site()


@print_warnings
def bench(
    run: Annotated[str, Parameter(help="Folder of a run, or its name in runs/.")],
    *,
    settings: Annotated[ServeBenchSettings, Parameter(name="*")] = ServeBenchSettings(),
    json: Json = False,
) -> None:
    """Measure a server of a run under load."""
    find_run_folder(run)
    for package in PACKAGES:
        require(package, "seqloom bench serve", "serve")
    with console.show_progress(2 + len(settings.load)) as (advance, report):

        def note(line: str) -> None:
            advance(line)
            report(line)

        measure = serving.measure_streams if settings.streams else serving.measure_requests
        document = measure(run, settings, note)
    document = {"settings": settings.model_dump(mode="json", exclude={"plot"}), **document}
    document["versions"] = serving.describe_machine()
    if settings.plot and not settings.streams:
        from seqloom.lab.report.pictures import plot_latency

        plot_latency(document["levels"], settings.plot)
        console.note(f"plot: {settings.plot}")
    if json:
        return console.show_json(document)
    if settings.streams:
        names = ("streams", "connections", "rate", "steps", "late", "failed", "p50", "p99", "p99.9")
        return console.show_table([{name: document[name] for name in names}])
    served, offline = document["served_rows_per_second"], document["offline_rows_per_second"]
    console.show_table(serving.tabulate(document))
    return console.show_text(
        f"\n{settings.rows} rows per request: {served:,.0f} rows/s served, {offline:,.0f} rows/s by the model alone "
        f"({served / offline:.0%})"
    )
