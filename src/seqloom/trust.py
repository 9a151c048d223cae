"""Decide whether code that a folder names may be executed.

Code is known by the SHA-256 of its text. When this user trains with a cell from a file, its digest is recorded in
$SEQLOOM_STATE (by default ~/.local/state/seqloom), outside every run folder. Code whose digest is not recorded there
is executed only when the caller says `trust=True`, or `--trust` on the command line.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path


class UntrustedError(ValueError):
    """Code that came with a folder and that this user has not trained with on this machine."""


def state_folder() -> Path:
    """Return where digests are recorded; the folder need not exist."""
    given = os.environ.get("SEQLOOM_STATE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "seqloom"


def digest(code: bytes) -> str:
    """Return the name of a piece of code: the SHA-256 of its text, in hexadecimal."""
    return hashlib.sha256(code).hexdigest()


def remember(code: bytes) -> None:
    """Record that this user trains with this code. Where nothing can be written, `--trust` will be needed later."""
    with suppress(OSError):
        place = state_folder() / "trusted"
        place.mkdir(parents=True, exist_ok=True)
        (place / digest(code)).touch()


def is_known(code: bytes) -> bool:
    """Return whether this user has trained with this code on this machine."""
    return (state_folder() / "trusted" / digest(code)).exists()


def check(code: bytes, file: Path, named_by: Path, trust: bool) -> None:
    """Raise unless code may be executed.

    Args:
        code: The text that would be executed.
        file: Where it was read.
        named_by: The run or comparison that names it.
        trust: Whether the caller vouches for it.

    Raises:
        UntrustedError: With what would be executed, and what to do.
    """
    if trust or is_known(code):
        return
    raise UntrustedError(
        f"{named_by} would execute the Python code in {file} (sha256 {digest(code)[:16]}), which was not trained with "
        "on this machine by this user; read that file first, then add --trust (in Python: trust=True)"
    )
