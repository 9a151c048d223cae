"""Packed files: gz, xz, bz2 and zst are unpacked on the way, block by block."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import IO, Any

from seqloom.errors import require

SUFFIXES = (".gz", ".xz", ".bz2", ".zst")
DAMAGED = "{}: ends in the middle or is damaged ({}); copy the file again"


def bare(path: Path) -> Path:
    """The name without .gz and the like."""
    return path.with_suffix("") if path.suffix in SUFFIXES else path


def unpacked(path: Path, work: Path) -> Path:
    """The file itself, or its unpacked copy in the folder `work`."""
    if path.suffix not in SUFFIXES:
        return path
    copy = work / bare(path).name
    try:
        with opened(path) as packed, copy.open("wb") as plain:
            shutil.copyfileobj(packed, plain, 1 << 20)
    except (EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # a full disk is not a damaged file
        raise ValueError(DAMAGED.format(path, error)) from None
    except Exception as error:  # lzma and zlib have errors of their own
        if type(error).__name__ not in ("LZMAError", "error", "ZstdError"):
            raise
        raise ValueError(DAMAGED.format(path, error)) from None
    return copy


def opened(path: Path) -> IO[bytes]:
    """The unpacked bytes as a stream."""
    import bz2
    import gzip
    import lzma

    opener: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open, ".zst": _zst}
    return opener.get(path.suffix, open)(path, "rb")


def _zst(path: Path, mode: str) -> IO[bytes]:
    opened: IO[bytes] = require("zstandard", f"{path}: unpacking .zst").open(path, mode)
    return opened
