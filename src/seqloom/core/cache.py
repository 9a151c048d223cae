"""Files that are kept from one process to the next: built kernels and plans, each with a checksum."""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from pathlib import Path

DIGEST = 32  # bytes of a checksum


def cache_folder(kind: str) -> Path:
    """Return the folder of one kind of files: in SEQLOOM_CACHE, or in the user's cache folder."""
    chosen = os.environ.get("SEQLOOM_CACHE")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seqloom"
    return base / kind


def read_cached(path: Path, what: str) -> bytes | None:
    """Return the content of a cached file; None, with a warning, if it is damaged or cannot be read.

    Args:
        path: The file.
        what: What it holds, for the warning: "built kernel".
    """
    try:
        whole = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        warnings.warn(f"the {what} {path} cannot be read ({error}); building it again", stacklevel=4)
        return None
    if hashlib.sha256(whole[DIGEST:]).digest() != whole[:DIGEST]:
        warnings.warn(f"the {what} {path} is damaged; building it again", stacklevel=4)
        return None
    return whole[DIGEST:]


def write_cached(path: Path, content: bytes, what: str) -> bool:
    """Write a cached file, to a temporary name first, so that no process reads half a file.

    Args:
        path: The file.
        content: What to write after the checksum.
        what: What it holds, for the warning if the folder cannot be written.

    Returns:
        Whether it was written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(content).digest() + content)
        Path(file.name).replace(path)
    except OSError as error:
        warnings.warn(
            f"a {what} cannot be kept in {path.parent} ({error}); every process builds it again. "
            "Set SEQLOOM_CACHE to a folder that can be written",
            stacklevel=4,
        )
        return False
    return True
