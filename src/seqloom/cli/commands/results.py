"""`seqloom results`: all stored studies in one Markdown document."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from seqloom.cli.commands.checkout import use_research
from seqloom.lab import console

STUDIES = Path("research/results/studies")


def results(
    folder: Path = STUDIES,
    /,
    *,
    out: Annotated[
        Path | None, Parameter(help="File to write, such as docs/results/studies.md. Default: standard output.")
    ] = None,
    rebuild: Annotated[
        bool, Parameter(help="First compute every study.json again from the trials stored beside it, without training.")
    ] = False,
) -> None:
    """Combine the stored studies into one Markdown document: verdicts, tables, commands, hardware.

    Parameters
    ----------
    folder
        Folder with one subfolder per study, each containing study.json.
    """
    from seqloom.lab.files.scratch import write_atomically
    from seqloom.lab.report.results import build_results

    if rebuild:
        use_research("seqloom results --rebuild")
        with console.show_status("loading"):
            from research.studies.support import replay
        for trials in sorted(folder.glob(f"*/{replay.TRIALS}")):
            if (trials.parent / replay.STUDY).exists():
                console.note(replay.rebuild(trials.parent))
    document = build_results(folder)
    if out is None:
        print(document, end="")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(out) as work:
        work.write_text(document, encoding="utf-8", newline="\n")
    console.note(f"written: {out}")
