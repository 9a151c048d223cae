"""Packed files: gz, xz, bz2 and zst are unpacked on the way, block by block."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

from seqloom.core.errors import UserError, require

SUFFIXES = (".gz", ".xz", ".bz2", ".zst")
USUAL_GIB, RATIO, SUSPICIOUS = 16.0, 1_000, 2**28  # the ratio counts from 256 MiB on
DAMAGED = "{}: ends in the middle or is damaged ({}); copy the file again"


def bare(path: Path) -> Path:
    """The name without .gz and the like."""
    return path.with_suffix("") if path.suffix in SUFFIXES else path


def check_size(path: Path, unpacked: int, most_gib: float) -> None:
    """Raise an error if a packed file unpacks to more than is allowed, or to over 1,000 times its size.

    Args:
        path: The packed file.
        unpacked: Bytes that it has given so far, or says that it will.
        most_gib: The limit that a person may raise.
    """
    ratio = unpacked > SUSPICIOUS and unpacked > RATIO * path.stat().st_size and most_gib <= USUAL_GIB
    if unpacked > most_gib * 2**30 or ratio:
        raise UserError(
            f"{path}: {path.stat().st_size:,} bytes unpack to more than {unpacked / 2**30:.1f} GiB; "
            f"if that is right, allow it with unpacked_gib={max(2 * most_gib, 2 * USUAL_GIB):g}"
        )


def unpacked(path: Path, work: Path, most_gib: float = USUAL_GIB) -> Path:
    """The file itself, or its unpacked copy in the folder `work`."""
    if path.suffix not in SUFFIXES:
        return path
    copy = work / bare(path).name
    try:
        with opened(path) as packed, copy.open("wb") as plain:
            while block := packed.read(1 << 20):
                plain.write(block)
                check_size(path, plain.tell(), most_gib)
    except (EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # a full disk is not a damaged file
        raise UserError(DAMAGED.format(path, error)) from None
    except Exception as error:  # lzma and zlib have errors of their own
        if type(error).__name__ not in ("LZMAError", "error", "ZstdError"):
            raise
        raise UserError(DAMAGED.format(path, error)) from None
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
