"""`seqloom results`: what all stored studies found, as one document."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from seqloom.lab import console

STUDIES = Path("benchmarks/results/studies")


def results(
    folder: Path = STUDIES,
    /,
    *,
    out: Annotated[Path | None, Parameter(help="A file to write to, such as docs/results/studies.md.")] = None,
) -> None:
    """Make one Markdown document of the stored studies: verdicts, tables, commands, hardware.

    Parameters
    ----------
    folder
        Where FOLDER/*/study.json are.
    """
    from seqloom.lab.files.scratch import write_atomically
    from seqloom.lab.report.results import results as text

    made = text(folder)
    if out is None:
        print(made, end="")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(out) as work:
        work.write_text(made, encoding="utf-8", newline="\n")
    console.note(f"written: {out}")
