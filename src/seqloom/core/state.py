"""The user's private folders, whether they can be trusted, and the secret that signs cached files."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

SECRET_BYTES = 32
OTHERS = 0o077  # all permissions of the group and of others
OTHERS_WRITE = 0o022
# A link is never followed, and a pipe or a device does not block. Windows has neither flag.
READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def state_folder() -> Path:
    """Return the folder of the user's trust records: SEQLOOM_STATE, or in XDG_STATE_HOME. It may not exist yet."""
    folder = os.environ.get("SEQLOOM_STATE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "seqloom"


def make_private(folder: Path) -> None:
    """Create a folder that only this user can enter; its parents get the usual permissions.

    An existing file or folder is left as it is; `why_not_private` tells whether it can be used.

    Raises:
        OSError: If it cannot be created.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)


def why_not_private(folder: Path, forbidden: int = OTHERS) -> str | None:
    """Return why other users can change a folder, and what to do; None if only this user can.

    Args:
        folder: The folder.
        forbidden: Permissions that it must not have.

    Raises:
        OSError: If the folder cannot be looked at, for example because it does not exist.
    """
    facts = folder.lstat()
    if stat.S_ISLNK(facts.st_mode):
        return "it is a symbolic link; name the folder that it leads to"
    if not stat.S_ISDIR(facts.st_mode):
        return "it is not a folder; remove it"
    return _why_not_own(folder, facts, forbidden)


def _why_not_own(path: Path, facts: os.stat_result, forbidden: int) -> str | None:
    """Return why other users can use a file or folder; None if they cannot."""
    if not hasattr(os, "geteuid"):  # Windows: folders of a user are private unless their access lists were changed
        return None
    if facts.st_uid != os.geteuid():
        return f"it belongs to another user (uid {facts.st_uid})"
    if facts.st_mode & forbidden:
        return f"other users may use it (mode {stat.S_IMODE(facts.st_mode):o}); run: chmod go-rwx '{path}'"
    return None


def read_file(path: Path, most: int) -> tuple[bytes, os.stat_result]:
    """Read a regular file once; return its content and its `os.stat` result.

    Args:
        path: The file. A symbolic link is not followed.
        most: The maximum size in bytes.

    Raises:
        OSError: If it cannot be read, is not a regular file or is larger.
    """
    with open(os.open(path, READ), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise OSError("it is not a regular file")
        if facts.st_size > most:
            raise OSError(f"it has {facts.st_size} bytes")
        return file.read(most), facts


def read_secret() -> bytes:
    """Return the secret of this user, 32 random bytes; create it on first use.

    Raises:
        OSError: If the secret cannot be created, or other users may know it. The message says what to do.
    """
    folder = state_folder()
    path = folder / "cache.key"
    make_private(folder)
    reason = why_not_private(folder, OTHERS_WRITE)
    if reason is not None:
        raise OSError(f"{folder}: {reason}")
    if not path.exists():
        _create_secret(path)
    secret, facts = read_file(path, SECRET_BYTES)
    reason = _why_not_own(path, facts, OTHERS)
    if reason is None and len(secret) != SECRET_BYTES:
        reason = f"it has {len(secret)} bytes instead of {SECRET_BYTES}; remove it"
    if reason is not None:
        raise OSError(f"{path}: {reason}")
    return secret


def _create_secret(path: Path) -> None:
    """Write a new secret under a temporary name, then rename it unless another process was faster."""
    work = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(work, CREATE, 0o600), "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(work, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            work.replace(path)
    finally:
        work.unlink(missing_ok=True)
