"""Cache of files shared by processes: built kernels and plans, each signed with the user's secret.

A folder is used only if it belongs to this user alone. Each file begins with an HMAC-SHA256 of its kind, its name and
its content. The key is the user's secret, which lies outside the cache (core/state.py): write access to the folder does
not suffice to write a file that is accepted. A file is read once, so that the bytes that are used are those that were
checked.
"""

from __future__ import annotations

import hmac
import os
import tempfile
import warnings
from pathlib import Path

from seqloom.core.state import make_private, read_file, read_secret, why_not_private

DIGEST = 32  # bytes per signature
MOST_BYTES = 1 << 28  # bytes per file; the largest cubin has less than a hundredth of this
_warned: set[str] = set()


def cache_home() -> Path:
    """Return the cache folder: SEQLOOM_CACHE, or seqloom in the user's cache folder."""
    chosen = os.environ.get("SEQLOOM_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seqloom"


def cache_folder(kind: str) -> Path:
    """Return the folder of one kind of files."""
    return cache_home() / kind


def sign(secret: bytes, path: Path, content: bytes) -> bytes:
    """Return the signature of a file: of its folder's name, its own name and its content."""
    name = f"{path.parent.name}/{path.name}".encode()
    return hmac.digest(secret, len(name).to_bytes(8, "little") + name + content, "sha256")


def read_cached(path: Path, what: str) -> bytes | None:
    """Return the content of a cached file; None, with a warning, if this user did not write it.

    Args:
        path: The file.
        what: What it holds, for the warning: "built kernel".
    """
    try:
        if not (_may_use(path.parent.parent) and _may_use(path.parent)):
            return None
        whole, _ = read_file(path, MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        warnings.warn(f"the {what} {path} cannot be read ({error}); building it again", stacklevel=4)
        return None
    secret = _read_secret()
    if secret is None:
        return None
    if not hmac.compare_digest(sign(secret, path, whole[DIGEST:]), whole[:DIGEST]):
        warnings.warn(
            f"the {what} {path} is damaged, or was not written by this user: its digest is wrong; building it again",
            stacklevel=4,
        )
        return None
    return whole[DIGEST:]


def write_cached(path: Path, content: bytes, what: str) -> bool:
    """Write a cached file under a temporary name first, so that no process reads a partial file.

    Args:
        path: The file.
        content: What to write after the signature.
        what: What it holds, for the warning if the folder cannot be written.

    Returns:
        Whether it was written.
    """
    work = None
    try:
        for folder in (path.parent.parent, path.parent):
            make_private(folder)
            if not _may_use(folder):
                return False
        secret = _read_secret()
        if secret is None:
            return False
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            work = Path(file.name)
            file.write(sign(secret, path, content) + content)
        work.replace(path)
    except OSError as error:
        if work is not None:
            work.unlink(missing_ok=True)
        warnings.warn(
            f"a {what} cannot be kept in {path.parent} ({error}); every process builds it again. "
            "Set SEQLOOM_CACHE to a folder that can be written",
            stacklevel=4,
        )
        return False
    return True


def _may_use(folder: Path) -> bool:
    """Return whether only this user can access a folder of the cache; if not, warn once.

    Raises:
        OSError: If it cannot be looked at.
    """
    reason = why_not_private(folder)
    if reason is not None:
        _warn_once(
            f"the cache folder {folder} is not used: {reason}. Until then every process compiles again. "
            "Or set SEQLOOM_CACHE to a folder that belongs to you alone"
        )
    return reason is None


def _read_secret() -> bytes | None:
    try:
        return read_secret()
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home folder
        _warn_once(
            f"the cache is not used, because there is no secret to sign it with ({error}). Until then every process "
            "compiles again. Or set SEQLOOM_STATE to a folder that belongs to you alone, outside of the cache"
        )
        return None


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=6)
