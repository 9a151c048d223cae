"""`seqloom study` and `seqloom results`: run an experiment; all stored studies in one document."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from seqloom.cli.commands import INTERRUPTED, Json
from seqloom.core import errors
from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab import console

if TYPE_CHECKING:
    from research.studies.study import Study

STUDIES = Path("research/results/studies")


def study(
    name: str | None = None,
    /,
    *,
    list: Annotated[bool, Parameter(help="List all studies.")] = False,
    protocol: Annotated[
        Literal["fair", "paper"],
        Parameter(help="fair: equal sizes, tuning, several seeds. paper: the setup of the source text."),
    ] = "fair",
    quick: Annotated[bool, Parameter(help="Run a smaller version that takes about a minute.")] = False,
    models: Annotated[str, Parameter(help="Models to include, separated by commas. Default: all.")] = "",
    conditions: Annotated[
        str, Parameter(help="Conditions to run, separated by commas, or semicolons if names have commas. Default: all.")
    ] = "",
    seeds: Annotated[int | None, Parameter(help="Number of seeds. Default: set by the study.")] = None,
    effort: Annotated[float | None, Parameter(help="Fraction of the training steps, such as 0.5.")] = None,
    out: Annotated[
        Path | None,
        Parameter(help="Write the report and the trials to OUT/NAME-PROTOCOL; a second call continues there."),
    ] = None,
    data: Annotated[
        Path | None, Parameter(help="Folder of the data sets. Default: SEQLOOM_DATA, or shared/data.")
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"] | None, Parameter(help="Device to train on. Default: cuda if available, otherwise cpu.")
    ] = None,
    replay: Annotated[
        bool, Parameter(help="Train nothing: compute tables and verdict again from the trials stored in OUT.")
    ] = False,
    json: Json = False,
) -> int:
    """Run an experiment and print its table and verdict. Studies are in the repository, not in the package.

    Parameters
    ----------
    name
        Name of the study; `seqloom study --list` lists them.
    """
    use_research("seqloom study")
    with console.show_status("loading"):
        import torch

        from research.studies import study as studies
        from research.studies.data import place

        if list or name is None:
            names = [{"study": n, "shows": studies.describe(studies.find_study(n))} for n in studies.list_studies()]
            console.show_json(names) if json else console.show_table(names)
            return 0
        kind = studies.find_study(name)
    _check_folders(out, data)
    if replay and (out is None or not (out / f"{name}-{protocol}" / "trials.jsonl").exists()):
        raise UserError(
            "--replay: give the folder of an earlier run as --out; it must contain NAME-PROTOCOL/trials.jsonl"
        )
    if device == "cuda" and not replay and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device; use --device cpu")
    chosen_models = [m.strip() for m in models.split(",") if m.strip()]
    settings = kind.choose_settings(protocol, quick, chosen_models, seeds, effort, conditions)
    folder = None if out is None else out / f"{name}-{protocol}"
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    one = kind(settings, protocol=protocol, folder=folder, device=where)
    if replay:
        has_flags = bool(quick or models or conditions or seeds or effort)
        one, rows, document = _replay(one, has_flags)
    else:
        with place.use(data):
            rows, finished = _run(one)
        document = one.document(rows, finished)
    if folder is not None:
        from seqloom.lab import report

        with console.show_status("writing"):
            for file in report.write_report(one.page(rows, document), folder, document):
                console.note(f"written: {file}")
    if json:
        console.show_json(document)
    else:
        console.show_table(_format_rows(document["table"]))
        console.show_text(f"\n{document['caption']}\n\n{document['verdict']}\n\n{document['command']}")
    return 0 if document["finished"] or replay else INTERRUPTED


def _run(one: Study[Any, Any]) -> tuple[Sequence[Any], bool]:
    """Return the rows of a study and whether they are all of them."""
    rows = []
    try:
        with console.show_progress(one.parts) as (before, after):
            for row in one.run(before):
                rows.append(row)
                after(str(row))
    except KeyboardInterrupt:
        console.note("interrupted; the results so far follow")
        return rows, False
    return rows, True


def _replay(one: Study[Any, Any], has_flags: bool) -> tuple[Study[Any, Any], Sequence[Any], dict[str, Any]]:
    """Return the study with its stored rows and document, with the stored settings unless flags give others."""
    from research.studies.support import replay

    assert one.folder is not None
    if not has_flags and (one.folder / replay.STUDY).exists():
        one = replay.restore_study(one.folder)
    rows, document = replay.replay(one)
    if one.missing:
        console.note(f"not stored: {count(len(one.missing), 'trial')} of the study, such as {one.missing[0]}")
    return one, rows, document


def _check_folders(out: Path | None, data: Path | None) -> None:
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"--out: {out} is a file; choose a folder")
    if out is not None and not os.access(_existing_parent(out), os.W_OK | os.X_OK):  # checked before hours of work
        raise UserError(f"--out: {_existing_parent(out)} is not writable; choose another folder")
    if data is not None and not data.is_dir():
        raise UserError(
            f"--data: {data} is not a folder; give the folder that contains imdb/, mnist/ and the other data sets"
        )


def _existing_parent(folder: Path) -> Path:
    """Return the folder itself or its nearest existing parent."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _format_rows(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Format floats with the digits that their column needs."""
    from seqloom.lab.report.text import format_column

    if not rows:
        return rows
    columns = {
        name: [v if isinstance(v, int) else t for v, t in zip(values, format_column(values), strict=True)]
        for name, values in ((name, [row[name] for row in rows]) for name in rows[0])
    }
    return [{name: columns[name][i] for name in columns} for i in range(len(rows))]


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
    from seqloom.lab.files.scratch import write_text
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
    write_text(out, document)
    console.note(f"written: {out}")


def use_research(command: str) -> None:
    """Make the package `research` of the checkout that seqloom runs from importable.

    Args:
        command: The command that needs it, for the message.

    Raises:
        UserError: If seqloom was installed without its repository.
    """
    root = Path(errors.__file__).parents[3]
    if not (root / "research" / "studies").is_dir():
        raise UserError(
            f"{command}: studies are not part of the installed package; clone the repository, "
            f"run `pip install -e '.[lab]'` in it, and repeat the command there"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
