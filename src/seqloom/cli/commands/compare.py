"""`seqloom compare`: train baselines and models on the same data and rank them."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from seqloom.cli.commands import INTERRUPTED, Json, print_warnings
from seqloom.cli.commands.training import DATA, SWITCH, ReadingFlags, TaskOptions, Trust, explicit_options
from seqloom.lab import console
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.data.names import check_exists
from seqloom.lab.data.pipeline.reading import Reading

if TYPE_CHECKING:  # they need torch, which takes long to import
    from seqloom.lab.compare.rows import Results
    from seqloom.lab.compare.search import Search


@print_warnings
def compare(
    data: Annotated[str | None, DATA] = None,
    *,
    settings: Annotated[CompareSettings, Parameter(name="*", group="Comparison", **SWITCH)] = CompareSettings(),
    out: Annotated[Path | None, Parameter(help="Folder for runs and report. Default: comparisons/NAME.")] = None,
    resume: Annotated[bool, Parameter(help="Continue a comparison that was interrupted.")] = False,
    trust: Trust = False,
    reading: ReadingFlags = Reading(),
    task: TaskOptions = None,
    wide: Annotated[bool, Parameter(help="Print all columns of the table.")] = False,
    json: Json = False,
) -> int:
    """Train baselines and models within a time budget, write the report, and print the leaderboard.

    Returns:
        0 on success, 1 if every model and baseline failed, 130 after Ctrl-C.
    """
    began = time.time(), time.process_time()
    if data is not None:
        check_exists(data)
    with console.show_status("loading"):
        from seqloom.lab.compare.execution import describe_comparison, open_comparison, run_comparison, write_report
        from seqloom.lab.compare.leaderboard import build_leaderboard, build_summary, caption, short_caption
        from seqloom.lab.compare.page import shorten_path

        options = explicit_options(reading) | (task or {})
        comparison = open_comparison(data, options, settings, out, resume=resume, trust=trust, began=began)
    for line in describe_comparison(comparison):
        console.note(line)
    finished = run_comparison(comparison, settings, resume=resume)
    if not finished:
        folder = shlex.quote(str(shorten_path(comparison.folder)))
        console.note(f"interrupted; continue with: seqloom compare --resume --out {folder}")
    with console.show_status("writing the report"):
        results, document = write_report(comparison, finished)
    if json:
        console.show_json(document)
    elif not results.rows:
        console.show_text(document["verdict"])
    elif wide:
        console.show_table(build_leaderboard(results))
        console.show_text(f"\n{caption(results, comparison.seeds, comparison.valid_rows)}\n\n{document['verdict']}")
    else:
        console.show_table(build_summary(results))
        console.show_text(f"\n{short_caption(results)}\n\n{document['verdict']}")
    _print_next_steps(comparison, results, finished)
    if not finished:
        return INTERRUPTED
    return 0 if results.models or results.baselines else 1


def _print_next_steps(comparison: Search, results: Results, finished: bool) -> None:
    from seqloom.lab.compare.page import list_next, shorten_path

    console.note(f"\nreport: {shorten_path(comparison.folder / 'report.html')}")
    for key in (key for key, result in comparison.results.items() if result.failed):
        if (log := comparison.folder / "jobs" / key / "failed.txt").exists():
            title = comparison.job_factory.titles.get(key, key)
            console.note(f"traceback of {title}: {shorten_path(log)}")
    if finished:
        for purpose, command in list_next(comparison, results):
            console.note(f"{purpose}:\n  {command}")
