"""From files to one Arrow table on disk, by the reader that fits."""

from __future__ import annotations

import json
import struct
import tarfile
import tempfile
import zipfile
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers import arrow, audio, conll, delimited, folder, json_lines, npz, packed, text, ts

READERS: tuple[Any, ...] = (delimited, json_lines, arrow, npz, conll, ts, text, audio)
BY_SUFFIX = {suffix: reader for reader in READERS for suffix in reader.SUFFIXES}
TABLE, FACTS = "rows.arrow", "facts.json"


# What readers of other libraries raise for files that are cut off or were changed.
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
class Facts:
    """What a format says beyond its columns."""

    usual: tuple[str, str] | None = None  # input and target by convention
    stream: bool = False  # rows are pieces of one long text


def table(files: tuple[Path, ...], options: Reading, work: Path) -> None:
    """Read the files into TABLE and FACTS in the folder `work`."""
    with tempfile.TemporaryDirectory(dir=work) as unpacked:
        plain = tuple(packed.unpacked(file, Path(unpacked), options.unpacked_gib) for file in files)
        reader, options = _reader(plain, options)
        try:
            try:
                sink(*_scan(reader, plain, options), work)
            except pl.exceptions.PolarsError:
                if reader not in (delimited, json_lines):
                    raise
                sink(reader.scan(plain[0], options, None), Facts(), work)  # types change late in the file
            if reader is delimited:
                delimited.verify(pl.scan_ipc(work / TABLE), plain[0], options)
            return
        except pl.exceptions.PolarsError as error:
            clear = _clear(reader, plain[0], options, error)
        except ValueError as error:
            clear = error
        except DAMAGE as error:
            clear = ValueError(f"{plain[0]}: damaged, or not what its name says ({_first(error)}); write it again")
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of polars, which is no Exception
                raise
            clear = ValueError(f"{plain[0]}: damaged, polars cannot read it; write it again")
        message = str(clear)
        for short, long in zip(plain, files, strict=True):  # a person knows the packed file
            message = message.replace(str(short), str(long))
        raise UserError(message) from None


def _first(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200] or type(error).__name__


def sink(frame: pl.LazyFrame, facts: Facts, work: Path) -> None:
    """Write the table piece by piece."""
    frame.sink_ipc(work / TABLE, compression="uncompressed", maintain_order=True)
    rows = pl.scan_ipc(work / TABLE).select(pl.len()).collect().item()
    (work / FACTS).write_text(json.dumps(asdict(facts) | {"rows": rows}))


def _reader(files: tuple[Path, ...], options: Reading) -> tuple[Any, Reading]:
    """The reader of a file; what is in a .txt decides."""
    path = files[0]
    if len(files) == 2:
        return text, options
    if path.is_dir():
        return (folder if folder.classes(path) else audio), options
    if path.suffix not in BY_SUFFIX:
        raise UserError(f"{path}: cannot tell the format; files may end in {', '.join(BY_SUFFIX)}")
    reader = BY_SUFFIX[path.suffix]
    if reader is text and not options.lines and options.kind != "generate":
        inside = text.sniff(path)
        if inside == "tsv":  # a .txt has no line of names unless one says so
            return delimited, options.model_copy(update={"header": bool(options.header)})
        return (conll if inside == "conll" else text), options
    return reader, options


def _scan(reader: Any, files: tuple[Path, ...], options: Reading) -> tuple[pl.LazyFrame, Facts]:
    if len(files) == 2:
        one, other = (file.suffix[1:] for file in files)
        names = (one, other) if one != other and one and other else ("source", "target")
        return text.parallel((files[0], files[1]), names), Facts(names)
    frame = reader.scan(files[0], options)
    usual = reader.usual(frame) if hasattr(reader, "usual") else None
    return frame, Facts(usual, reader is text and not options.lines)


def _clear(reader: Any, path: Path, options: Reading, error: Exception) -> Exception:
    """The reader's own, clearer error where it finds one."""
    try:
        if hasattr(reader, "diagnose"):
            reader.diagnose(path, options)
    except ValueError as clear:
        return clear
    except DAMAGE:  # polars has said it already
        pass
    return ValueError(f"{path}: {str(error).splitlines()[0]}")
