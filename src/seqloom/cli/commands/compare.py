"""`seqloom compare`: which model do these data need?"""

from __future__ import annotations

import json as text
import shlex
import sys
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from seqloom.cli.commands import INTERRUPTED, Json
from seqloom.cli.commands.lab import SWITCH, WHAT, Options, Read, Trust, _said
from seqloom.cli.warning_notes import warned
from seqloom.lab import console
from seqloom.lab.compare.metric import metric
from seqloom.lab.compare.search import Comparison
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.jobs.runner import Result


@warned
def compare(
    data: Annotated[str | None, WHAT] = None,
    *,
    settings: Annotated[CompareSettings, Parameter(name="*", group="The comparison", **SWITCH)] = CompareSettings(),
    out: Annotated[Path | None, Parameter(help="A folder for all of it; by default comparisons/NAME.")] = None,
    resume: Annotated[bool, Parameter(help="Go on with a comparison that was interrupted.")] = False,
    trust: Trust = False,
    reading: Read = Reading(),
    task: Options = None,
    json: Json = False,
) -> int:
    """Baselines and models side by side on your data within a budget of time, and which one to use.

    Without DATA, on handwritten digits. Sizes are matched; learning rates are tried; the better models are trained
    longer, the best with several seeds; validation rows decide, and test rows are read once. Ctrl-C leaves the
    table so far, and --resume goes on.
    """
    with console.working("loading"):
        from seqloom.lab.compare.folder import given_up, resumed, started
        from seqloom.lab.compare.leaderboard import caption, leaderboard
        from seqloom.lab.compare.table import table
        from seqloom.lab.data.look import facts
        from seqloom.lab.jobs import runner

        if settings.ray:
            runner.Cluster(settings.ray).check()
        options = _said(reading) | (task or {})
        found = resumed(data, options, settings, out, trust) if resume else started(data, options, settings, out)
    for line in [*facts(found.task), "", f"comparing in {_shown(found.folder)}"]:
        console.note(line)
    finished = False
    try:
        _work(found, settings)
        finished = True
    except KeyboardInterrupt:
        console.note(f"interrupted; go on with: seqloom compare --resume --out {shlex.quote(_shown(found.folder))}")
    except ValueError:
        if found.plan is None and not resume:
            given_up(found)
        raise
    with console.working("writing the report"):
        made = table(found)
        document = _written(found, made, finished)
    if json:
        console.show_json(document)
    else:
        console.show_table(leaderboard(made))
        print(f"\n{caption(made, *found.counted)}\n\n{document['verdict']}")
    _next(found, made, finished)
    if not finished:
        return INTERRUPTED
    return 0 if made.models else 1


def _work(found: Any, settings: CompareSettings) -> None:
    """All jobs, told of as they end."""
    from seqloom.lab.jobs import runner

    ray = settings.ray or (found.settings.ray if settings.workers is None else None)  # a resumed one may move here
    workers = settings.workers or found.workers
    at_once = settings.workers or found.settings.workers
    where: Any = runner.Cluster(ray, at_once=at_once) if ray else runner.Processes(workers)
    with redirect_stdout(sys.stderr), ExitStack() as bar:  # Ray tells of machines that died, on stdout
        move, tell = bar.enter_context(console.progress(found.expected))
        expected = found.expected
        for result in runner.run(found.jobs(), where, found.folder / "jobs"):
            found.results[result.key] = result
            if found.expected != expected:  # the plan is made
                expected = found.expected
                bar.close()
                move, tell = bar.enter_context(console.progress(expected - len(found.results) + 1))
            line = told(found, result)
            move(f"{found.left()}  {line}")
            tell(line)


def _written(found: Any, made: Any, finished: bool) -> dict[str, Any]:
    """report.html and its companions; the winner's run."""
    from seqloom.lab import report
    from seqloom.lab.compare.folder import tidy
    from seqloom.lab.compare.story import document, page

    report.write(page(found, made, finished), found.folder, document(found, made, finished))
    if finished:
        tidy(found, made)
    stored: dict[str, Any] = text.loads((found.folder / "study.json").read_text(encoding="utf-8"))
    return stored


def _next(found: Any, made: Any, finished: bool) -> None:
    console.note(f"\nreport: {_shown(found.folder / 'report.html')}")
    for key in (key for key, result in found.results.items() if result.failed):
        if (told := found.folder / "jobs" / key / "failed.txt").exists():
            console.note(f"where {key} failed: {_shown(told)}")
    if finished and made.models:
        command = {"generate": "generate", "translate": "translate"}.get(found.task.kind, "predict")
        words = ["seqloom", command, _shown(found.folder / "best"), *([] if command == "generate" else ["FILE"])]
        console.note(f"the best model: {shlex.join(words)}")


def _shown(path: Path) -> str:
    """Relative, where that is shorter."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def told(found: Comparison, result: Result) -> str:
    name, value = result.key, result.value
    if value is None:
        return f"{name}: failed: {result.failed}"
    if "one" in value:
        return f"{name}: {1000 * value['one']:.3g} ms"
    if "memory" in value:
        return f"{name}: {1000 * value['step']:.3g} ms a step"
    one = metric(found.task.kind, value["valid"])
    return f"{name}: validation {one.name} {one.shown(value['valid'].get(one.name))}"
