"""Read files into one Arrow table on disk, with the reader that fits."""

from __future__ import annotations

import json
import struct
import tarfile
import tempfile
import zipfile
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import Reading, make_reading
from seqloom.lab.data.readers import (
    arrow,
    audio,
    conll,
    delimited,
    excel,
    json_lines,
    npz,
    recordings,
    subprocess_call,
    text,
    ts,
)
from seqloom.lab.data.readers.compression import unpack
from seqloom.lab.data.readers.encodings import copy_as_utf8
from seqloom.lab.data.readers.frames import cast_arrays, flatten

READERS: tuple[Any, ...] = (delimited, json_lines, arrow, npz, conll, ts, text, audio, excel)
TEXT_READERS = (delimited, json_lines, conll, ts, text)
BY_SUFFIX = {suffix: reader for reader in READERS for suffix in reader.SUFFIXES}
# These formats are decoded by native code, which allocates what a damaged file asks for, and then aborts the process.
SUBPROCESS_READERS = (arrow, excel)
ENTRY = "from seqloom.lab.data.readers.table import main; main()"
TABLE, FACTS = "rows.arrow", "facts.json"

# Exceptions of the libraries that read truncated or modified files.
DAMAGE = (
    EOFError,
    IndexError,
    KeyError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    ZeroDivisionError,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class TableFacts:
    """Facts about a file beyond its columns."""

    usual: tuple[str, str] | None = None  # input and target by the format's convention
    stream: bool = False  # whether the rows are pieces of one long text
    titles: tuple[str, ...] = ()  # texts above the header, which are left out


def write_files(files: tuple[Path, ...], options: Reading, work: Path) -> None:
    """Read one file, or two parallel ones, into TABLE and FACTS in the folder `work`.

    Raises:
        UserError: If a file is damaged or has another format than its name says.
    """
    plain = files
    with tempfile.TemporaryDirectory(dir=work) as folder:
        try:
            plain = tuple(unpack(file, Path(folder), options.unpacked_gib) for file in files)
            plain = tuple(_copy_text(file, Path(folder), options) for file in plain)
            if BY_SUFFIX.get(plain[0].suffix) in SUBPROCESS_READERS and plain[0].is_file():
                _write_in_subprocess(plain, options, work)
            else:
                _write_plain_files(plain, options, work)
        except UserError as error:
            message = str(error)
            for copy, file in zip(plain, files, strict=True):  # the user knows the compressed file
                message = message.replace(str(copy), str(file))
            raise UserError(message) from None


def _write_in_subprocess(files: tuple[Path, ...], options: Reading, work: Path) -> None:
    request = {"files": list(map(str, files)), "options": options.model_dump(mode="json"), "work": str(work)}
    try:
        subprocess_call.call(ENTRY, request)
    except subprocess_call.SubprocessKilledError as error:
        raise UserError(
            f"{files[0]}: damaged, or larger than the memory (reading it ended with {error}); write it again"
        ) from None


def main() -> None:
    """Run as the subprocess that reads a file."""

    def write(request: dict[str, Any]) -> None:
        files = tuple(map(Path, request["files"]))
        _write_plain_files(files, make_reading(**request["options"]), Path(request["work"]))

    subprocess_call.answer(write)


def _write_plain_files(files: tuple[Path, ...], options: Reading, work: Path) -> None:
    """Read unpacked files in UTF-8 into TABLE and FACTS."""
    reader, options = _find_reader(files, options)
    try:
        try:
            write_frame(*_scan(reader, files, options), work)
        except pl.exceptions.PolarsError:
            if reader not in (delimited, json_lines):
                raise
            write_frame(*_scan(reader, files, options, None), work)  # types change late in the file
        if reader is delimited:
            delimited.verify(pl.scan_ipc(work / TABLE), files[0], options)
        return
    except pl.exceptions.PolarsError as error:
        message = _diagnose(reader, files[0], options, error)
    except ValueError as error:
        message = str(error)
    except DAMAGE as error:
        message = f"{files[0]}: damaged, or not what its name says ({_first_line(error)}); write it again"
    except OSError as error:
        if error.errno is not None:  # a failure of the disk, not of the format
            raise
        message = f"{files[0]}: damaged ({_first_line(error)}); write it again"
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # raised by polars, and not an Exception
            raise
        message = f"{files[0]}: damaged, polars cannot read it; write it again"
    raise UserError(message if str(files[0]) in message else f"{files[0]}: {message}") from None


def _copy_text(file: Path, work: Path, options: Reading) -> Path:
    """Return a file, or its copy in UTF-8."""
    is_text = file.is_file() and BY_SUFFIX.get(file.suffix, text) in TEXT_READERS
    return copy_as_utf8(file, work, options.encoding) if is_text else file


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200] or type(error).__name__


def write_frame(frame: pl.LazyFrame, facts: TableFacts, work: Path) -> None:
    """Write a frame to TABLE piece by piece, and its facts to FACTS."""
    frame = cast_arrays(flatten(frame))
    frame.sink_ipc(work / TABLE, compression="uncompressed", maintain_order=True)
    rows = pl.scan_ipc(work / TABLE).select(pl.len()).collect().item()
    (work / FACTS).write_text(json.dumps(asdict(facts) | {"rows": rows}))


def _find_reader(files: tuple[Path, ...], options: Reading) -> tuple[ModuleType, Reading]:
    """Return the reader of a file and its options; for a .txt file the content decides."""
    path = files[0]
    if len(files) == 2:
        return text, options
    if path.is_dir():
        return (audio if audio.has_recordings(path) else text), options
    if path.suffix not in BY_SUFFIX:
        raise UserError(f"{path}: unknown format; files may end in {', '.join(BY_SUFFIX)}")
    reader = BY_SUFFIX[path.suffix]
    if recordings.names_recordings(path) and recordings.find_recordings(path):
        return recordings, options
    if reader is text and not options.lines and options.form.target != "next":
        form = text.guess_form(path)
        if form == "tsv":  # a .txt file has no header unless the user says so
            return delimited, options.model_copy(update={"header": bool(options.header)})
        return (conll if form == "conll" else text), options
    return reader, options


def _scan(
    reader: ModuleType, files: tuple[Path, ...], options: Reading, *sample: int | None
) -> tuple[pl.LazyFrame, TableFacts]:
    if len(files) == 2:
        one, other = (file.suffix[1:] for file in files)
        names = (one, other) if one != other and one and other else ("source", "target")
        return text.scan_parallel((files[0], files[1]), names), TableFacts(names)
    if reader is excel:
        frame, titles = excel.scan_sheets(files[0], options)
        return frame, TableFacts(titles=tuple(titles))
    if options.sheet is not None:
        formats = ", ".join(excel.SUFFIXES)
        raise UserError(f"{files[0]}: sheet={options.sheet} is for workbooks ({formats}); leave it out")
    frame = reader.scan(files[0], options, *sample)
    usual = reader.find_usual(frame) if hasattr(reader, "find_usual") else None
    titles = delimited.find_titles(files[0], options) if reader is delimited else []
    return frame, TableFacts(usual, reader is text and files[0].is_file() and not options.lines, tuple(titles))


def _diagnose(reader: ModuleType, path: Path, options: Reading, error: Exception) -> str:
    """Return the message of the reader's diagnosis, or that of polars if it finds nothing."""
    try:
        if hasattr(reader, "diagnose"):
            reader.diagnose(path, options)
    except ValueError as diagnosis:
        return str(diagnosis)
    except DAMAGE:  # the diagnosis fails too: the message of polars has to do
        pass
    return f"{path}: {str(error).splitlines()[0]}"
