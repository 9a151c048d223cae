"""Compressed files: .gz, .xz, .bz2, .zst and .zip with one table are unpacked block by block before they are read."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import IO, Any

from seqloom.core.errors import UserError, require

SUFFIXES = (".gz", ".xz", ".bz2", ".zst", ".zip")
DEFAULT_GIB = 16.0  # largest unpacked size unless the user allows more
MAX_RATIO = 1_000  # largest ratio of unpacked to packed size
RATIO_FROM = 2**28  # bytes; the ratio is not checked below this size
MOST_NAMES = 8  # files of an archive that a message lists
ENCRYPTED = 1  # bit of a member's flags
DAMAGED = "{}: ends in the middle or is damaged ({}); copy the file again"


def strip_suffix(path: Path) -> Path:
    """Return a path without .gz and the like."""
    return path.with_suffix("") if path.suffix in SUFFIXES else path


def check_size(path: Path, unpacked: int, max_gib: float) -> None:
    """Raise an error if a compressed file unpacks to more than is allowed, or to over 1,000 times its size.

    Args:
        path: The compressed file.
        unpacked: Bytes unpacked so far, or the size that the file claims.
        max_gib: The limit in GiB, which the user may raise. A limit above the default turns off the ratio check.
    """
    size = path.stat().st_size
    is_suspicious = unpacked > RATIO_FROM and unpacked > MAX_RATIO * size and max_gib <= DEFAULT_GIB
    if unpacked > max_gib * 2**30 or is_suspicious:
        raise UserError(
            f"{path}: {size:,} bytes unpack to more than {unpacked / 2**30:.1f} GiB; "
            f"if that is right, allow it with unpacked_gib={max(2 * max_gib, 2 * DEFAULT_GIB):g}"
        )


def unpack(path: Path, work: Path, max_gib: float = DEFAULT_GIB) -> Path:
    """Unpack a compressed file into the folder `work` and return the copy; return any other file as it is."""
    if path.suffix not in SUFFIXES:
        return path
    copy = work / strip_suffix(path).name
    try:
        if path.suffix == ".zip":
            copy = work / Path(_find_member(path)).name
        with _open_unpacked(path) as stream, copy.open("wb") as plain:
            while block := stream.read(1 << 20):
                plain.write(block)
                check_size(path, plain.tell(), max_gib)
    except (EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # a full disk is not a damaged file; EINVAL is a place before the start of a .zip file
        raise UserError(DAMAGED.format(path, error)) from None
    except NotImplementedError as error:  # of zipfile
        raise UserError(f"{path}: cannot be unpacked ({error}); unpack it, and give the file") from None
    except Exception as error:  # the error classes of lzma, zlib and zstandard share no base
        if type(error).__name__ not in ("LZMAError", "error", "ZstdError", "BadZipFile", "UnicodeDecodeError"):
            raise
        raise UserError(DAMAGED.format(path, error)) from None
    return copy


def _find_member(path: Path) -> str:
    """Return the name of the only data file in a .zip file."""
    import zipfile

    with zipfile.ZipFile(path) as archive:
        named = [m for m in archive.infolist() if m.filename]
    members = [m for m in named if not m.is_dir() and not m.filename.startswith("__MACOSX")]
    names = [m.filename for m in members if not Path(m.filename).name.startswith((".", "README", "LICENSE"))]
    if len(names) != 1:
        listed = ", ".join(names[:MOST_NAMES]) or "no files"
        raise UserError(f"{path}: holds {listed}; a .zip file may hold one table: unpack it, and give the folder")
    if any(m.flag_bits & ENCRYPTED for m in members):
        raise UserError(f"{path}: is encrypted; unpack it, and give the file")
    return names[0]


def _open_unpacked(path: Path) -> IO[bytes]:
    """Open a compressed file as a stream of unpacked bytes."""
    import bz2
    import gzip
    import lzma
    import zipfile

    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            return archive.open(_find_member(path))

    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
    opener = openers.get(path.suffix) or require("zstandard", f"{path}: unpacking .zst").open
    stream: IO[bytes] = opener(path, "rb")
    return stream
