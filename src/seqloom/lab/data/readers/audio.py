"""WAV files in a folder or a tar. Labels are folder names, else the parts of the file's name."""

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
from seqloom.lab.data.readers.generated import generated, utf8

SUFFIXES = (".tar", ".wav")
PIECE = 200  # recordings in memory at once


def scan(path: Path, options: Reading) -> pl.LazyFrame:
    """Columns audio, rate, file; label or part_1, part_2 ...; text where a .txt lies beside each .wav."""
    names = [name for name, _ in _files(path, read=False)]
    sounds = [name for name in names if name.suffix.lower() == ".wav"]
    if not sounds:
        raise UserError(f"{path}: holds no .wav files")
    schema: dict[str, Any] = {"audio": pl.List(pl.Float32), "rate": pl.Int64, "file": pl.String}
    parts = {len(_parts(name)) for name in sounds}
    if len({name.parent for name in sounds}) > 1:
        schema["label"] = pl.String
    elif len(parts) == 1:
        schema |= {f"part_{i + 1}": pl.String for i in range(parts.pop())}
    if set(names) >= {name.with_suffix(".txt") for name in sounds}:
        schema["text"] = pl.String
    return generated(lambda: _recordings(path, schema), schema, PIECE)


def _parts(name: PurePosixPath) -> list[str]:
    return re.split(r"[_\-]+", name.stem)


def _files(path: Path, read: bool = True) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Names and contents, in the order of the tar, or by name."""
    if path.is_file() and path.suffix == ".tar":
        with tarfile.open(path) as tar:
            for member in tar:
                if member.isfile():
                    opened = tar.extractfile(member) if read else None
                    yield PurePosixPath(member.name), opened.read() if opened else b""
        return
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        name = PurePosixPath(file.relative_to(path.parent if path.is_file() else path).as_posix())
        yield name, file.read_bytes() if read else b""


def _recordings(path: Path, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    texts = {}
    if "text" in schema:
        texts = {n: utf8(b, f"{path}/{n}").strip() for n, b in _files(path) if n.suffix == ".txt"}
    for name, content in _files(path):
        if name.suffix.lower() != ".wav":
            continue
        row: dict[str, Any] = {"file": str(name)} | _samples(content, f"{path}/{name}")
        if "label" in schema:
            row["label"] = name.parent.name
        row |= {f"part_{i + 1}": p for i, p in enumerate(_parts(name)) if f"part_{i + 1}" in schema}
        if "text" in schema:
            row["text"] = texts[name.with_suffix(".txt")]
        yield row


def _samples(content: bytes, place: str) -> dict[str, Any]:
    """One channel, the mean of all, between -1 and 1."""
    import warnings

    import numpy as np
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # chunks that hold no sound
            rate, samples = wavfile.read(io.BytesIO(content))
    except Exception as error:  # scipy has many for files that are cut off, UnboundLocalError among them
        raise UserError(f"{place}: not a WAV file that can be read ({error}); save it as 16-bit PCM") from None
    if samples.dtype.kind == "i":
        samples = samples / -float(np.iinfo(samples.dtype).min)
    elif samples.dtype.kind == "u":
        samples = samples / 128.0 - 1.0
    if not samples.size or rate <= 0:
        raise UserError(f"{place}: holds no sound ({samples.shape} samples, {rate} a second); leave it out")
    mono = samples.mean(1) if samples.ndim == 2 else samples
    return {"audio": pl.Series(mono, dtype=pl.Float32), "rate": int(rate)}
