"""JSON documents that detect changes: one entry is the digest of all others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from seqloom.core.errors import UserError

KEY = "digest"
JSON: TypeAlias = bool | int | float | str | list["JSON"] | dict[str, "JSON"] | None  # what json.loads returns


class DamagedError(UserError):
    """A file whose content is not what was written."""


def dumps(record: Mapping[str, Any], indent: int | None = None) -> bytes:
    """Return a record as JSON with its digest."""
    plain = json.loads(json.dumps(record))
    return json.dumps(plain | {KEY: _digest(plain)}, indent=indent, ensure_ascii=False).encode()


def loads(data: bytes, file: Path, format: int) -> dict[str, Any]:
    """Return the record in a file's bytes, without its digest.

    Args:
        file: The file they were read from, for messages.
        format: The newest "format" number that the caller can read.

    Raises:
        DamagedError: If they are not what `dumps` returned.
        UserError: If a newer version of seqloom wrote them.
    """
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        raise DamagedError(f"{file} is damaged: it is not a JSON document; restore it from a copy") from None
    if not isinstance(record, dict):
        raise DamagedError(f"{file} is damaged: its content has changed; restore it from a copy")
    digest = record.pop(KEY, None)
    whole = digest == _digest(record)
    number = record.get("format")
    if isinstance(number, int) and number > format and (whole or digest is None):
        versions = record.get("versions")
        version = versions.get("seqloom", "?") if isinstance(versions, dict) else "?"
        raise UserError(f"{file} was written by a newer seqloom ({version}, format {number}); upgrade seqloom")
    if not whole:
        raise DamagedError(f"{file} is damaged: its content has changed; restore it from a copy")
    return record


@contextmanager
def interpret(file: Path) -> Iterator[None]:
    """Turn errors inside into `DamagedError`; for code that builds objects from the record of a file.

    Raises:
        DamagedError: In place of any error except ImportError and OSError.
    """
    try:
        yield
    except (DamagedError, ImportError, OSError):
        raise
    except Exception as error:
        raise DamagedError(f"{file} is damaged: it does not describe what it should; restore it from a copy") from error


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
