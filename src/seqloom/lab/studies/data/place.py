"""Where the data sets are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

VARIABLE = "SEQLOOM_DATA"
CHECKOUT = Path(__file__).parents[5]
USUAL = Path("shared") / "data"
_chosen: ContextVar[Path | None] = ContextVar("_chosen", default=None)


@contextmanager
def use(folder: Path | None) -> Iterator[None]:
    """Read data sets from this folder meanwhile, as `--data` asks; None for the usual places."""
    before = _chosen.set(folder and folder.resolve())
    try:
        yield
    finally:
        _chosen.reset(before)


def find(name: str, *files: str) -> list[Path]:
    """These files of the data set, or one line that says what is missing and what to do."""
    named = _chosen.get() or os.environ.get(VARIABLE)
    places = [Path(named)] if named else [root / USUAL for root in (Path.cwd(), CHECKOUT, CHECKOUT.parent)]
    for place in places:
        found = [place / name / file for file in files]
        if all(path.is_file() for path in found):
            return found
    looked = ", ".join(str(place) for place in dict.fromkeys(places))
    raise FileNotFoundError(
        f"the data set {name!r} ({', '.join(files)}) is not in {looked}; "
        f"name the folder that holds {name}/ with --data or {VARIABLE}"
    )
