"""Text files in encodings other than UTF-8, copied as UTF-8 before they are read."""

from __future__ import annotations

import codecs
from pathlib import Path

from seqloom.core.errors import UserError

BLOCK_BYTES = 1 << 20
MARKS = (  # byte order marks; those of UTF-32 begin like those of UTF-16
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def find_mark(path: Path) -> str | None:
    """Return the encoding that a file's byte order mark names, or None without a mark."""
    with path.open("rb") as file:
        head = file.read(4)
    return next((name for mark, name in MARKS if head.startswith(mark)), None)


def _is_utf8(path: Path) -> bool:
    """Return whether the whole file is UTF-8 and has bytes beyond ASCII, which other encodings hardly ever allow."""
    decoder, is_ascii = codecs.getincrementaldecoder("utf-8")(), True
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                is_ascii = is_ascii and block.isascii()
                decoder.decode(block)
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        return False
    return not is_ascii


def copy_as_utf8(path: Path, work: Path, encoding: str | None) -> Path:
    """Copy a text file that has a byte order mark or the given encoding into `work` as UTF-8; return other files.

    A file that is UTF-8 is never read with the given encoding, so that a model trained on a file in cp1252 can be
    applied to one in UTF-8.

    Args:
        path: The file.
        work: A folder for the copy.
        encoding: The encoding if the file has no mark; None for UTF-8.

    Raises:
        UserError: If the bytes do not fit the encoding.
    """
    name = find_mark(path) or encoding
    if name is None or codecs.lookup(name).name == "utf-8" or (name == encoding and _is_utf8(path)):
        return path
    folder = work / "utf-8"
    folder.mkdir(exist_ok=True)
    copy, decoder, done = folder / path.name, codecs.getincrementaldecoder(name)(), 0
    with path.open("rb") as packed, copy.open("w", encoding="utf-8", newline="") as plain:
        while block := packed.read(BLOCK_BYTES):
            try:
                plain.write(decoder.decode(block, final=len(block) < BLOCK_BYTES))
            except UnicodeError as error:
                at = f"byte {done + error.start:,}" if isinstance(error, UnicodeDecodeError) else str(error)
                raise UserError(f"{path}: not {name} ({at}); name the right encoding with encoding=...") from None
            done += len(block)
    return copy
