"""Where the data sets are."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "SEQLOOM_DATA"
CHECKOUT = Path(__file__).parents[4]
USUAL = Path("shared") / "data"


def find(name: str, *files: str) -> list[Path]:
    """These files of the data set, or one line that says what is missing and what to do."""
    given = os.environ.get(VARIABLE)
    places = [Path(given)] if given else [root / USUAL for root in (Path.cwd(), CHECKOUT, CHECKOUT.parent)]
    for place in places:
        found = [place / name / file for file in files]
        if all(path.is_file() for path in found):
            return found
    looked = ", ".join(str(place) for place in dict.fromkeys(places))
    raise FileNotFoundError(
        f"the data set {name!r} ({', '.join(files)}) is not in {looked}; "
        f"name the folder that holds {name}/ with --data or {VARIABLE}"
    )
