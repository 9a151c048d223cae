"""Find the data sets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

VARIABLE = "SEQLOOM_DATA"
CHECKOUT = Path(__file__).parents[3]
DEFAULT_FOLDER = Path("shared") / "data"
_chosen: ContextVar[Path | None] = ContextVar("_chosen", default=None)


@contextmanager
def use(folder: Path | None) -> Iterator[None]:
    """Read data sets from this folder inside the block; None means the default places."""
    before = _chosen.set(folder and folder.resolve())
    try:
        yield
    finally:
        _chosen.reset(before)


def find(name: str, *files: str) -> list[Path]:
    """Return the paths of these files of a data set.

    Raises:
        FileNotFoundError: If one is missing; says where it looked and what to do.
    """
    folder = _chosen.get() or os.environ.get(VARIABLE)
    places = [Path(folder)] if folder else [root / DEFAULT_FOLDER for root in (Path.cwd(), CHECKOUT, CHECKOUT.parent)]
    for place in places:
        paths = [place / name / file for file in files]
        if all(path.is_file() for path in paths):
            return paths
    looked = ", ".join(str(place) for place in dict.fromkeys(places))
    raise FileNotFoundError(
        f"the data set {name!r} ({', '.join(files)}) is not in {looked}; "
        f"set the folder that contains {name}/ with --data or {VARIABLE}"
    )
