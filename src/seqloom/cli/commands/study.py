"""`seqloom study`: a question, measured here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from seqloom.cli.commands import INTERRUPTED, Json
from seqloom.core.errors import UserError
from seqloom.lab import console


def study(
    name: str | None = None,
    /,
    *,
    list: Annotated[bool, Parameter(help="Name every study, and what it shows.")] = False,
    protocol: Annotated[
        Literal["fair", "seed"], Parameter(help="fair: equal sizes, tuning and several seeds; seed: as the document.")
    ] = "fair",
    quick: Annotated[bool, Parameter(help="A smaller form of it, in about a minute.")] = False,
    models: Annotated[str, Parameter(help="Some of its models, as a,b.")] = "",
    seeds: Annotated[int | None, Parameter(help="So many seeds in place of its own number.")] = None,
    effort: Annotated[float | None, Parameter(help="Train for this share of its steps, such as 0.5.")] = None,
    out: Annotated[
        Path | None,
        Parameter(help="A folder for NAME-PROTOCOL/: a page, its tables, and trials, from which it goes on."),
    ] = None,
    data: Annotated[
        Path | None, Parameter(help="The folder of the data sets; by default that of SEQLOOM_DATA, or shared/data.")
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"] | None, Parameter(help="Where it trains; by default cuda, where there is one.")
    ] = None,
    json: Json = False,
) -> int:
    """Measure what a document claims: a table, a verdict, a page.

    Parameters
    ----------
    name
        Which study; `seqloom study --list` names them all.
    """
    with console.working("loading"):
        import torch

        from seqloom.lab.studies import study as studies
        from seqloom.lab.studies.data import place

        if list or name is None:
            rows = [{"study": n, "shows": studies.shows(studies.find(n))} for n in studies.known()]
            console.show_json(rows) if json else console.show_table(rows)
            return 0
        kind = studies.find(name)
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"--out: {out} is a file; name a folder")
    if out is not None and not os.access(_there(out), os.W_OK | os.X_OK):  # before hours of work, not after them
        raise UserError(f"--out: {_there(out)} cannot be written to; name another folder")
    if data is not None and not data.is_dir():
        raise UserError(f"--data: {data} is no folder; name the one that holds imdb/, mnist/ and the others")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device here; leave it out or say cpu")
    chosen = kind.chosen(protocol, quick, [m.strip() for m in models.split(",") if m.strip()], seeds, effort)
    folder = None if out is None else out / f"{name}-{protocol}"
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    one = kind(chosen, protocol=protocol, folder=folder, device=where)
    found: Any = []
    finished = False
    try:
        with place.use(data), console.progress(one.parts) as (before, after):
            for row in one.run(before):
                found.append(row)
                after(str(row))
        finished = True
    except KeyboardInterrupt:
        console.note("interrupted: this is what was finished")
    document = one.document(found, finished)
    if folder is not None:
        from seqloom.lab import report

        with console.working("writing"):
            for file in report.write(one.page(found, document), folder, document):
                console.note(f"written: {file}")
    if json:
        console.show_json(document)
    else:
        console.show_table(_shown(document["table"]))
        print(f"\n{document['caption']}\n\n{document['verdict']}\n\n{document['command']}")
    return 0 if finished else INTERRUPTED


def _there(folder: Path) -> Path:
    """The folder, or the nearest above it that exists."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def _shown(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """With as many digits as numbers of their size need."""
    from seqloom.lab.report.text import column

    if not rows:
        return rows
    columns = {
        name: [v if isinstance(v, int) else t for v, t in zip(values, column(values), strict=True)]
        for name, values in ((name, [row[name] for row in rows]) for name in rows[0])
    }
    return [{name: columns[name][i] for name in columns} for i in range(len(rows))]
