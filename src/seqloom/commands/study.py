"""`seqloom study`: a question, measured here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from seqloom import console
from seqloom.commands import INTERRUPTED, Json


def study(
    name: str | None = None,
    /,
    *,
    list: Annotated[bool, Parameter(help="Name every study, and what it shows.")] = False,
    quick: Annotated[bool, Parameter(help="A smaller form of it, in about a minute.")] = False,
    out: Annotated[Path | None, Parameter(help="A folder for NAME.json and NAME.svg, a picture.")] = None,
    json: Json = False,
) -> int:
    """Measure what a chapter claims: a table, a sentence, a picture.

    Parameters
    ----------
    name
        Which study; `seqloom study --list` names them all.
    """
    with console.working("loading"):
        from seqloom import study as studies

        if list or name is None:
            rows = [{"study": n, "shows": studies.shows(studies.find(n))} for n in studies.known()]
            console.show_json(rows) if json else console.show_table(rows)
            return 0
        kind = studies.find(name)
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"--out: {out} is a file; name a folder")
    one = kind(kind.quick if quick else kind.full)
    found: Any = []
    finished = False
    try:
        with console.progress(one.parts) as (before, after):
            for row in one.run(before):
                found.append(row)
                after(str(row))
        finished = True
    except KeyboardInterrupt:
        console.note("interrupted: this is what was finished")
    document = one.document(found, finished)
    if out is not None:
        with console.working("writing"):
            for file in studies.write(one, found, document, out):
                console.note(f"written: {file}")
    if json:
        console.show_json(document)
    else:
        console.show_table(one.table(found))
        print(f"\n{document['caption']}\n\n{document['verdict']}\n\n{document['command']}")
    return 0 if finished else INTERRUPTED
