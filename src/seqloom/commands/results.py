"""`seqloom results`: what all stored studies found, as one document."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from seqloom import console

STUDIES = Path("benchmarks/results/studies")


def results(
    folder: Path = STUDIES,
    /,
    *,
    out: Annotated[Path | None, Parameter(help="A file to write to, such as docs/results.md.")] = None,
) -> None:
    """Make one Markdown document of the stored studies: verdicts, tables, commands, hardware.

    Parameters
    ----------
    folder
        Where FOLDER/*/study.json are.
    """
    from seqloom.report.results import results as text
    from seqloom.whole import whole

    if out is not None and out.is_dir():
        raise ValueError(f"--out: {out} is a folder; name a file in it, such as {out / 'results.md'}")
    made = text(folder)
    if out is None:
        print(made, end="")
        return
    if out.exists() and not out.is_file():  # a pipe or /dev/stdout: written to, never replaced
        out.write_text(made, encoding="utf-8", newline="\n")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole(out.resolve()) as work:  # through a link, which stays
        work.write_text(made, encoding="utf-8", newline="\n")
    console.note(f"written: {out}")
