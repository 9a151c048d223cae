"""WAV files in a folder or a tar file. Labels are folder names, or the parts of the file's name."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers.frames import decode_utf8, scan_rows

SUFFIXES = (".tar", ".wav")
LOWEST_RATE, HIGHEST_RATE = 100, 1_000_000  # samples per second: one per window of 10 ms; ultrasound
PIECE_ROWS = 200  # recordings in memory at once


def scan(path: Path, options: Reading) -> pl.LazyFrame:
    """Scan recordings as audio, rate, file; label or part_1, part_2 ...; text if every .wav has a .txt beside it."""
    names = [name for name, _ in _read_files(path, with_content=False)]
    sounds = [name for name in names if name.suffix.lower() == ".wav"]
    if not sounds:
        raise UserError(f"{path}: holds no .wav files")
    schema: dict[str, Any] = {"audio": pl.List(pl.Float32), "rate": pl.Int64, "file": pl.String}
    parts = {len(_split_name(name)) for name in sounds}
    if len({name.parent for name in sounds}) > 1:
        schema["label"] = pl.String
    elif len(parts) == 1:
        schema |= {f"part_{i + 1}": pl.String for i in range(parts.pop())}
    if set(names) >= {name.with_suffix(".txt") for name in sounds}:
        schema["text"] = pl.String
    return scan_rows(lambda: _read_recordings(path, schema), schema, PIECE_ROWS)


def has_recordings(path: Path) -> bool:
    """Return whether a folder, or one below it, holds a .wav file."""
    return any(p.suffix.lower() == ".wav" for p in path.rglob("*"))


def _split_name(name: PurePosixPath) -> list[str]:
    return re.split(r"[_\-]+", name.stem)


def _read_files(path: Path, with_content: bool = True) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield names and contents, in the order of the tar file, or by name."""
    if path.is_file() and path.suffix == ".tar":
        with tarfile.open(path) as tar:
            for member in tar:
                if member.isfile():
                    stream = tar.extractfile(member) if with_content else None
                    yield PurePosixPath(member.name), stream.read() if stream else b""
        return
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        name = PurePosixPath(file.relative_to(path.parent if path.is_file() else path).as_posix())
        yield name, file.read_bytes() if with_content else b""


def _read_recordings(path: Path, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    texts = {}
    if "text" in schema:
        texts = {n: decode_utf8(b, f"{path}/{n}").strip() for n, b in _read_files(path) if n.suffix == ".txt"}
    for name, content in _read_files(path):
        if name.suffix.lower() != ".wav":
            continue
        row: dict[str, Any] = {"file": str(name)} | read_samples(content, f"{path}/{name}")
        if "label" in schema:
            row["label"] = name.parent.name
        row |= {f"part_{i + 1}": p for i, p in enumerate(_split_name(name)) if f"part_{i + 1}" in schema}
        if "text" in schema:
            row["text"] = texts[name.with_suffix(".txt")]
        yield row


def read_samples(content: bytes, place: str) -> dict[str, Any]:
    """Return the mean of all channels, between -1 and 1, and the sampling rate."""
    import warnings

    import numpy as np
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # for chunks without sound
            rate, samples = wavfile.read(io.BytesIO(content))
    except Exception as error:  # scipy raises many for truncated files, even UnboundLocalError
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{place}: not a readable WAV file ({reason}); save it as 16-bit PCM") from None
    if samples.dtype.kind == "i":
        samples = samples / -float(np.iinfo(samples.dtype).min)
    elif samples.dtype.kind == "u":
        samples = samples / 128.0 - 1.0
    if not samples.size:
        raise UserError(f"{place}: holds no sound; leave it out")
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise UserError(
            f"{place}: has {rate:,} samples a second, not {LOWEST_RATE} to {HIGHEST_RATE:,}; the file is damaged, or "
            "give its values as a series"
        )
    mono = samples.mean(1) if samples.ndim == 2 else samples
    return {"audio": pl.Series(mono, dtype=pl.Float32), "rate": int(rate)}
