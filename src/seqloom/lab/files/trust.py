"""Decide whether code that a folder names may be executed.

Code is known by the SHA-256 of its text. When this user trains with a cell from a file, its digest is recorded in
$SEQLOOM_STATE (by default ~/.local/state/seqloom), outside every run folder. Code whose digest is not recorded there
is executed only when the caller says `trust=True`, or `--trust` on the command line.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from seqloom.core.errors import UserError
from seqloom.core.state import make_private, state_folder


class UntrustedError(UserError):
    """Code in a folder that this user has not trained with on this machine."""


def digest(code: bytes) -> str:
    """Return the SHA-256 digest of source code, in hexadecimal."""
    return hashlib.sha256(code).hexdigest()


def remember(code: bytes) -> None:
    """Record that this user trusts this code. If the folder cannot be written, `--trust` is needed every time."""
    with suppress(OSError):
        place = state_folder() / "trusted"
        make_private(place.parent)
        place.mkdir(exist_ok=True)
        (place / digest(code)).touch()


def is_known(code: bytes) -> bool:
    """Return whether this user has trained with this code on this machine."""
    return (state_folder() / "trusted" / digest(code)).exists()


def check(code: bytes, file: Path, named_by: Path, trust: bool | str) -> None:
    """Raise an error if source code must not be executed.

    Args:
        named_by: The folder of the run or comparison that names it.
        trust: Whether the user allows its execution; or the digest of the allowed code.

    Raises:
        UntrustedError: If `trust` does not allow it and this user has not trained with this code on this machine.
    """
    if trust is True or trust == digest(code) or is_known(code):
        return
    raise UntrustedError(
        f"{named_by} would execute the Python code in {file} (sha256 {digest(code)[:16]}), and you have not trained "
        "with this code on this machine; read that file first, then add --trust (in Python: trust=True)"
    )
